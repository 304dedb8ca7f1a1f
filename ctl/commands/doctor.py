"""`mcpctl doctor`: check the installation, the configuration and every server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.cli.text import count, seconds_since
from ctl.daemon import systemd
from ctl.daemon.client import DaemonClient
from ctl.explain import checks
from ctl.explain.checks import FAIL, OK, SKIP, WARN, DoctorReport, Finding
from ctl.explain.config_check import NextEnvironment, next_environment
from ctl.explain.environment import login_environment
from ctl.explain.next_steps import config_step, next_step
from ctl.show.status import effect_of_problems, failure_summary, impairment, waiting_summary
from mcpd import __version__
from mcpd.config import definition_view
from mcpd.config.check_document import check
from mcpd.config.load_at_start import load_at_start
from mcpd.config.loader import read_document
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, StdioSpec
from mcpd.support import paths
from mcpd.support.find_programs import find_program

if TYPE_CHECKING:
    from ctl.api_types import PingResult, ServerDetail

_MARKS = {OK: ("ok", "green"), WARN: ("warn", "yellow"), FAIL: ("FAIL", "red"), SKIP: ("-", "dim")}
_ANSWER_TIMEOUT = 5.0
_KEYRING_TIMEOUT = 30.0
_PING_TIMEOUT = 10.0
_PING_ROUNDS = 3
"""How often a server is pinged whose state changes meanwhile."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@click.command(epilog="Examples:\n\n\b\n  mcpctl doctor\n  mcpctl doctor --bundle mcpd-report.tar.gz")
@click.option("--shell/--no-shell", default=True, help="Compare with your login shell.", show_default=True)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a .tar.gz to attach to a bug report, with secrets masked.",
)
@click.pass_obj
def doctor(cli: CliContext, shell: bool, bundle: str | None) -> int:
    """Check the installation, the configuration and every server.

    Checks the socket, the service, the PATH, the programs that servers need, the configuration, and every
    server with a real request. Works without a running daemon and never starts one. Suggests a fix for every
    problem. Exits with 1 if a check fails.
    """
    report = run_checks(cli, os.environ, shell=shell)
    failed = any(finding.result == FAIL for finding in report.findings)
    if bundle is not None:
        from ctl.explain.bundle import write_bundle

        write_bundle(bundle, report, os.environ)
    if cli.out.json:
        # `next` is the name that all commands use; `fix` is its former name, kept for one version.
        found = [{**finding._asdict(), "next": finding.fix} for finding in report.findings]
        cli.out.json_value({"well": not failed, "findings": found, "bundle": bundle})
    else:
        cli.out.lines(_render(report.findings))
        if bundle is not None:
            cli.out.message(f"wrote {bundle}; review its contents before you share it")
    return 1 if failed else 0


def _render(findings: list[Finding]) -> list[Line]:
    lines: list[Line] = []
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        word, style = _MARKS[finding.result]
        took = "" if finding.ms is None else f" ({finding.ms:{'.0f' if finding.ms >= 100 else '.3g'}} ms)"
        lines.append([paint(f"{word:>4}", style), f"  {finding.check:<{width}}  {finding.message}{took}"])
        if finding.fix:
            lines.append([" " * (width + 8), paint("→ ", "dim"), finding.fix])
    failures = sum(finding.result == FAIL for finding in findings)
    warnings = sum(finding.result == WARN for finding in findings)
    found = failures or warnings
    summary = f"{count(failures, 'failure')}, {count(warnings, 'warning')}" if found else "no problems found"
    return [*lines, [], [summary]]


