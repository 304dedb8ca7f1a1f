"""The suggested next command for a server: one line that begins with the command, chosen by the cause.

No other module decides this. The daemon puts it into the result of `mcpd/server`, and the dashboard
shows it. `status`, `why`, `doctor`, `wait` and the commands that connect servers add what only a terminal
knows: the PATH of the user's shell.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs mcpctl 3 ms on every run
if TYPE_CHECKING:
    from typing import Any

    Members = Mapping[str, Any]

_OWN_SIGNALS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""Signals with which a process ends because of a bug of its own."""
_VARIABLE = r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b"


class Shell:
    """Facts that only a terminal knows: where its user's programs are, and how mcpd gets that PATH."""

    def __init__(
        self,
        path: str,
        login_path: str,
        *,
        has_service: Callable[[], bool],
        variables: Container[str] = (),
    ) -> None:
        self.path = path
        """PATH of the terminal."""
        self.login_path = login_path
        """PATH of a new login shell; empty if it is not known."""
        self.has_service = has_service
        """Returns whether the systemd service is installed, which keeps a PATH of its own."""
        self.variables = variables
        """Names of the environment variables that a daemon started from this terminal gets."""


def next_step(detail: Members, shell: Shell | None = None) -> str:
    """Return the command, followed by a remark in parentheses on what to do there.

    `detail` is the result of `mcpd/server` as JSON values. Without `shell`, the PATH of the user's shell is
    unknown. The step for a missing program is then the command that searches that PATH.
    """
    server = detail["server"]
    name, failure = server["name"], server.get("last_error")
    match server["status"]:
        case "connected" if server.get("waiting_calls") and (questions := server.get("questions")):
            return _after_question(detail, questions[0]["client"])
        case "connected" if degraded := server.get("degraded"):
            return _after_degradation(server, degraded)
        case "connected" if any(map(_fails, server.get("connections", ())[1:])):
            return f"mcpctl logs {name}"
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
    return _after_failure(server, failure, detail, shell)


def _fails(connection: Members) -> bool:
    return connection["status"] in ("failed", "pending") and bool(connection.get("last_error"))


def missing_program_step(program: str, shell: Shell | None, *, has_own_path: bool = False) -> str:
    """Return the step for a program that is not in the PATH of mcpd; empty if it has to be installed.

    `has_own_path`: the definition sets PATH in `env`, which replaces that of mcpd.
    """
    from mcpd.files.programs import find_elsewhere, find_program

    for is_here, path in ((True, shell.path), (False, shell.login_path)) if shell else ():
        found = find_program(program, path) if path else None
        if not found:
            continue
        if has_own_path:
            return f"mcpctl edit   (use {found} as its command, or fix PATH in its `env`)"
        command = "mcpctl daemon install" if shell and shell.has_service() else "mcpctl daemon restart"
        which = "this shell" if is_here else "the shell it runs in, so use a new terminal"
        return f"{command}   (uses the PATH of {which}; or use {found} as its command)"
    if others := find_elsewhere(program):
        return f"mcpctl edit   (use {others[0]} as its command)"
    return ""


def unset_variables(messages: Iterable[str]) -> list[str]:
    """Return the names of variables that are not set, if that is the only kind of problem; otherwise none."""
    import re

    names: dict[str, None] = {}
    for message in messages:
        found = re.match(r"the environment variable ([A-Za-z_]\w*) is not set", message)
        if found is None:
            return []
        names[found[1]] = None
    return list(names)


def unset_variable_step(names: Sequence[str], shell: Shell | None) -> str:
    """Return the step for variables that a configuration needs and the environment of mcpd lacks.

    A change of the file does not help, because mcpd reads its environment only when it starts.
    """
    first, values = names[0], " ".join(f"{name}=VALUE" for name in names)
    secret = f"or write ${{secret:{first}}} instead: mcpctl secret set {first}"
    if shell is None:
        return f"mcpctl daemon restart   (with {' '.join(names)} set in the environment of mcpd; {secret})"
    if shell.has_service():
        keep = "until the next boot; to keep it, set it in ~/.config/environment.d/mcpd.conf, too"
        return f"systemctl --user set-environment {values} && mcpctl daemon restart   ({keep}; {secret})"
    if all(name in shell.variables for name in names):
        return f"mcpctl daemon restart   (passes {' '.join(names)} of this shell to mcpd; {secret})"
    return f"export {values} && mcpctl daemon restart   ({secret})"


