"""`mcpctl secret`: set, list, remove. The values go into the user's store and never come out here again."""

from __future__ import annotations

import os
import re
import sys

import click
from click.shell_completion import CompletionItem

from ctl.context import Session
from ctl.errors import CtlError, Refused, Usage
from ctl.output import Line, paint
from ctl.status_view import mapping
from ctl.table import table
from mcpd.config.secret_store import LARGEST, NAME, change_secrets, read_secrets, secrets_path
from mcpd.model.errors import BadSpec


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in read_secrets(os.environ) if name.startswith(incomplete)]
    except BadSpec:
        return []


@click.group(epilog="Examples:\n\n\b\n  mcpctl secret set GITHUB_TOKEN\n  mcpctl secret list")
def secret() -> None:
    """Keep the secrets that definitions name as ${secret:NAME}."""


@secret.command(
    "set",
    epilog="Examples:\n\n\b\n  mcpctl secret set GITHUB_TOKEN\n  pass show github | mcpctl secret set TOKEN",
)
@click.argument("name", shell_complete=_names)
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.pass_obj
def set_(session: Session, name: str, more: tuple[str, ...]) -> int:
    """Store a secret, or a new value for it.

    The value is asked for on the terminal, without being shown, or read from stdin. It is never an
    argument: those are visible to every process of the machine, and stay in the shell's history.
    """
    if more or "=" in name:
        hint = "type it when asked, or: … | mcpctl secret set NAME"
        raise Usage("a secret is never given as an argument", hint=hint)
    if not NAME.fullmatch(name):
        raise Usage(
            f"{name} is no name of a secret", hint="letters, digits and _, not beginning with a digit"
        )
    value = _asked(name) if sys.stdin.isatty() else _read()
    if not value:
        raise Usage(
            "the value is empty, so nothing was stored", hint=f"mcpctl secret remove {name} forgets one"
        )
    path = _changed({name: value})
    used = _users(session).get(name, [])
    if session.out.json:
        session.out.value({"name": name, "path": path, "used_by": used})
        return 0
    session.out.line(f"{name}: stored in {path}")
    if used:
        session.out.talk(paint("next: ", "dim"), f"mcpctl reconnect {' '.join(used)}")
    return 0


def _asked(name: str) -> str:
    import getpass

    try:
        return getpass.getpass(f"{name}: ")
    except EOFError:
        return ""


def _read() -> str:
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise Usage(f"the value has more than {LARGEST} bytes")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise Usage("the value is no text in UTF-8", hint="base64 makes text of anything") from None


@secret.command("list", epilog="Examples:\n\n\b\n  mcpctl secret list\n  mcpctl secret list --json")
@click.pass_obj
def list_(session: Session) -> int:
    """The names of the secrets, and which servers use them.

    Never a value. Never starts the daemon; without one, nothing is known of servers.
    """
    names = set(_stored())
    users = _users(session)
    found = [
        {"name": name, "stored": name in names, "used_by": users.get(name, [])}
        for name in sorted(names | users.keys())
    ]
    if session.out.json:
        session.out.value({"path": str(secrets_path(os.environ)), "secrets": found})
    elif not found:
        session.out.talk("no secrets yet; mcpctl secret set NAME stores one")
    else:
        rows: list[Line] = [
            [
                str(one["name"]),
                "yes" if one["stored"] else paint("missing", "red"),
                ", ".join(users.get(str(one["name"]), [])) or "-",
            ]
            for one in found
        ]
        session.out.lines(table(("SECRET", "STORED", "USED BY"), rows, fit=session.out.columns))
    return 0


@secret.command("remove", epilog="Examples:\n\n\b\n  mcpctl secret remove GITHUB_TOKEN --yes")
@click.argument("name", shell_complete=_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(session: Session, name: str, yes: bool) -> int:
    """Forget a secret."""
    if name not in _stored():
        raise Refused(
            {"message": f"there is no secret {name}", "data": {"code": "unknown_secret", "exit": 5}}
        )
    used = _users(session).get(name, [])
    if not yes:
        if not sys.stdin.isatty():
            hint = f"mcpctl secret remove {name} --yes"
            raise Usage(f"removing {name} needs --yes when nobody can be asked", hint=hint)
        who = f", used by {', '.join(used)}" if used else ""
        if not click.confirm(f"Forget {name}{who}?", err=True):
            return 1
    path = _changed({name: None})
    if session.out.json:
        session.out.value({"name": name, "path": path, "used_by": used})
        return 0
    session.out.line(f"{name}: removed from {path}")
    if used:
        session.out.talk(paint("note: ", "dim"), f"it is still referred to by {', '.join(used)}")
    return 0


def _stored() -> dict[str, str]:
    try:
        return read_secrets(os.environ)
    except BadSpec as error:
        raise _refused(error) from None


def _changed(values: dict[str, str | None]) -> str:
    try:
        return str(change_secrets(os.environ, values))
    except BadSpec as error:
        raise _refused(error) from None


def _refused(error: BadSpec) -> CtlError:
    problem = error.problems[0]
    return CtlError(problem.message, hint=problem.fix)


def _users(session: Session) -> dict[str, list[str]]:
    """Name of a secret → the servers whose definitions have it; nothing without a daemon."""
    session.may_start = False
    try:
        definitions = mapping(session.call("mcpd/config", timeout=5.0).value.get("servers"))
    except CtlError:
        return {}
    users: dict[str, list[str]] = {}
    for server, definition in definitions.items():
        for name in dict.fromkeys(re.findall(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)", str(definition))):
            users.setdefault(name, []).append(server)
    return users