def run_checks(cli: CliContext, environ: Mapping[str, str], *, shell: bool) -> DoctorReport:
    """Run all checks. Starts no daemon and raises nothing that can be a finding."""
    report = DoctorReport()
    cli.may_start = False
    try:
        path = cli.socket
    except DaemonUnreachable as error:
        report.findings.append(Finding("socket", FAIL, error.message, error.hint or "set MCPD_SOCKET"))
        path = ""
    if path:
        report.findings += checks.check_socket(path)
        report.findings += _check_daemon(report, path)
        report.findings += checks.check_service(path)
    state, cache = paths.state_dir(environ), paths.cache_dir(environ)
    report.findings += checks.check_directories({"state directory": state, "cache directory": cache})
    own = NextEnvironment(environ, of_service=False, is_complete=True)
    environment = own if report.status is not None else next_environment(path, environ)
    configuration = list(_check_configuration(report, environ, environment))
    if report.status is None and _refuses_to_start(report, environment.variables):
        # The first step is to correct the configuration, and not to start the daemon.
        report.findings = [each._replace(fix="") if each.result == SKIP else each for each in report.findings]
    report.findings += configuration
    definitions = report.config["servers"] if report.config else None
    if definitions is None:
        definitions = report.loaded.definitions if report.loaded else {}
    report.findings += checks.check_secrets(environ, definitions)
    report.findings += _check_logins(report, path)
    login = login_environment(environ) if shell else None
    daemon_path = report.version["search_path"] if report.version else None
    if shell:
        report.findings += checks.check_path(daemon_path, login)
    path = daemon_path or _path_of_next_daemon(path, environ)
    report.findings += checks.check_name(environ.get("PATH", _DEFAULT_PATH))
    report.findings += checks.check_programs(_needed_programs(report), path, login)
    report.findings += _check_servers(report, path, login)
    return report


def _path_of_next_daemon(socket: str, environ: Mapping[str, str]) -> str:
    """Return the PATH that a daemon would search: that of the service, or else that of this terminal."""
    return next_environment(socket, environ).variables.get("PATH", _DEFAULT_PATH)


def _check_daemon(report: DoctorReport, path: str) -> Iterator[Finding]:
    if systemd.would_start_service(path):
        yield Finding("daemon", SKIP, "not running; systemd starts it on demand")
        return
    try:
        with DaemonClient(path) as client:
            version = client.call("mcpd/version", timeout=_ANSWER_TIMEOUT).value
            report.version = version
            report.status = client.call("mcpd/status", timeout=_ANSWER_TIMEOUT).value
            report.config = client.call("mcpd/config", timeout=_ANSWER_TIMEOUT).value
            report.answers |= {"version": version, "status": report.status, "config": report.config}
            for method, params in (("stats", {}), ("history", {"limit": 1000})):
                try:
                    answer = client.request(f"mcpd/{method}", params, timeout=_ANSWER_TIMEOUT)
                except DaemonError:
                    continue  # an older daemon; the version below shows it
                report.answers[method] = answer.value
    except DaemonUnreachable as error:
        if any(each.check.startswith("socket") and each.result == FAIL for each in report.findings):
            yield Finding("daemon", SKIP, "not checked: the socket cannot be used")
            return
        missing = error.message.startswith("mcpd is not running")
        yield Finding("daemon", SKIP if missing else FAIL, error.message, error.hint)
        return
    except CtlError as error:
        yield Finding("daemon", FAIL, f"does not respond: {error.message}", "mcpctl daemon restart")
        return
    running = version["version"]
    if running != __version__:
        message = f"the running mcpd is version {running}, mcpctl is {__version__}"
        yield Finding("daemon", FAIL, message, "mcpctl daemon restart")
    else:
        yield Finding("daemon", OK, f"mcpd {running} responds (pid {version['pid']})")
    for warning in report.status["daemon"].get("warnings", ()):
        message, _, step = warning.rpartition("; ")
        yield Finding("saved state", WARN, message, step)
    age = seconds_since(version["started_at"], 0.0)
    if age is not None:
        yield from checks.check_installation(-age)


def _check_logins(report: DoctorReport, path: str) -> Iterator[Finding]:
    """Check that the running daemon can store logins. Nothing is asked of one without remote servers."""
    wanted = report.loaded.settings.login_storage if report.loaded is not None else None
    remote = report.config is not None and any("url" in each for each in report.config["servers"].values())
    if report.config is None or not (remote or wanted not in (None, "file")):
        return
    try:
        with DaemonClient(path) as client:
            status = client.call("mcpd/auth/status", {"check": True}, timeout=_KEYRING_TIMEOUT).value
    except CtlError as error:
        yield Finding("logins", WARN, error.message, error.hint or "mcpctl auth list")
        return
    storage = status.get("storage", "file")
    if problem := status.get("problem"):
        yield Finding("logins", FAIL, problem, checks.fix_for_logins(problem))
    elif wanted not in (None, storage):
        message = f'mcpd still uses "loginStorage": "{storage}", and the configuration says "{wanted}"'
        yield Finding("logins", WARN, message, "mcpctl daemon restart")
    else:
        where = {
            "keyring": "encrypted with a key in the keyring",
            "credential": "encrypted with a credential",
        }
        how = where.get(storage, "in a file that only you can read")
        yield Finding("logins", OK, f"{count(len(status.get('logins', ())), 'login')}, {how}")


