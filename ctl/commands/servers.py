"""`mcpctl add`, `remove`, `apply`, `reload`: which servers there are."""

from __future__ import annotations

import os
import sys

import click

from ctl.commands.lifecycle import status_summary
from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import DaemonReply
from ctl.errors import UsageError
from ctl.output import Line, paint
from ctl.status_view import mapping, objects, painted_state, problem_lines, strings
from ctl.terminal_text import count

_NO_SAVE = "Leave the configuration file alone; lasts until a reload, or until the file is changed."


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl add time -- uvx mcp-server-time\n"
    "  mcpctl add jira --env 'TOKEN=${JIRA_TOKEN}' -- npx -y jira-mcp --read-only\n"
    "  mcpctl add docs --url https://example.com/mcp",
)
@click.argument("name")
@click.argument("command", metavar="-- COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--env",
    "-e",
    "env",
    metavar="KEY=VALUE",
    multiple=True,
    help="Given to the server; ${VAR} is looked up by mcpd.",
)
@click.option("--cwd", metavar="DIR", help="Where the server runs.")
@click.option("--lazy", is_flag=True, help="Start it on first use only.")
@click.option("--url", metavar="URL", help="A remote server instead of a command.")
@click.option(
    "--header", "-H", "headers", metavar="KEY=VALUE", multiple=True, help="Sent with every request to --url."
)
@click.option("--replace", is_flag=True, help="Take the place of a server of that name.")
@click.option("--no-save", is_flag=True, help=_NO_SAVE)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Wait so long for it to be connected.",
)
@click.pass_obj
def add(
    cli: CliContext,
    name: str,
    command: tuple[str, ...],
    env: tuple[str, ...],
    cwd: str | None,
    lazy: bool,
    url: str | None,
    headers: tuple[str, ...],
    replace: bool,
    no_save: bool,
    wait: float,
) -> int:
    """Add a server, and write it into the configuration file."""
    if bool(command) == (url is not None):
        raise UsageError(
            "give either -- COMMAND ARGS... or --url URL", hint="mcpctl add time -- uvx mcp-server-time"
        )
    if url is not None and (env or cwd):
        raise UsageError("--env and --cwd are for a command, not for --url")
    if url is None and headers:
        raise UsageError("--header is for --url, not for a command")
    definition: dict[str, object] = {"url": url} if url is not None else {"command": command[0]}
    if command[1:]:
        definition["args"] = list(command[1:])
    if env:
        definition["env"] = _pairs(env, "--env")
    if headers:
        definition["headers"] = _pairs(headers, "--header")
    if cwd:
        definition["cwd"] = os.path.abspath(os.path.expanduser(cwd))
    elif command and any(_is_relative_file(word) for word in command):
        definition["cwd"] = os.getcwd()  # the daemon runs elsewhere, and would not find it
        cli.out.message(f"it will run in {definition['cwd']}, where the files you named are (see --cwd)")
    if lazy:
        definition["lazy"] = True
    params = {"server": name, "definition": definition, "save": not no_save, "replace": replace}
    reply = cli.call("mcpd/add", params)
    if cli.show_json(reply):
        return _exit_code(reply)
    if code := _exit_code(reply):
        _print_errors(cli, reply)
        return code
    saved = reply.value.get("saved")
    cli.out.line(
        f"{name}: {'changed' if name in strings(reply.value.get('changed')) else 'added'}",
        f", written to {saved}" if saved else "",
    )
    return _connect_and_report(cli, name, wait) if wait > 0 and not lazy else 0


def _is_relative_file(word: str) -> bool:
    """Whether a word of a command line is a file's path that only makes sense in this directory."""
    return not os.path.isabs(word) and ("/" in word or "." in word) and os.path.exists(word)


def _connect_and_report(cli: CliContext, name: str, wait: float) -> int:
    """The server was added, whatever comes of it; so a failed connection is told, and is exit 0."""
    reply = cli.call("mcpd/connect", {"server": name, "wait": wait}, timeout=wait + 30.0)
    status = mapping(reply.value.get("server"))
    cli.out.line(f"{name}: ", painted_state(status), status_summary(status))
    if status.get("status") not in ("connected", "idle", "disabled"):
        cli.out.message(paint("next: ", "dim"), f"mcpctl why {name}")
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl remove github\n  mcpctl remove github --yes --no-save")
@click.argument("name", metavar="SERVER", shell_complete=server_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--no-save", is_flag=True, help=_NO_SAVE)
@click.pass_obj
def remove(cli: CliContext, name: str, yes: bool, no_save: bool) -> int:
    """Remove a server, from the configuration file too."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"removing {name} needs --yes when nobody can be asked", hint=f"mcpctl remove {name} --yes"
            )
        if not click.confirm(f"Remove {name}?", err=True):
            return 1
    reply = cli.call("mcpd/remove", {"server": name, "save": not no_save})
    return show_applied(cli, reply)


@click.command(epilog="Examples:\n\n\b\n  mcpctl apply servers.json --plan\n  mcpctl apply - < servers.json")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--plan", is_flag=True, help="Show what would change; change nothing.")
@click.option(
    "--if-generation", type=int, metavar="N", help="Only if the set is still at generation N; else exit 9."
)
@click.pass_obj
def apply(cli: CliContext, file: str, plan: bool, if_generation: int | None) -> int:
    """Make the set of servers what a file says.

    Either shape of configuration, as JSON, YAML or TOML; - reads JSON from stdin. Servers that do not
    change keep their process and connection. Lasts until a reload, or
    until the configuration file is changed; the file is not written.
    """
    from ctl.definitions import read_definitions

    params: dict[str, object] = {"servers": read_definitions(file, cli.out), "dry_run": plan}
    if if_generation is not None:
        params["if_generation"] = if_generation
    return show_applied(cli, cli.call("mcpd/servers/set", params))


@click.command(epilog="Examples:\n\n\b\n  mcpctl reload\n  mcpctl reload --json")
@click.pass_obj
def reload(cli: CliContext) -> int:
    """Read the configuration file again."""
    return show_applied(cli, cli.call("mcpd/reload"))


def show_applied(cli: CliContext, reply: DaemonReply) -> int:
    """A plan, done or not, as people read a difference."""
    code = _exit_code(reply)
    if cli.show_json(reply):
        return code
    if code:
        _print_errors(cli, reply)
        return code
    plan = reply.value
    for key, sign, color in (("added", "+", "green"), ("changed", "~", "yellow"), ("removed", "-", "red")):
        cli.out.lines([[paint(f"{sign} {name}", color)] for name in strings(plan.get(key))])
    would = "would be " if plan.get("dry_run") else ""
    numbers = ", ".join(f"{len(strings(plan.get(k)))} {would}{k}" for k in ("added", "changed", "removed"))
    kept = count(len(strings(plan.get("unchanged"))), "server")
    cli.out.line(f"{numbers}; {kept} unchanged; generation {plan.get('generation')}")
    if plan.get("saved"):
        cli.out.line(f"written to {plan['saved']}")
    return 0


def _exit_code(reply: DaemonReply) -> int:
    return 2 if objects(reply.value.get("errors")) else 0


def _print_errors(cli: CliContext, reply: DaemonReply) -> None:
    problems: list[Line] = problem_lines(objects(reply.value.get("errors")))
    cli.out.message(paint("error: ", "red"), "nothing was changed:")
    for line in problems:
        cli.out.message(*line)


def _pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {word} is not KEY=VALUE")
        values[key] = value
    return values