def _after_question(detail: Members, client: str) -> str:
    """Return the step for calls that wait for the answer of a client."""
    from mcpd.config.definition_view import has_exclusive_calls

    if has_exclusive_calls(detail.get("definition", {})):
        name = detail["server"]["name"]
        return f"mcpctl reconnect {name}   (ends the call; or answer the question in {client})"
    return (
        f'mcpctl edit   (add "share": "client" to the definition, and each client has its own process; '
        f"or answer the question in {client})"
    )


def _after_degradation(server: Members, degraded: str) -> str:
    """Return the step for a server that is connected, but cannot be relied on."""
    name = server["name"]
    if "is stopped" in degraded:
        return f"kill -CONT -{server['pid']}   (continues it; or start it again: mcpctl reconnect {name})"
    if "which was removed" in degraded:
        secret = degraded.partition(" the secret ")[2].partition(",")[0]
        return f"mcpctl secret set {secret}, then: mcpctl reconnect {name}"
    if "/list " in degraded or "lists could not" in degraded:
        return f"mcpctl logs {name}   (mcpd asks for the list again, at least once a minute)"
    if "restarted" not in degraded:
        return f"mcpctl reconnect {name}   (ends its calls in progress)"
    if server["transport"] == "stdio":
        return f"mcpctl logs {name}   (look for the cause of the restarts)"
    return f"mcpctl history {name}   (shows why and when the connection ended)"


def _after_failure(server: Members, failure: Members, detail: Members, shell: Shell | None) -> str:
    again = "" if server["status"] == "pending" else f", then: mcpctl reconnect {server['name']}"
    return (
        _definition_step(server["name"], failure, detail, shell, again)
        or _answer_step(server, failure)
        or _output_step(server, failure, again)
    )


def _definition_step(name: str, failure: Members, detail: Members, shell: Shell | None, again: str) -> str:
    """Return the step if the cause is in the definition, or in what it refers to."""
    message = failure["message"]
    match failure["kind"]:
        case "secret" if path := _loose_secrets_file(message):
            return f"chmod 600 {path}{again}"
        case "secret" if command := _quoted_command(message):
            secret = command.removeprefix("mcpctl secret set ")
            if secret != command and _is_stored(secret):
                return f"mcpctl reconnect {name}   (the secret {secret} is stored now)"
            return command if secret != command else f"{command}{again}"
        case "config" if names := unset_variables(message.split("; ")):
            return unset_variable_step(names, shell)
        case "config":
            return "mcpctl edit   (fix the definition; the server is restarted when the file is saved)"
        case "spawn":
            return _after_spawn_failure(detail, shell)
    return ""


def _answer_step(server: Members, failure: Members) -> str:
    """Return the step if the server, or what is at its address, gave no answer or the wrong one."""
    from mcpd.model.status import NOT_MCP

    name, remote, message = server["name"], server["transport"] != "stdio", failure["message"]
    match failure["kind"]:
        case "http" if failure.get("http_status") == 429 or (failure.get("http_status") or 0) >= 500:
            return f"mcpctl reconnect {name}   (when it has recovered; mcpd also retries automatically)"
        case "http" | "protocol" if remote:
            return "mcpctl edit   (fix its `url`; the service at that address does not speak MCP)"
        case "protocol" if "it is not an MCP server" in message:
            return "mcpctl edit   (fix its command or its arguments; mcpd also retries automatically)"
        case "protocol" if message.startswith(NOT_MCP):
            return f"mcpctl debug {name}   (check its command and arguments, and fix them: mcpctl edit)"
        case "unreachable" if "TLS" in message:
            return "mcpctl edit   (fix its `url` or `caFile`; mcpd also retries automatically)"
        case "unreachable" if "Name or service not known" in message or "No address associated" in message:
            return "mcpctl edit   (check the host name in its `url`; mcpd also retries automatically)"
        case "unreachable":
            return f"mcpctl reconnect {name}   (when the server is running; or fix its `url`: mcpctl edit)"
        case "timeout" if remote:
            return f"mcpctl reconnect {name}   (when it has recovered; or raise the timeout: mcpctl edit)"
    return ""


