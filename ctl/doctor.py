"""One examination: every check in its order, and what the daemon said, for the report and for the bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ctl import definition_fields, doctor_checks, login_shell, service, systemd_units
from ctl.context import Session
from ctl.daemon_client import Json, LocalClient
from ctl.doctor_checks import FAIL, OK, SKIP, WARN, Finding
from ctl.errors import CtlError, DaemonUnreachable, Refused
from ctl.next_steps import next_command
from ctl.status_view import mapping, number, objects, strings, what_failed
from ctl.terminal_text import count, seconds_since
from mcpd import __version__
from mcpd.config.loader import Loaded, load
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, StdioSpec
from mcpd.support import paths

_ANSWER = 5.0
_ROUND_TRIP = 10.0
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Examination:
    """What was found. `answers` are the daemon's, by method and server; empty without one."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.answers: dict[str, Json] = {}
        self.loaded: Loaded | None = None


def examine(session: Session, environ: Mapping[str, str], *, shell: bool) -> Examination:
    """Look at everything. Starts no daemon, and raises nothing that can be a finding."""
    seen = Examination()
    session.may_start = False
    try:
        path = session.socket
    except DaemonUnreachable as error:
        seen.findings.append(Finding("socket", FAIL, error.message, error.hint or "set MCPD_SOCKET"))
        path = ""
    if path:
        seen.findings += doctor_checks.socket(path)
        seen.findings += _daemon(seen, path)
        seen.findings += doctor_checks.service(path)
    state, cache = paths.state_dir(environ), paths.cache_dir(environ)
    seen.findings += doctor_checks.directories({"state directory": state, "cache directory": cache})
    seen.findings += _configuration(seen, environ)
    seen.findings += doctor_checks.secrets(environ)
    login = login_shell.login_environment(environ) if shell else None
    version = seen.answers.get("mcpd/version", {})
    daemon_path = str(version["search_path"]) if version.get("search_path") else None
    if shell:
        seen.findings += doctor_checks.search_path(daemon_path, login)
    looked_in = daemon_path or (login or environ).get("PATH", _DEFAULT_PATH)
    seen.findings += doctor_checks.programs(_needed(seen), looked_in, login)
    seen.findings += _servers(seen, looked_in)
    return seen


def _daemon(seen: Examination, path: str) -> Iterator[Finding]:
    if systemd_units.serves(path) and service.socket_listens():
        try:
            active = systemd_units.properties().get("ActiveState") == "active"
        except CtlError:
            active = False
        if not active:  # asking would start it
            yield Finding("daemon", SKIP, "not running; systemd starts it with the first command")
            return
    try:
        with LocalClient(path) as client:
            version = seen.answers["mcpd/version"] = client.call("mcpd/version", timeout=_ANSWER).value
            for method in ("mcpd/status", "mcpd/config", "mcpd/stats", "mcpd/history"):
                asked: Json = {"limit": 1000} if method == "mcpd/history" else {}
                try:
                    seen.answers[method] = client.call(method, asked, timeout=_ANSWER).value
                except Refused:
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
        yield from doctor_checks.newer_files(-age)


def _configuration(seen: Examination, environ: Mapping[str, str]) -> Iterator[Finding]:
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
            yield Finding("configuration", FAIL, words, _edit(problem.get("fix")))
        if not objects(status.get("problems")):
            number = len(objects(seen.answers["mcpd/status"].get("servers")))
            yield from _loaded(number, str(status.get("source")), strings(status.get("warnings")))
    elif trouble is not None:
        for each in trouble.problems:
            words = f"{each.message} at {each.path} of {trouble.source}"
            yield Finding("configuration", FAIL, words, _edit(each.fix))
    elif seen.loaded is not None:
        yield from _loaded(len(seen.loaded.specs), seen.loaded.source, seen.loaded.warnings)
    path = status.get("path") or (seen.loaded.path if seen.loaded is not None else "")
    if path:
        yield from doctor_checks.configuration_file(str(path), seen.loaded.secrets if seen.loaded else ())


def _loaded(number: int, source: str, warnings: Sequence[str]) -> Iterator[Finding]:
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


def _edit(fix: object) -> str:
    return f"mcpctl edit   ({fix})" if fix else "mcpctl edit"


def _needed(seen: Examination) -> set[str]:
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
        return doctor_checks.commands([word for word in words if "${" not in word])
    specs = list(seen.loaded.specs.values()) if seen.loaded is not None else []
    programs = [spec for spec in specs if isinstance(spec, StdioSpec)]
    return doctor_checks.commands([spec.command for spec in programs if spec.enabled])


def _servers(seen: Examination, looked_in: str) -> Iterator[Finding]:
    statuses = objects(seen.answers.get("mcpd/status", {}).get("servers"))
    if "mcpd/status" not in seen.answers:
        yield from _unstarted(seen, looked_in)
        return
    names = [str(status.get("name")) for status in statuses]
    try:
        with LocalClient(str(mapping(seen.answers["mcpd/status"].get("daemon")).get("socket"))) as client:
            details = client.call_all([("mcpd/server", {"server": name}) for name in names], timeout=_ANSWER)
            pings = client.call_all(
                [("mcpd/ping", {"server": name, "timeout": _ROUND_TRIP}) for name in names],
                timeout=_ROUND_TRIP + _ANSWER,
            )
    except CtlError as error:
        yield Finding("servers", FAIL, error.message, error.hint or "mcpctl daemon restart")
        return
    for status, detail, ping in zip(statuses, details, pings, strict=True):
        if not isinstance(detail, Refused):
            seen.answers[f"server/{status.get('name')}"] = detail.value
        steps = [] if isinstance(detail, Refused) else objects(detail.value.get("negotiation"))
        pong = None if isinstance(ping, Refused) else ping.value
        yield _server(status, steps, pong, ping.message if isinstance(ping, Refused) else "")


def _server(status: Json, steps: list[Json], pong: Json | None, silence: str) -> Finding:
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
            message = what_failed(failure.get("message") or status.get("reason"))
            return Finding(check, FAIL, f"[{failure.get('kind')}] {message}", next_command(status))


def _unstarted(seen: Examination, looked_in: str) -> Iterator[Finding]:
    """Without a daemon nothing is started: whether its program is there is all that can be said."""
    for name, spec in (seen.loaded.specs if seen.loaded is not None else {}).items():
        check = f"server {name}"
        if not spec.enabled:
            yield Finding(check, SKIP, "switched off in its definition")
        elif isinstance(spec, RemoteSpec):
            yield Finding(check, SKIP, "not asked: no daemon runs")
        elif isinstance(spec, StdioSpec):
            found = login_shell.found_in(spec.command, spec.env.get("PATH", looked_in))
            if found is None:
                words = f"command not found: {spec.command}"
                yield Finding(check, FAIL, words, "mcpctl edit   (write its full path as `command`)")
            elif spec.cwd and not os.path.isdir(os.path.expanduser(spec.cwd)):
                words = f"its directory {spec.cwd} does not exist"
                yield Finding(check, FAIL, words, "mcpctl edit   (correct its `cwd`)")
            else:
                yield Finding(check, OK, f"runs {found} (not started: no daemon runs)")
