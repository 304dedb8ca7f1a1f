"""One examination: every check in its order, and what the daemon said, for the report and for the bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ctl import definition_fields, doctor_checks, login_shell, service, systemd_units
from ctl.context import CliContext
from ctl.daemon_client import DaemonClient, Json
from ctl.doctor_checks import FAIL, OK, SKIP, WARN, Finding
from ctl.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.next_steps import next_command
from ctl.status_view import mapping, number, objects, short_message, strings
from ctl.terminal_text import count, seconds_since
from mcpd import __version__
from mcpd.config.loader import LoadedConfig, load
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, StdioSpec
from mcpd.support import paths

_ANSWER_TIMEOUT = 5.0
_PING_TIMEOUT = 10.0
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class DoctorReport:
    """What was found. `answers` are the daemon's, by method and server; empty without one."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.answers: dict[str, Json] = {}
        self.loaded: LoadedConfig | None = None


def run_checks(cli: CliContext, environ: Mapping[str, str], *, shell: bool) -> DoctorReport:
    """Look at everything. Starts no daemon, and raises nothing that can be a finding."""
    seen = DoctorReport()
    cli.may_start = False
    try:
        path = cli.socket
    except DaemonUnreachable as error:
        seen.findings.append(Finding("socket", FAIL, error.message, error.hint or "set MCPD_SOCKET"))
        path = ""
    if path:
        seen.findings += doctor_checks.check_socket(path)
        seen.findings += _check_daemon(seen, path)
        seen.findings += doctor_checks.check_service(path)
    state, cache = paths.state_dir(environ), paths.cache_dir(environ)
    seen.findings += doctor_checks.check_directories({"state directory": state, "cache directory": cache})
    seen.findings += _check_configuration(seen, environ)
    seen.findings += doctor_checks.check_secrets(environ)
    login = login_shell.login_environment(environ) if shell else None
    version = seen.answers.get("mcpd/version", {})
    daemon_path = str(version["search_path"]) if version.get("search_path") else None
    if shell:
        seen.findings += doctor_checks.check_path(daemon_path, login)
    looked_in = daemon_path or (login or environ).get("PATH", _DEFAULT_PATH)
    seen.findings += doctor_checks.check_programs(_needed_programs(seen), looked_in, login)
    seen.findings += _check_servers(seen, looked_in)
    return seen


def _check_daemon(seen: DoctorReport, path: str) -> Iterator[Finding]:
    if systemd_units.manages_socket(path) and service.socket_is_active():
        try:
            active = systemd_units.service_properties().get("ActiveState") == "active"
        except CtlError:
            active = False
        if not active:  # asking would start it
            yield Finding("daemon", SKIP, "not running; systemd starts it with the first command")
            return
    try:
        with DaemonClient(path) as client:
            version = seen.answers["mcpd/version"] = client.call(
                "mcpd/version", timeout=_ANSWER_TIMEOUT
            ).value
            for method in ("mcpd/status", "mcpd/config", "mcpd/stats", "mcpd/history"):
                asked: Json = {"limit": 1000} if method == "mcpd/history" else {}
                try:
                    seen.answers[method] = client.call(method, asked, timeout=_ANSWER_TIMEOUT).value
                except DaemonError:
                    continue  # an older daemon, which the version below says
    except DaemonUnreachable as error:
        yield Finding(
            "daemon", SKIP if error.message.startswith("no mcpd") else FAIL, error.message, error.hint
        )
        return
    except CtlError as error:
        yield Finding("daemon", FAIL, f"it does not answer: {error.message}", "mcpctl daemon restart")
        return
    running = str(version.get("version"))
    if running != __version__:
        words = f"mcpd {running} runs, and this is mcpctl {__version__}"
        yield Finding("daemon", FAIL, words, "mcpctl daemon restart")
    else:
        yield Finding("daemon", OK, f"mcpd {running} answers (pid {version.get('pid')})")
    age = seconds_since(str(version.get("started_at", "")), 0.0)
    if age is not None:
        yield from doctor_checks.check_installation(-age)