def _output_step(server: Members, failure: Members, again: str) -> str:
    """Return the step that follows from how a local server ended, and what it wrote."""
    name, stderr = server["name"], failure.get("stderr", [])
    match failure["kind"]:
        case "timeout" if "`connectTimeout`" in failure["message"] and not _names_a_cause(stderr):
            return "mcpctl edit   (raise its `connectTimeout`; it did not finish starting in time)"
        case "wedged" if server["status"] == "pending" or server.get("retry_at"):
            return f"mcpctl wait {name}   (mcpd restarts it automatically)"
        case "resources":
            return "mcpctl top   (stop what uses most, or raise the limit; mcpd also retries automatically)"
        case "internal":
            return "mcpctl daemon logs   (please report the error shown there)"
        case _ if port := port_in_use(stderr):
            return f"ss -ltnp 'sport = :{port}'   (shows which program uses its port; stop it){again}"
        case _ if variable := missing_variable(stderr):
            return f"mcpctl edit   (add {variable} to its `env`)"
        case _ if needs_former_sdk(stderr):
            args = '"--with", "mcp<2"'
            return (
                f"mcpctl edit   (it needs the Python package mcp before 2: begin the args of uvx with {args})"
            )
        case "killed" if failure.get("signal") not in _OWN_SIGNALS and not _names_a_cause(stderr):
            return f"mcpctl reconnect {name}   (something else ended it; mcpd also retries automatically)"
        case _ if stderr:
            return f"mcpctl logs {name}   (fix the error shown there){again}"
        case _ if server["transport"] == "stdio":
            return f"mcpctl debug {name}   (run its command by hand to see the error){again}"
    return f"mcpctl debug {name}{again}"


def needs_login(definition: Members) -> bool:
    """Return whether a server that wants credentials needs a login, and no change of its definition or of a
    secret in it."""
    return not _credentials_step(definition, "")


def _after_refusal(detail: Members) -> str:
    """Return the step for a server that wants credentials, or rejected those in its definition."""
    name = detail["server"]["name"]
    if step := _credentials_step(detail.get("definition", {}), name):
        return step
    return f"mcpctl login {name}   (or add an `Authorization` header under `headers`: mcpctl edit)"


def _credentials_step(definition: Members, name: str) -> str:
    """Return the step for a server that refused the credentials in its definition, or must have some there;
    empty if it needs a login."""
    import re

    from mcpd.config import definition_view

    headers, unattended = (
        definition_view.headers(definition),
        definition_view.oauth_without_person(definition),
    )
    values = (*headers.values(), definition_view.url(definition), *unattended.values())
    credentials = " ".join(map(str, values))
    if secrets := re.findall(r"\$\{secret:([A-Za-z_]\w*)", credentials):
        return f"mcpctl secret set {secrets[0]}   (the server rejected the stored value)"
    if sources := re.findall(r"\$\{((?:file|cmd|credential):[^}]*)\}", credentials):
        return f"mcpctl reconnect {name}   (when ${{{sources[0]}}} has another value: this one was rejected)"
    if variables := re.findall(r"\$\{(?:env:)?([A-Za-z_]\w*)\}", credentials):
        return f"mcpctl edit   (the server rejected ${{{variables[0]}}}; a secret can be changed more easily)"
    if any(key.lower() == "authorization" for key in headers):
        return "mcpctl edit   (the server rejected the `Authorization` header under `headers`)"
    if unattended:
        return "mcpctl edit   (fix `oauth`: the authorization server rejected it)"
    if definition_view.forbids_login(definition):
        return "mcpctl edit   (remove `oauth`, or add an `Authorization` header under `headers`)"
    return ""


def _after_spawn_failure(detail: Members, shell: Shell | None) -> str:
    """Return the step for a program that mcpd could not run."""
    import shlex

    from mcpd.config import definition_view
    from mcpd.files.programs import find_program

    definition, name = detail.get("definition", {}), detail["server"]["name"]
    program = (detail.get("command") or definition_view.command(definition) or [""])[0]
    path, message = detail.get("path", ""), detail["server"]["last_error"]["message"]
    place = shlex.quote(detail.get("executable") or program)
    if "`#!` line" in message:
        return f"head -n 1 {place}   (install the interpreter it names), then: mcpctl reconnect {name}"
    if "is not executable" in message:
        return f"chmod +x {place}, then: mcpctl reconnect {name}"
    if not program or "/" in program or detail.get("executable") or find_program(program, path):
        return "mcpctl edit   (fix the definition; the server is restarted when the file is saved)"
    has_own_path = "PATH" in definition_view.environment(definition)
    if step := missing_program_step(program, shell, has_own_path=has_own_path):
        return step
    if shell is None:
        return f"mcpctl why {name}   (looks for {program} in the PATH of your shell)"
    return install_step(program, name)


