"""`mcpctl doctor`: checks the installation, the configuration and every server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.cli.text import count
from ctl.daemon.client import DaemonClient, Json
from ctl.explain import checks
from ctl.explain.checks import FAIL, OK, SKIP, WARN, Finding
from ctl.explain.config_check import file_elsewhere, next_environment
from ctl.explain.daemon import DaemonFacts
from ctl.explain.environment import login_environment
from ctl.explain.next_steps import config_step, next_step
from ctl.show.status import effect_of_problems, failure_summary, impairment, waiting_summary
from mcpd.config.check_document import LoadedConfig, check
from mcpd.config.loader import default_path, read_document
from mcpd.files import paths
from mcpd.model.errors import BadSpec

if TYPE_CHECKING:
    from ctl.api_types import PingResult, ServerDetail

    Ping = PingResult | DaemonError

_MARKS = {OK: ("ok", "green"), WARN: ("warn", "yellow"), FAIL: ("FAIL", "red"), SKIP: ("-", "dim")}
_ANSWER_TIMEOUT = 5.0
_KEYRING_TIMEOUT = 30.0
_PING_TIMEOUT = 10.0
_STORAGES = {
    "keyring": "encrypted with a key in the keyring",
    "credential": "encrypted with a credential",
}


class DoctorReport:
    def __init__(self, daemon: DaemonFacts | None) -> None:
        self.findings: list[Finding] = []
        self.daemon = daemon
        """None if the socket has no path."""
        self.loaded: LoadedConfig | None = None
        """The configuration file as this process reads it; None if it is invalid."""
        self.answers: dict[str, Json] = daemon.answers if daemon is not None else {}
        """All answers of the daemon, by file name in the support bundle."""

    @property
    def has_failed(self) -> bool:
        return any(finding.result == FAIL for finding in self.findings)

    @property
    def definitions(self) -> Mapping[str, Mapping[str, object]]:
        """The definitions of all servers, of the daemon if it runs."""
        if self.daemon is not None and self.daemon.config is not None:
            return self.daemon.config["servers"]
        return self.loaded.definitions if self.loaded else {}


def findings_lines(findings: list[Finding]) -> list[Line]:
    lines: list[Line] = []
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        word, style = _MARKS[finding.result]
        took = "" if finding.ms is None else f" ({finding.ms:{'.0f' if finding.ms >= 100 else '.3g'}} ms)"
        lines.append([paint(f"{word:>4}", style), f"  {finding.check:<{width}}  {finding.message}{took}"])
        if finding.next:
            lines.append([" " * (width + 8), paint("→ ", "dim"), finding.next])
    failures = sum(finding.result == FAIL for finding in findings)
    warnings = sum(finding.result == WARN for finding in findings)
    found = failures or warnings
    summary = f"{count(failures, 'failure')}, {count(warnings, 'warning')}" if found else "no problems found"
    return [*lines, [], [summary]]


def run_checks(cli: CliContext, environ: Mapping[str, str], *, shell: bool) -> DoctorReport:
    """Run all checks. Starts no daemon and raises nothing that can be a finding."""
    try:
        socket = cli.socket
    except DaemonUnreachable as error:
        socket = ""
        report = DoctorReport(None)
        report.findings.append(Finding("socket", FAIL, error.message, error.hint or "set MCPD_SOCKET"))
    else:
        report = _check_daemon(socket)
    directories = {
        "state directory": paths.state_dir(environ),
        "cache directory": paths.cache_dir(environ),
    }
    report.findings += checks.check_directories(directories)
    running = report.daemon is not None and report.daemon.status is not None
    variables = environ if running else next_environment(socket, environ).variables
    report.findings += _check_configuration(report, environ, variables)
    report.findings += checks.check_secrets(environ)
    report.findings += _check_logins(report)
    login = login_environment(environ) if shell else None
    version = report.daemon.version if report.daemon is not None else None
    if shell:
        report.findings.append(checks.check_path(version["search_path"] if version else None, login))
    search_path = version["search_path"] if version else variables.get("PATH", "")
    report.findings += checks.check_programs(report.definitions, search_path)
    if running:
        report.findings += _check_servers(report, login)
    return report


def _check_daemon(socket: str) -> DoctorReport:
    facts = DaemonFacts(socket)
    report = DoctorReport(facts)
    report.findings += checks.check_socket(socket)
    has_bad_socket = report.has_failed
    report.findings += checks.check_daemon(facts, has_bad_socket=has_bad_socket)
    report.findings += checks.check_service(socket)
    return report


def _check_logins(report: DoctorReport) -> Iterator[Finding]:
    """Check that the running daemon can store logins. Nothing is asked of one without remote servers."""
    wanted = report.loaded.settings.login_storage if report.loaded is not None else None
    if report.daemon is None or report.daemon.config is None:
        return
    if wanted in (None, "file") and not any("url" in each for each in report.definitions.values()):
        return
    try:
        with DaemonClient(report.daemon.socket) as client:
            status = client.call("mcpd/auth/status", {"check": True}, timeout=_KEYRING_TIMEOUT).value
    except CtlError as error:
        yield Finding("logins", WARN, error.message, error.hint or "mcpctl login --list")
        return
    storage = status.get("storage", "file")
    if problem := status.get("problem"):
        yield Finding("logins", FAIL, problem, checks.login_step(problem))
    elif wanted not in (None, storage):
        message = f'mcpd still uses "loginStorage": "{storage}", and the configuration says "{wanted}"'
        yield Finding("logins", WARN, message, "mcpctl daemon restart")
    else:
        how = _STORAGES.get(storage, "in a file that only you can read")
        yield Finding("logins", OK, f"{count(len(status.get('logins', ())), 'login')}, {how}")


def _check_configuration(
    report: DoctorReport, environ: Mapping[str, str], variables: Mapping[str, str]
) -> Iterator[Finding]:
    """Report the daemon's view if it is running: its environment may have variables that ours lacks.

    `variables` are those that the file may refer to, and name it unless `environ` does.
    """
    failed: BadSpec | None = None
    status = report.daemon.status if report.daemon is not None else None
    try:
        used = Path(status["config"]["path"]) if status is not None else default_path(variables)
        report.loaded = check(read_document(file_elsewhere(used, environ), environ), variables)
    except BadSpec as error:
        failed = error
    path = report.loaded.path if report.loaded else ""
    if status is not None:
        config = status["config"]
        path = config["path"]
        for problem in config.get("problems", []):
            effect = effect_of_problems({**config, "problems": [problem]}, status["servers"])
            message = f"{problem['message']} at {problem['path']} ({effect})"
            step = config_step([problem], problem.get("fix"))
            yield Finding("configuration", FAIL, message, step)
        if not config.get("problems"):
            number = len(status["servers"])
            yield from _loaded_findings(number, config["source"], config.get("warnings", []))
    elif failed is not None:
        for each in failed.problems:
            message = f"{each.message} at {each.path} of {failed.source}"
            step = config_step([{"message": each.message}], each.fix)
            yield Finding("configuration", FAIL, message, step)
    elif report.loaded is not None:
        yield from _loaded_findings(len(report.loaded.specs), report.loaded.source, report.loaded.warnings)
    if path:
        secrets = report.loaded.secrets if report.loaded else ()
        yield from checks.check_file_permissions(str(path), secrets)


def _loaded_findings(number: int, source: str, warnings: Sequence[str]) -> Iterator[Finding]:
    if source == "none" and all(each.startswith("no configuration yet") for each in warnings):
        step = "mcpctl add time -- uvx mcp-server-time, or: mcpctl import"
        yield Finding("configuration", SKIP, "no servers yet", step)
        return
    for warning in warnings:
        yield Finding("configuration", WARN, warning, "mcpctl edit")
    if source != "none":
        yield Finding("configuration", OK, f"{count(number, 'server')} from {source}")


def _check_servers(report: DoctorReport, login: Mapping[str, str] | None) -> Iterator[Finding]:
    assert report.daemon is not None
    assert report.daemon.status is not None
    names = [server["name"] for server in report.daemon.status["servers"]]
    try:
        with DaemonClient(report.daemon.socket) as client:
            for method, params in (("stats", {}), ("history", {"limit": 1000})):
                report.answers[method] = client.request(
                    f"mcpd/{method}", params, timeout=_ANSWER_TIMEOUT
                ).value
            checked = ping_servers(client, names)
    except CtlError as error:
        yield Finding("servers", FAIL, error.message, error.hint or "mcpctl daemon restart")
        return
    for name, (detail, ping) in checked.items():
        report.answers[f"servers/{name}"] = detail
        yield server_finding(detail, ping, login)


def ping_servers(client: DaemonClient, names: Sequence[str]) -> dict[str, tuple[ServerDetail, Ping]]:
    """Ping servers, and return the state of each afterwards with the outcome of its ping.

    Leaves out servers that were removed meanwhile.
    """
    pings = client.call_all(
        [("mcpd/ping", {"server": name, "timeout": _PING_TIMEOUT}) for name in names],
        timeout=_PING_TIMEOUT + _ANSWER_TIMEOUT,
    )
    details = client.call_all(  # afterwards, to include what the pings have found out
        [("mcpd/server", {"server": name}) for name in names], timeout=_ANSWER_TIMEOUT
    )
    return {
        name: (detail.value, ping if isinstance(ping, DaemonError) else ping.value)
        for name, detail, ping in zip(names, details, pings, strict=True)
        if not isinstance(detail, DaemonError)
    }


def server_finding(detail: ServerDetail, ping: Ping, login: Mapping[str, str] | None) -> Finding:
    server = detail["server"]
    check, reason, failure = f"server {server['name']}", server.get("reason", ""), server.get("last_error")
    match server["status"]:
        case "connected":
            return _connected_finding(detail, ping, login)
        case "idle":
            return Finding(check, OK, "starts on first use")
        case "disabled":
            return Finding(check, SKIP, reason or "disabled")
        case "pending" if not failure:
            return Finding(check, WARN, reason, next_step(detail, login))
    message = f"[{failure['kind']}] {failure_summary(failure)}" if failure else reason
    return Finding(check, FAIL, message, next_step(detail, login))


def _connected_finding(detail: ServerDetail, ping: Ping, login: Mapping[str, str] | None) -> Finding:
    server = detail["server"]
    name, failure = server["name"], server.get("last_error")
    check = f"server {name}"
    if isinstance(ping, DaemonError):
        if ping.code in ("not_ready", "link_lost", "unknown_server"):  # it has connected meanwhile
            message = "connected, but not for long enough to be checked"
            return Finding(check, WARN, message, f"mcpctl why {name}")
        cause = server.get("degraded") or ping.message
        step = next_step(detail, login) if server.get("degraded") else f"mcpctl reconnect {name}"
        return Finding(check, FAIL, f"connected but not responding: {cause}", step)
    if error := ping.get("error"):  # an older daemon does not say it
        return Finding(
            check, WARN, f"connected, but answers a ping with an error: {error}", f"mcpctl why {name}"
        )
    if impaired := impairment(server):
        why = f"; the last time: {failure_summary(failure)}" if failure and "restarted" in impaired else ""
        shown = impaired if waiting_summary(server) else f"connected, but {impaired}{why}"
        return Finding(check, WARN, shown, next_step(detail, login))
    took = sum(step["ms"] for step in detail.get("negotiation", ()))
    message = f"connected in {took:.0f} ms, {count(server.get('tools', 0), 'tool')}; responds"
    return Finding(check, OK, message, ms=ping["ms"])