def _check_configuration(seen: DoctorReport, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The daemon's word where there is one: its environment may have what ours lacks."""
    trouble: BadSpec | None = None
    try:
        seen.loaded = load(None, environ)
    except BadSpec as error:
        trouble = error
    status = mapping(seen.answers.get("mcpd/status", {}).get("config"))
    if status:
        for problem in objects(status.get("problems")):
            words = f"{problem.get('message')} at {problem.get('path')} (the last good set stays in force)"
            yield Finding("configuration", FAIL, words, _edit_fix(problem.get("fix")))
        if not objects(status.get("problems")):
            number = len(objects(seen.answers["mcpd/status"].get("servers")))
            yield from _loaded_findings(number, str(status.get("source")), strings(status.get("warnings")))
    elif trouble is not None:
        for each in trouble.problems:
            words = f"{each.message} at {each.path} of {trouble.source}"
            yield Finding("configuration", FAIL, words, _edit_fix(each.fix))
    elif seen.loaded is not None:
        yield from _loaded_findings(len(seen.loaded.specs), seen.loaded.source, seen.loaded.warnings)
    path = status.get("path") or (seen.loaded.path if seen.loaded is not None else "")
    if path:
        yield from doctor_checks.check_file_permissions(str(path), seen.loaded.secrets if seen.loaded else ())


def _loaded_findings(number: int, source: str, warnings: Sequence[str]) -> Iterator[Finding]:
    if source == "none":
        words = "no servers yet"
        yield Finding(
            "configuration", SKIP, words, "mcpctl add time -- uvx mcp-server-time, or: mcpctl import"
        )
        return
    for warning in warnings:  # some end with the command that mends them
        words, _, command = warning.partition("; mcpctl ")
        yield Finding("configuration", WARN, words, f"mcpctl {command or 'edit'}")
    yield Finding("configuration", OK, f"{count(number, 'server')} from {source}")


def _edit_fix(fix: object) -> str:
    return f"mcpctl edit   ({fix})" if fix else "mcpctl edit"


def _needed_programs(seen: DoctorReport) -> set[str]:
    """The programs that definitions name, as the daemon has them or as the file does."""
    view = mapping(seen.answers.get("mcpd/config", {}).get("servers"))
    if view:
        off = {
            str(status.get("name"))
            for status in objects(seen.answers.get("mcpd/status", {}).get("servers"))
            if status.get("status") == "disabled"
        }
        on = [mapping(view[name]) for name in view if name not in off]
        words = [word for definition in on for word in definition_fields.command(definition)[:1]]
        return doctor_checks.path_commands([word for word in words if "${" not in word])
    specs = list(seen.loaded.specs.values()) if seen.loaded is not None else []
    programs = [spec for spec in specs if isinstance(spec, StdioSpec)]
    return doctor_checks.path_commands([spec.command for spec in programs if spec.enabled])


def _check_servers(seen: DoctorReport, looked_in: str) -> Iterator[Finding]:
    statuses = objects(seen.answers.get("mcpd/status", {}).get("servers"))
    if "mcpd/status" not in seen.answers:
        yield from _check_configured_servers(seen, looked_in)
        return
    names = [str(status.get("name")) for status in statuses]
    try:
        with DaemonClient(str(mapping(seen.answers["mcpd/status"].get("daemon")).get("socket"))) as client:
            details = client.call_all(
                [("mcpd/server", {"server": name}) for name in names], timeout=_ANSWER_TIMEOUT
            )
            pings = client.call_all(
                [("mcpd/ping", {"server": name, "timeout": _PING_TIMEOUT}) for name in names],
                timeout=_PING_TIMEOUT + _ANSWER_TIMEOUT,
            )
    except CtlError as error:
        yield Finding("servers", FAIL, error.message, error.hint or "mcpctl daemon restart")
        return
    for status, detail, ping in zip(statuses, details, pings, strict=True):
        if not isinstance(detail, DaemonError):
            seen.answers[f"server/{status.get('name')}"] = detail.value
        steps = [] if isinstance(detail, DaemonError) else objects(detail.value.get("negotiation"))
        pong = None if isinstance(ping, DaemonError) else ping.value
        yield _server_finding(status, steps, pong, ping.message if isinstance(ping, DaemonError) else "")


def _server_finding(status: Json, steps: list[Json], pong: Json | None, silence: str) -> Finding:
    """How one server is: from its state, and from a real round trip where it is connected."""
    name, state, failure = status.get("name"), status.get("status"), mapping(status.get("last_error"))
    check = f"server {name}"
    took = sum(ms for step in steps if isinstance(ms := step.get("ms"), (int, float)))
    match state:
        case "connected" if pong is None:
            return Finding(
                check, FAIL, f"connected, and does not answer: {silence}", f"mcpctl reconnect {name}"
            )
        case "connected":
            ms = pong.get("ms") if pong is not None else None
            tools = count(int(number(status.get("tools"))), "tool")
            words = f"connected in {took:.0f} ms, {tools}; answers"
            return Finding(check, OK, words, ms=ms if isinstance(ms, (int, float)) else None)
        case "idle":
            return Finding(check, OK, "starts on first use")
        case "disabled":
            return Finding(check, SKIP, str(status.get("reason") or "switched off"))
        case "pending" if not failure:
            return Finding(check, WARN, str(status.get("reason")), next_command(status))
        case _:
            message = short_message(failure.get("message") or status.get("reason"))
            return Finding(check, FAIL, f"[{failure.get('kind')}] {message}", next_command(status))


def _check_configured_servers(seen: DoctorReport, looked_in: str) -> Iterator[Finding]:
    """Without a daemon nothing is started: whether its program is there is all that can be said."""
    for name, spec in (seen.loaded.specs if seen.loaded is not None else {}).items():
        check = f"server {name}"
        if not spec.enabled:
            yield Finding(check, SKIP, "switched off in its definition")
        elif isinstance(spec, RemoteSpec):
            yield Finding(check, SKIP, "not asked: no daemon runs")
        elif isinstance(spec, StdioSpec):
            found = login_shell.find_program(spec.command, spec.env.get("PATH", looked_in))
            if found is None:
                words = f"command not found: {spec.command}"
                yield Finding(check, FAIL, words, "mcpctl edit   (write its full path as `command`)")
            elif spec.cwd and not os.path.isdir(os.path.expanduser(spec.cwd)):
                words = f"its directory {spec.cwd} does not exist"
                yield Finding(check, FAIL, words, "mcpctl edit   (correct its `cwd`)")
            else:
                yield Finding(check, OK, f"runs {found} (not started: no daemon runs)")