def install_step(program: str, server: str) -> str:
    """Return the step for a program that is nowhere on this machine."""
    import re

    if re.search(r"^[A-Za-z]:[\\/]|\\|\.(exe|cmd|bat|ps1)$", program, re.IGNORECASE):
        bare = re.sub(r"\.\w+$", "", re.split(r"[\\/]", program)[-1])
        return f"mcpctl edit   (this is a path of Windows: use {bare} as its command)"
    if program == "python":
        return "mcpctl edit   (use python3 as its command)"
    if command := _INSTALLERS.get(program):
        return f"{command}, then: mcpctl reconnect {server}"
    return f"mcpctl edit   ({program} is not installed: install it, or correct the command)"


_APT = "sudo apt install --yes"
_INSTALLERS = {
    **dict.fromkeys(("uv", "uvx"), f"{_APT} pipx && pipx install uv"),
    **dict.fromkeys(("node", "npm", "npx"), f"{_APT} nodejs npm"),
    **dict.fromkeys(("bun", "bunx"), f"{_APT} npm && npm install --global bun --prefix ~/.local"),
    "docker": f"{_APT} docker.io",
    **{name: f"{_APT} {name}" for name in ("pipx", "podman", "git", "python3", "cargo", "ruby")},
}
"""Programs that many definitions use → how to install them on Debian and Ubuntu."""


def port_in_use(stderr: Sequence[str]) -> str:
    """Return the port that another program uses, according to a server's stderr; empty if there is none."""
    import re

    for line in reversed(stderr):
        if re.search(r"EADDRINUSE|address (is )?already in use|port \d+ is (already )?in use", line, re.I):
            found = re.search(r"[:\]](\d{2,5})\b|port (\d{2,5})\b|, (\d{2,5})\)", line, re.I)
            if found:
                return next(group for group in found.groups() if group)
    return ""


def needs_person(failure: Members) -> bool:
    """Return whether a server that mcpd starts again will fail again until a person acts: its process ends by
    itself, and the line of stderr that names the cause is about a missing variable.

    Other causes that need a person are known to mcpd, which then does not retry.
    """
    from mcpd.model.status import informative_line

    cause = informative_line(failure.get("stderr", []), only_causes=True)
    return failure["kind"] == "exited" and bool(missing_variable([cause]))


def missing_variable(stderr: Sequence[str]) -> str:
    """Return the environment variable that a server says it lacks on stderr; empty if there is none."""
    import re

    complaint = r"requir|missing|not set|must|undefined|unset|not found|provide|KeyError"
    for line in reversed(stderr):
        if re.search(complaint, line, re.IGNORECASE) and (found := re.search(_VARIABLE, line)):
            return found[1]
    return ""


def needs_former_sdk(stderr: Sequence[str]) -> bool:
    """Return whether a server says on stderr that it lacks what version 2 of MCP's Python SDK has removed.

    Many servers do not limit the version, so a runner such as uvx installs the newest one.
    """
    import re

    removed = r"No module named 'mcp\.|cannot import name '\w+' from 'mcp['.]"
    methods = r"'Server' object has no attribute '(list|call|read|get|set|subscribe|request)_"
    return any(re.search(f"{removed}|{methods}", line) for line in stderr)


def _names_a_cause(stderr: Sequence[str]) -> bool:
    from mcpd.model.status import informative_line

    return bool(informative_line(stderr, only_causes=True))


def _loose_secrets_file(message: str) -> str:
    """Return the secret store, quoted for a shell, if it is the cause that others can access it."""
    import shlex

    from mcpd.config.secret_store import secrets_path

    path = str(secrets_path(os.environ))
    return shlex.quote(path) if f"(chmod 600 {path})" in message else ""


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
