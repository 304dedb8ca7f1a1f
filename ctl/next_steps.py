"""The command to type next for a server: one line that begins with the command, decided from the cause.

The only place that decides it: `status`, `why`, `doctor`, `wait` and the commands that connect servers all
print what this module returns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import Failure, ServerDetail, ServerStatus

OTHER_PROGRAM = "another program named mcpd"
"""In the message about a configuration file that is not ours (mcpd/config/loader.py)."""
_VARIABLE = r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b"


def next_step(detail: ServerDetail, login: Mapping[str, str] | None = None) -> str:
    """Return the command, followed by a remark in parentheses on what to do there.

    `login` is the environment of the login shell, if it is known. Programs are looked for in the PATH of this
    process first.
    """
    server = detail["server"]
    name, failure = server["name"], server.get("last_error")
    match server["status"]:
        case "connected" if server.get("waiting_calls") and (questions := server.get("questions")):
            return _after_question(detail, questions[0]["client"])
        case "connected":
            return f"mcpctl list-tools {name}"
        case "idle":
            return f"mcpctl connect {name}   (or call one of its tools to start it)"
        case "disabled" if server.get("off_until"):
            return f"mcpctl enable {name}   (or wait until it is enabled automatically)"
        case "disabled":  # by `mcpctl disconnect`, or by `mcpctl disable`
            by_hand = server.get("reason", "").startswith("disconnected")
            return f"mcpctl {'connect' if by_hand else 'enable'} {name}"
        case "needs-auth":
            return _after_refusal(detail)
        case "pending" if not failure:
            return f"mcpctl wait {name}"
    if not failure:
        return f"mcpctl debug {name}, then: mcpctl reconnect {name}"
    return _after_failure(server, failure, detail, login)


def config_step(problems: Iterable[Mapping[str, object]], path: object, fix: object = "") -> str:
    """Return the step for a configuration file with errors. `fix` is a remark on what to change in it.

    The file of another program must not be edited, so it is moved and its servers are imported.
    """
    if path and any(OTHER_PROGRAM in str(each.get("message")) for each in problems):
        import shlex

        directory, _, name = str(path).rpartition("/")
        moved = shlex.quote(f"{directory}/other-{name}")
        return f"mv {shlex.quote(str(path))} {moved} && mcpctl import {moved}"
    return f"mcpctl edit   ({fix})" if fix else "mcpctl edit"


def _after_question(detail: ServerDetail, client: str) -> str:
    """Return the step for calls that wait for the answer of a client."""
    from ctl.definition_view import has_exclusive_calls

    if has_exclusive_calls(detail.get("definition", {})):
        name = detail["server"]["name"]
        return f"mcpctl reconnect {name}   (ends the call; or answer the question in {client})"
    return (
        f'mcpctl edit   (add "share": "client" to the definition, and each client has its own process; '
        f"or answer the question in {client})"
    )


def _after_failure(
    server: ServerStatus, failure: Failure, detail: ServerDetail, login: Mapping[str, str] | None
) -> str:
    name, remote, message = server["name"], server["transport"] != "stdio", failure["message"]
    again = "" if server["status"] == "pending" else f", then: mcpctl reconnect {name}"
    stderr = failure.get("stderr", [])
    match failure["kind"]:
        case "secret" if command := _quoted_command(message):
            secret = command.removeprefix("mcpctl secret set ")
            if secret != command and _is_stored(secret):
                return f"mcpctl reconnect {name}   (the secret {secret} is stored now)"
            return command if secret != command else f"{command}{again}"
        case "config":
            return "mcpctl edit   (fix the definition; the server is restarted when the file is saved)"
        case "spawn":
            return _after_spawn_failure(detail, login)
        case "http" if failure.get("http_status") == 429 or (failure.get("http_status") or 0) >= 500:
            return f"mcpctl reconnect {name}   (when it has recovered; mcpd also retries automatically)"
        case "http" | "protocol" if remote:
            return "mcpctl edit   (fix its `url`; the service at that address does not speak MCP)"
        case "unreachable" if "TLS" in message:
            return "mcpctl edit   (fix its `url` or `caFile`; mcpd also retries automatically)"
        case "unreachable":
            return f"mcpctl reconnect {name}   (when the server is running; or fix its `url`: mcpctl edit)"
        case "timeout" if remote:
            return f"mcpctl reconnect {name}   (when it has recovered; or raise the timeout: mcpctl edit)"
        case "timeout" if "`connectTimeout`" in message and not _names_a_cause(stderr):
            return "mcpctl edit   (raise its `connectTimeout`; it did not finish starting in time)"
        case "internal":
            return "mcpctl daemon logs   (please report the error shown there)"
        case _ if port := port_in_use(stderr):
            return f"ss -ltnp 'sport = :{port}'   (shows which program uses its port; stop it){again}"
        case _ if variable := missing_variable(stderr):
            return f"mcpctl edit   (add {variable} to its `env`)"
        case _ if stderr:
            return f"mcpctl logs {name}   (fix the error shown there){again}"
        case _ if not remote:
            return f"mcpctl debug {name}   (run its command by hand to see the error){again}"
    return f"mcpctl debug {name}{again}"


def _after_refusal(detail: ServerDetail) -> str:
    """Return the step for a server that wants credentials, or rejected those in its definition."""
    import re

    from ctl import definition_view

    definition = detail.get("definition", {})
    headers = definition_view.headers(definition)
    credentials = " ".join([*map(str, headers.values()), definition_view.url(definition)])
    if secrets := re.findall(r"\$\{secret:([A-Za-z_]\w*)", credentials):
        return f"mcpctl secret set {secrets[0]}   (the server rejected the stored value)"
    if variables := re.findall(r"\$\{(?:env:)?([A-Za-z_]\w*)\}", credentials):
        return f"mcpctl edit   (the server rejected ${{{variables[0]}}}; a secret can be changed more easily)"
    if any(key.lower() == "authorization" for key in headers):
        return "mcpctl edit   (the server rejected the `Authorization` header under `headers`)"
    if definition_view.forbids_login(definition):
        return "mcpctl edit   (remove `oauth`, or add an `Authorization` header under `headers`)"
    name = detail["server"]["name"]
    return f"mcpctl login {name}   (or add an `Authorization` header under `headers`: mcpctl edit)"


def _after_spawn_failure(detail: ServerDetail, login: Mapping[str, str] | None) -> str:
    """Return the step for a program that mcpd could not run."""
    from ctl import definition_view, login_shell, systemd_units

    definition = detail.get("definition", {})
    program = (detail.get("command") or definition_view.command(definition) or [""])[0]
    path = detail.get("path", "")
    if not program or "/" in program or detail.get("executable") or login_shell.find_program(program, path):
        return "mcpctl edit   (fix the definition; the server is restarted when the file is saved)"
    for here, found in (
        (True, login_shell.find_program(program, os.environ.get("PATH", ""))),
        (False, login_shell.find_program(program, (login or {}).get("PATH", ""))),
    ):
        if not found:
            continue
        if "PATH" in definition_view.environment(definition):  # overrides the daemon's
            return f"mcpctl edit   (use {found} as its command, or fix PATH in its `env`)"
        command = "mcpctl daemon install" if systemd_units.is_installed() else "mcpctl daemon restart"
        shell = "this shell" if here else "the shell it runs in, so use a new terminal"
        return f"{command}   (uses the PATH of {shell}; or use {found} as its command)"
    if others := login_shell.find_elsewhere(program):
        return f"mcpctl edit   (use {others[0]} as its command)"
    return f"install {program}, then: mcpctl reconnect {detail['server']['name']}"


def port_in_use(stderr: Sequence[str]) -> str:
    """Return the port that another program uses, according to a server's stderr; empty if there is none."""
    import re

    for line in reversed(stderr):
        if re.search(
            r"EADDRINUSE|address (?:is )?already in use|port \d+ is (?:already )?in use", line, re.I
        ):
            found = re.search(r"[:\]](\d{2,5})\b|port (\d{2,5})\b|, (\d{2,5})\)", line, re.I)
            if found:
                return next(group for group in found.groups() if group)
    return ""


def missing_variable(stderr: Sequence[str]) -> str:
    """Return the environment variable that a server says it lacks on stderr; empty if there is none."""
    import re

    complaint = r"requir|missing|not set|must|undefined|unset|not found|provide|KeyError"
    for line in reversed(stderr):
        if re.search(complaint, line, re.IGNORECASE) and (found := re.search(_VARIABLE, line)):
            return found[1]
    return ""


def _names_a_cause(stderr: Sequence[str]) -> bool:
    from mcpd.model.failure_summary import informative_line

    return bool(informative_line(stderr, only_causes=True))


def _is_stored(name: str) -> bool:
    from mcpd.config.secret_store import read_secrets
    from mcpd.model.errors import BadSpec

    try:
        return name in read_secrets(os.environ)
    except BadSpec:
        return False


def _quoted_command(message: str) -> str:
    """Return the `mcpctl` command quoted in one of mcpd's own messages; empty if there is none.

    Not for messages that quote a server: it could name any command.
    """
    _, found, rest = message.partition("`mcpctl ")
    return f"mcpctl {rest.partition('`')[0]}" if found else ""