def _check_configuration(
    report: DoctorReport, environ: Mapping[str, str], environment: NextEnvironment
) -> Iterator[Finding]:
    """Report the daemon's view if it is running: its environment may have variables that ours lacks.

    `environ` determines which file is read, and `environment` the values of variables in it.
    """
    failed: BadSpec | None = None
    try:
        report.loaded = check(read_document(None, environ), environment.variables)
    except BadSpec as error:
        failed = error
    path = report.loaded.path if report.loaded else ""
    if report.status:
        config = report.status["config"]
        problems = config.get("problems", [])
        for problem in problems:
            effect = effect_of_problems({**config, "problems": [problem]}, report.status["servers"])
            message = f"{problem['message']} at {problem['path']} ({effect})"
            yield Finding(
                "configuration", FAIL, message, config_step([problem], config["path"], problem.get("fix"))
            )
        if not problems:
            number = len(report.status["servers"])
            yield from _loaded_findings(number, config["source"], config.get("warnings", []))
        path = config["path"]
    elif failed is not None:
        for each in failed.problems:
            if not environment.is_complete and (warning := environment.unset_warning(each)):
                yield Finding("configuration", WARN, warning, "mcpctl daemon start, then: mcpctl status")
                continue
            message = f"{each.message} at {each.path} of {failed.source}"
            step = config_step([{"message": each.message}], failed.source, each.fix)
            yield Finding("configuration", FAIL, message, step)
    elif report.loaded is not None:
        yield from _loaded_findings(len(report.loaded.specs), report.loaded.source, report.loaded.warnings)
    if path:
        secrets = report.loaded.secrets if report.loaded else ()
        yield from checks.check_file_permissions(str(path), secrets)


def _refuses_to_start(report: DoctorReport, environ: Mapping[str, str]) -> bool:
    """Return whether a daemon would refuse the configuration: it tolerates most errors."""
    if report.loaded is None:
        try:
            load_at_start(None, environ, Path(paths.state_dir(environ)))
        except BadSpec:
            return True
    return False


def _loaded_findings(number: int, source: str, warnings: Sequence[str]) -> Iterator[Finding]:
    if source == "none" and all(each.startswith("no configuration yet") for each in warnings):
        fix = "mcpctl add time -- uvx mcp-server-time, or: mcpctl import"
        yield Finding("configuration", SKIP, "no servers yet", fix)
        return
    for warning in warnings:  # some end with the command that fixes them
        message, _, command = warning.partition("; mcpctl ")
        step = f"mcpctl {command or 'edit'}"
        if not command and "`mcpctl " in warning:  # it describes a step of several parts
            message, _, step = warning.partition("; ")
        yield Finding("configuration", WARN, message, step)
    if source != "none":
        yield Finding("configuration", OK, f"{count(number, 'server')} from {source}")


def _needed_programs(report: DoctorReport) -> set[str]:
    """Return the programs of enabled servers that are looked up in PATH."""
    commands: list[str] = []
    if report.config and report.status and report.config["servers"]:
        off = {each["name"] for each in report.status["servers"] if each["status"] == "disabled"}
        for name, definition in report.config["servers"].items():
            if name not in off:
                commands += definition_view.command(definition)[:1]
        commands = [command for command in commands if "${" not in command]
    elif report.loaded is not None:
        specs = report.loaded.specs.values()
        commands = [spec.command for spec in specs if isinstance(spec, StdioSpec) and spec.enabled]
    return {command for command in commands if command and "/" not in command}


def _check_servers(report: DoctorReport, path: str, login: Mapping[str, str] | None) -> Iterator[Finding]:
    if report.status is None:
        yield from _check_configured_servers(report, path)
        return
    servers = report.status["servers"]
    try:
        with DaemonClient(report.status["daemon"]["socket"]) as client:
            checked = ping_servers(client, [server["name"] for server in servers])
    except CtlError as error:
        yield Finding("servers", FAIL, error.message, error.hint or "mcpctl daemon restart")
        return
    for name, (detail, ping) in checked.items():
        report.answers[f"servers/{name}"] = detail
        yield _server_finding(detail, ping, login)


