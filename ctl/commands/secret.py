"""`mcpctl secret`: set, list and remove secrets. Stored values are never printed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from ctl.cli.arguments import seconds_option
from ctl.cli.errors import CtlError, DaemonError, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.daemon.client import Json
from ctl.explain.config_check import configuration_path
from ctl.show.progress import change_each, failed_member, hint_for, show_errors
from ctl.show.status import BROKEN
from mcpd.config.edit_config_file import put_variable
from mcpd.config.secret_store import MAX_SECRET_SIZE, SECRET_NAME, change_secrets, read_secrets, secrets_path
from mcpd.model.errors import BadSpec


def _complete_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in read_secrets(os.environ) if name.startswith(incomplete)]
    except BadSpec:
        return []


@click.group(epilog="Examples:\n\n\b\n  mcpctl secret set GITHUB_TOKEN\n  mcpctl secret list")
def secret() -> None:
    """Manage the secrets referenced as ${secret:NAME}."""


@secret.command(
    "set",
    epilog="Examples:\n\n\b\n  mcpctl secret set GITHUB_TOKEN\n  pass show github | mcpctl secret set TOKEN",
)
@click.argument("name", shell_complete=_complete_names)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option("--env", "as_variable", is_flag=True, help="Also pass it to all servers as the variable NAME.")
@seconds_option("--wait", 30.0, "How long to wait for the servers that are retried; 0 does not wait.")
@click.pass_obj
def set_(cli: CliContext, name: str, more: tuple[str, ...], as_variable: bool, wait: float) -> int:
    """Store a secret, or change its value.

    Then retries the servers that use it and have failed or need a login.

    Prompts for the value without showing it, or reads it from stdin. It cannot be given as an argument,
    because arguments are visible to other processes and are kept in the shell history.
    """
    how = "type the value at the prompt, or send it to stdin: COMMAND | mcpctl secret set NAME"
    if more or "=" in name:
        raise UsageError("the value of a secret cannot be given as an argument", hint=how)
    if not SECRET_NAME.fullmatch(name):
        raise UsageError(f"invalid secret name '{name}'", hint="use letters, digits and _, no digit first")
    value = _prompt_for_value(name) if sys.stdin.isatty() else _read_stdin()
    if not value:
        is_stored = name in _stored_secrets()
        hint = f"delete it with: mcpctl secret remove {name}" if is_stored else how
        raise UsageError("empty value; nothing was stored", hint=hint)
    path = _change({name: value})
    used = _servers_by_secret(cli).get(name.partition("@")[0], [])
    if not cli.out.json:
        cli.out.line(f"{name}: stored in {path}")
    if as_variable:
        _pass_to_all(cli, name)
    waiting, errors = _retry_broken(cli, used, wait)
    running = [server for server in used if server not in waiting and "@" not in name]
    if cli.out.json:
        failed = failed_member(errors)
        cli.out.json_value({"name": name, "path": path, "used_by": used, "reconnected": waiting, **failed})
    elif running:
        cli.out.next_step(f"mcpctl reconnect {' '.join(running)}   (still running with the old value)")
    return 0


def _pass_to_all(cli: CliContext, name: str) -> None:
    """Add a secret to `settings.env`. Restarts the servers whose environment this changes."""
    path, running = configuration_path(cli)
    put_variable(path, name, f"${{secret:{name}}}")
    if running:
        cli.call("mcpd/reload")
    if not cli.out.json:
        cli.out.line(f"{name}: passed to all servers by settings.env in {path}")


def _retry_broken(cli: CliContext, used: Sequence[str], wait: float) -> tuple[list[str], list[DaemonError]]:
    """Reconnect those of the servers that have failed or need a login. Returns their names, and errors."""
    try:
        servers = cli.call("mcpd/status", timeout=5.0).value["servers"] if used else []
    except CtlError:  # no daemon
        return [], []
    broken = [each["name"] for each in servers if each["status"] in BROKEN]
    waiting = [name for name in broken if name.partition("~")[0] in used]
    if not waiting:
        return [], []
    asked: list[Json] = [{"server": server, "wait": wait} for server in waiting]
    statuses, errors, _ = change_each(cli, "mcpd/reconnect", asked, timeout=wait + 30.0)
    show_errors(cli, errors, all_failed=False)
    behind = [status["name"] for status in statuses if status["status"] in BROKEN]
    if behind and not cli.out.json:
        cli.out.next_step(hint_for(cli, behind[0]))
    return waiting, errors


def _prompt_for_value(name: str) -> str:
    import getpass

    try:
        return getpass.getpass(f"{name}: ")
    except EOFError:
        return ""


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(MAX_SECRET_SIZE + 1)
    if len(data) > MAX_SECRET_SIZE:
        raise UsageError(f"the value is longer than {MAX_SECRET_SIZE} bytes")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError("the value is not UTF-8 text", hint="encode it, for example with base64") from None


@secret.command("list", epilog="Examples:\n\n\b\n  mcpctl secret list\n  mcpctl secret list --json")
@click.pass_obj
def list_(cli: CliContext) -> int:
    """List the names of the secrets and the servers that use them.

    Never prints values and never starts the daemon. USED BY is empty if the daemon is not running.
    """
    names = set(_stored_secrets())
    users = _servers_by_secret(cli)
    every = sorted(names | users.keys())
    found = [(name, name in names, users.get(name.partition("@")[0], [])) for name in every]
    if cli.out.json:
        secrets = [{"name": name, "stored": stored, "used_by": used} for name, stored, used in found]
        cli.out.json_value({"path": str(secrets_path(os.environ)), "secrets": secrets})
    elif not found:
        cli.out.message("no secrets yet; store one with: mcpctl secret set NAME")
    else:
        rows: list[Line] = [
            [name, "yes" if stored else paint("missing", "red"), ", ".join(used) or "-"]
            for name, stored, used in found
        ]
        cli.out.lines(table(("SECRET", "STORED", "USED BY"), rows, fit=cli.out.columns))
    return 0


@secret.command("remove", epilog="Examples:\n\n\b\n  mcpctl secret remove GITHUB_TOKEN --yes")
@click.argument("name", shell_complete=_complete_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def remove(cli: CliContext, name: str, yes: bool) -> int:
    """Delete a secret."""
    if name not in _stored_secrets():
        raise DaemonError(
            {"message": f"no secret named {name}", "data": {"code": "unknown_secret", "exit": 5}}
        )
    used = _servers_by_secret(cli).get(name, [])
    if not yes:
        if not sys.stdin.isatty():
            hint = f"mcpctl secret remove {name} --yes"
            raise UsageError(f"removing {name} needs confirmation, but stdin is not a terminal", hint=hint)
        who = f", used by {', '.join(used)}" if used else ""
        if not click.confirm(f"Delete {name}{who}?", err=True):
            return 1
    path = _change({name: None})
    cli.out.answer({"name": name, "path": path, "used_by": used}, f"{name}: removed from {path}")
    if used and not cli.out.json:
        cli.out.message(paint("note: ", "dim"), f"still referenced by {', '.join(used)}")
    return 0


def _stored_secrets() -> dict[str, str]:
    try:
        return read_secrets(os.environ)
    except BadSpec as error:
        raise _to_error(error) from None


def _change(values: dict[str, str | None]) -> str:
    try:
        return str(change_secrets(os.environ, values))
    except BadSpec as error:
        raise _to_error(error) from None


def _to_error(error: BadSpec) -> CtlError:
    problem = error.problems[0]
    return CtlError(problem.message, hint=problem.fix)


def _servers_by_secret(cli: CliContext) -> dict[str, list[str]]:
    """Return the servers that reference each secret, by its name; empty if the daemon is not running."""
    cli.may_start = False
    try:
        definitions = cli.call("mcpd/config", timeout=5.0).value["servers"]
    except CtlError:
        return {}
    users: dict[str, list[str]] = {}
    for server, definition in definitions.items():
        for name in dict.fromkeys(re.findall(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)", str(definition))):
            users.setdefault(name, []).append(server)
    return users