def ping_servers(
    client: DaemonClient, names: Sequence[str]
) -> dict[str, tuple[ServerDetail, PingResult | DaemonError]]:
    """Ping servers, and return the state of each with the outcome of its ping. Leaves out removed servers.

    The slowest server delays the others' state. One that is connected by then, although its ping found no
    connection, is pinged again: the outcome must belong to the state.
    """
    found: dict[str, tuple[ServerDetail, PingResult | DaemonError]] = {}
    for _ in range(_PING_ROUNDS):
        pings = client.call_all(
            [("mcpd/ping", {"server": name, "timeout": _PING_TIMEOUT}) for name in names],
            timeout=_PING_TIMEOUT + _ANSWER_TIMEOUT,
        )
        details = client.call_all(  # afterwards, to include what the pings have found out
            [("mcpd/server", {"server": name}) for name in names], timeout=_ANSWER_TIMEOUT
        )
        again: list[str] = []
        for name, detail, ping in zip(names, details, pings, strict=True):
            if isinstance(detail, DaemonError):  # it was removed in the meantime
                found.pop(name, None)
                continue
            found[name] = (detail.value, ping if isinstance(ping, DaemonError) else ping.value)
            if _found_no_connection(ping) and detail.value["server"]["status"] == "connected":
                again.append(name)
        names = again
        if not names:
            break
    return found


def _found_no_connection(ping: object) -> bool:
    """Return whether a ping failed because the server was not connected, or no longer."""
    return isinstance(ping, DaemonError) and ping.code in ("not_ready", "link_lost", "unknown_server")


def _server_finding(
    detail: ServerDetail, ping: PingResult | DaemonError, login: Mapping[str, str] | None
) -> Finding:
    """Judge a server by its state and, if it is connected, by a real request."""
    server = detail["server"]
    name, reason, failure = server["name"], server.get("reason", ""), server.get("last_error")
    check = f"server {name}"
    match server["status"]:
        case "connected":
            if isinstance(ping, DaemonError) and _found_no_connection(ping):
                message = "connected, but not for long enough to be checked"
                return Finding(check, WARN, message, f"mcpctl why {name}")
            if isinstance(ping, DaemonError):
                cause = server.get("degraded") or ping.message
                step = next_step(detail, login) if server.get("degraded") else f"mcpctl reconnect {name}"
                return Finding(check, FAIL, f"connected but not responding: {cause}", step)
            if impaired := impairment(server):
                why = f"; the last time: {failure_summary(failure)}" if failure else ""
                shown = impaired if waiting_summary(server) else f"connected, but {impaired}{why}"
                return Finding(check, WARN, shown, next_step(detail, login))
            took = sum(step["ms"] for step in detail.get("negotiation", ()))
            message = f"connected in {took:.0f} ms, {count(server.get('tools', 0), 'tool')}; responds"
            return Finding(check, OK, message, ms=ping["ms"])
        case "idle":
            return Finding(check, OK, "starts on first use")
        case "disabled":
            return Finding(check, SKIP, reason or "disabled")
        case "pending" if not failure:
            return Finding(check, WARN, reason, next_step(detail, login))
    message = f"[{failure['kind']}] {failure_summary(failure)}" if failure else reason
    return Finding(check, FAIL, message, next_step(detail, login))


def _check_configured_servers(report: DoctorReport, path: str) -> Iterator[Finding]:
    """Without a daemon, check only whether the program of each server exists."""
    for name, spec in (report.loaded.specs if report.loaded is not None else {}).items():
        check = f"server {name}"
        if not spec.enabled:
            yield Finding(check, SKIP, "disabled in its definition")
        elif isinstance(spec, RemoteSpec):
            yield Finding(check, SKIP, "not checked: mcpd is not running")
        elif isinstance(spec, StdioSpec):
            found = find_program(spec.command, spec.env.get("PATH", path))
            if found is None:
                message = f"command not found: {spec.command}"
                yield Finding(check, FAIL, message, "mcpctl edit   (use its full path as `command`)")
            elif spec.cwd and not os.path.isdir(os.path.expanduser(spec.cwd)):
                message = f"working directory {spec.cwd} does not exist"
                yield Finding(check, FAIL, message, "mcpctl edit   (fix its `cwd`)")
            else:
                yield Finding(check, OK, f"runs {found} (not started: mcpd is not running)")
