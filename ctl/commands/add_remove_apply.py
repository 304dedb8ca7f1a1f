"""`mcpctl add`, `remove`, `apply` and `reload`: change the set of servers."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from ctl.cli.arguments import read_named_file, seconds_option
from ctl.cli.completion import server_names
from ctl.cli.errors import CtlError, DaemonError, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, strings
from ctl.cli.output import Output, paint
from ctl.cli.text import count
from ctl.commands.lifecycle import chosen_servers
from ctl.daemon.client import Json
from ctl.editors.backups import EditorBackups
from ctl.editors.config_files import UserContext
from ctl.editors.secrets import extract_secrets
from ctl.explain.next_steps import variable_step
from ctl.show.progress import (
    change_each,
    failed_member,
    hint_for,
    show_errors,
    show_warnings,
)
from ctl.show.status import not_ready_exit, problem_lines
from mcpd.config.loader import MAX_FILE_SIZE, decode_utf8, format_of, parse_text, read_layout
from mcpd.model.errors import BadSpec, Problem

if TYPE_CHECKING:
    from ctl.api_types import ApplyResult, Reply, ServerStatus, SetServersParams

_no_save = click.option(
    "--no-save",
    is_flag=True,
    help="Do not change the configuration file. Lasts until the file is reloaded or changes.",
)

_CHANGES: tuple[tuple[Literal["added", "changed", "removed"], str, str], ...] = (
    ("added", "+", "green"),
    ("changed", "~", "yellow"),
    ("removed", "-", "red"),
)
_CONTAINER_TOOLS = ("docker", "podman", "nerdctl")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=")
_URL_SCHEMES = ("http://", "https://", "ws://", "wss://")


def is_url(command: Sequence[str]) -> bool:
    """Return whether the words of a command line are the address of a remote server."""
    return len(command) == 1 and command[0].startswith(_URL_SCHEMES)


class _AddCommand(click.Command):
    """Everything after `--` is the server's command; nothing but NAME and options may come before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if end == len(args) and any(not word.startswith("-") for word in args[1:]):
                url = next((word for word in args if is_url([word])), None)
                hint = f"mcpctl add NAME {url}" if url else "put -- before the server's command"
                raise UsageError(f"no such option: {error.option_name}", hint=hint) from None
            raise
        early = ctx.params.get("command") or ()
        if end < len(args) and early:
            raise UsageError(
                f"unexpected before --: {' '.join(early)}",
                hint=f"mcpctl add NAME -- {' '.join((*early, *args[end + 1 :]))}   (NAME is one word)",
            )
        ctx.params["command"] = tuple(args[end + 1 :]) or early
        return rest


@click.command(
    cls=_AddCommand,
    epilog="Examples:\n\n\b\n  mcpctl add time -- uvx mcp-server-time\n"
    "  mcpctl add jira --env 'TOKEN=${JIRA_TOKEN}' -- npx -y jira-mcp --read-only\n"
    "  mcpctl add docs https://example.com/mcp",
)
@click.argument("name")
@click.argument("command", metavar="{URL | -- COMMAND [ARG]...}", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--env",
    "-e",
    "env",
    metavar="KEY=VALUE",
    multiple=True,
    help="Environment variable for the server; mcpd expands ${VAR}.",
)
@click.option("--cwd", metavar="DIR", help="Working directory of the server.")
@click.option("--lazy", is_flag=True, help="Start the server on first use.")
@click.option("--header", "-H", "headers", metavar="KEY=VALUE", multiple=True, help="HTTP header for URL.")
@click.option("--transport", "-t", metavar="TYPE", help="stdio, http, sse or ws. [default: detected]")
@click.option("--replace", is_flag=True, help="Replace an existing server of the same name.")
@_no_save
@seconds_option("--wait", 30.0, "How long to wait for the connection; 0 does not connect.")
@click.pass_obj
def add(
    cli: CliContext,
    name: str,
    command: tuple[str, ...],
    env: tuple[str, ...],
    cwd: str | None,
    lazy: bool,
    headers: tuple[str, ...],
    transport: str | None,
    replace: bool,
    no_save: bool,
    wait: float,
) -> int:
    """Add a server and save it in the configuration file.

    Then connects to it. If that fails, the server is kept, and the exit code is 4 if it needs a login,
    otherwise 6. With --wait 0, does not connect.
    """
    definition = _definition(command, env, headers, cwd, cli.host)
    if lazy:
        definition["lazy"] = True
    if transport:
        definition["type"] = transport
    former = mapping(cli.call("mcpd/config").value["servers"].get(name)) if replace else {}
    try:
        reply = cli.call(
            "mcpd/add", {"server": name, "definition": definition, "save": not no_save, "replace": replace}
        )
    except DaemonError as error:
        _say_what_was_not_done(error, f"{name} was not {'changed' if replace else 'added'}")
        raise
    show_warnings(cli, reply.value.get("warnings", ()))
    if not no_save:
        _warn_about_secrets(cli, name, definition)
    _explain(cli.out, name, command, definition, has_cwd=cwd is not None)
    waits = not lazy and wait > 0
    if reply.value.get("errors") or (cli.out.json and not waits):
        cli.show_json(reply)
        return _exit_code(cli, reply)
    if not cli.out.json:
        verb = "changed" if name in reply.value["changed"] else "added"
        saved = f", saved in {path}" if (path := reply.value.get("saved")) else ""
        cli.out.line(f"{name}: {verb}{saved}")
        if lost := [key for key in former if key not in definition]:
            cli.out.message(
                f"note: {name} no longer has these fields of its former definition: {', '.join(lost)}"
            )
        if is_url(command) and not any(key.lower() == "authorization" for key in _pairs(headers, "--header")):
            _show_login(cli, name)
    return _connect_added(cli, reply.value, name, wait) if waits else 0


def _warn_about_secrets(cli: CliContext, name: str, definition: Json) -> None:
    """Say how to keep secrets out of the file, and how to refer to them. The shell has kept them, too."""
    lifted = extract_secrets(name, definition, {})
    for secret in lifted.secrets:
        cli.out.warning(f"{secret.location} looks like a secret, and is in the file in plain text")
    if lifted.secrets:
        store = [f"mcpctl secret set {each}" for each in dict.fromkeys(one.name for one in lifted.secrets)]
        cli.out.next_step(" && ".join([*store, _command_to_replace(name, lifted.definition)]))


def _command_to_replace(name: str, definition: Mapping[str, object]) -> str:
    """Return the command that replaces the server by one with this definition."""
    words = ["mcpctl", "add", name, "--replace"]
    for key, option in (("env", "--env"), ("headers", "--header")):
        values = mapping(definition.get(key))
        words += [word for each, value in values.items() for word in (option, f"{each}={value}")]
    for key, option in (("cwd", "--cwd"), ("type", "--transport")):
        words += [option, str(definition[key])] if key in definition else []
    words += ["--lazy"] if definition.get("lazy") else []
    if "url" in definition:
        return shlex.join([*words, str(definition["url"])])
    return shlex.join([*words, "--", str(definition["command"]), *strings(definition.get("args"))])


def _explain(out: Output, name: str, command: tuple[str, ...], definition: Json, *, has_cwd: bool) -> None:
    """Say what the user may not expect of the server that was added."""
    if "cwd" in definition and not has_cwd:
        out.message(f"{name} runs in {definition['cwd']}, which contains its files (see --cwd)")
    if command[0].rpartition("/")[2] in _CONTAINER_TOOLS:
        return
    for option, word in pairwise(command[1:]):
        if option in ("-e", "--env") and (found := _VARIABLE.match(word)):
            given = f"{option} {found[0]}VALUE"
            out.message(f"note: {given} is an argument of the server; for its environment, put it before --")


def _definition(
    command: tuple[str, ...],
    env: tuple[str, ...],
    headers: tuple[str, ...],
    cwd: str | None,
    host: str,
) -> dict[str, object]:
    """Return the definition that the options describe. Raises UsageError if they do not fit together."""
    if not command:
        message = "either -- COMMAND ARGS... or a URL is required"
        raise UsageError(message, hint="mcpctl add time -- uvx mcp-server-time")
    if is_url(command):
        if env or cwd:
            raise UsageError("--env and --cwd require a command and cannot be used with a URL")
        return {"url": command[0], **({"headers": _pairs(headers, "--header")} if headers else {})}
    if headers:
        raise UsageError("--header requires a URL")
    definition: dict[str, object] = {"command": command[0]}
    if command[1:]:
        definition["args"] = list(command[1:])
    if env:
        definition["env"] = _pairs(env, "--env")
    if host:
        definition |= directory_elsewhere(command, cwd, host)
    elif cwd:
        definition["cwd"] = os.path.abspath(os.path.expanduser(cwd))
    elif any(_is_relative_file(word) for word in command):
        definition["cwd"] = os.getcwd()  # the daemon has another working directory
    return definition


def directory_elsewhere(command: Sequence[str], cwd: str | None, host: str) -> dict[str, str]:
    """Return the member for `--cwd` on another machine, if any. Raises UsageError for a relative path."""
    paths = [word for word in command if _is_relative_file(word)] if cwd is None else [cwd]
    if relative := [path for path in paths if not path.startswith(("/", "~"))]:
        message = f"{relative[0]} is relative to a directory of this machine"
        raise UsageError(message, hint=f"write its absolute path on {host}")
    return {} if cwd is None else {"cwd": cwd}


def _show_login(cli: CliContext, name: str) -> None:
    """Say that the server is accessed with a login that exists already, because its URL is the same."""
    for login in cli.call("mcpd/auth/status", {"server": name}).value["logins"]:
        others = ", ".join(each for each in login["servers"] if each != name)
        of = f" of {others}" if others else ""
        cli.out.line(f"{name}: uses the existing login{of} at {login['issuer']}")
        cli.out.line("  for a login of its own, set `oauth.account` in its definition")


def _connect_added(cli: CliContext, added: ApplyResult, name: str, wait: float) -> int:
    asked: list[Json] = [{"server": name, "wait": wait}]
    (status, *_), errors, _ = change_each(cli, "mcpd/connect", asked, timeout=wait + 30.0)
    if errors:
        raise errors[0]
    is_behind = status["status"] not in ("connected", "idle", "disabled")
    if cli.out.json:
        cli.out.json_value({**added, "not_connected": [_problem_of(status)] if is_behind else []})
    elif is_behind:
        saved = added.get("saved")
        kept = f"kept in {saved}" if saved else "kept until the configuration file is loaded again"
        cli.out.warning(f"{name} is not connected; its definition is {kept}")
        cli.out.next_step(hint_for(cli, name))
    return not_ready_exit(status) if is_behind else 0


def _problem_of(status: ServerStatus) -> Json:
    """Return an element of the member `not_connected`."""
    failure = status.get("last_error")
    error = failure["message"] if failure else status.get("reason", "")
    return {"name": status["name"], "status": status["status"], "error": error}


def _say_what_was_not_done(error: DaemonError, undone: str) -> None:
    """Begin the message with what was not done. A variable may be set in this shell only."""
    if error.code == "cannot_write":
        error.message = f"{undone}: {error.message}"
    elif error.code == "bad_spec":
        error.message = f"{undone}, nothing was saved"
        if step := variable_step(error.problems):
            error.hint = step
            error.message += "; mcpd uses the environment in which it was started"


def _is_relative_file(word: str) -> bool:
    """Return whether an argument is the path of a file relative to the current directory."""
    return not os.path.isabs(word) and ("/" in word or "." in word) and os.path.exists(word)


def _pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {word} is not KEY=VALUE")
        values[key] = value
    return values


@click.command(epilog="Examples:\n\n\b\n  mcpctl remove github\n  mcpctl remove github --yes --no-save")
@click.argument("names", metavar="SERVER...", nargs=-1, shell_complete=server_names)
@click.option("--all", "every", is_flag=True, help="All servers.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@_no_save
@click.pass_obj
def remove(cli: CliContext, names: tuple[str, ...], every: bool, yes: bool, no_save: bool) -> int:
    """Remove servers and delete them from the configuration file."""
    names = chosen_servers(cli, names, every=every)
    if not yes and names and not _confirms_removal(names, every=every):
        return 1
    replies: list[Reply[ApplyResult]] = []
    errors: list[CtlError] = []
    for name in names:
        try:
            replies.append(cli.call("mcpd/remove", {"server": name, "save": not no_save}))
        except DaemonError as error:
            _say_what_was_not_done(error, f"{name} was not removed")
            errors.append(error)
    code = 0
    if cli.out.json and len(names) != 1 and (replies or not names):
        last = dict(replies[-1].value) if replies else {"added": [], "changed": [], "errors": []}
        removed = [name for reply in replies for name in reply.value["removed"]]
        cli.out.json_value({**last, "removed": removed, **failed_member(errors)})
    else:
        code = max((_show_removed(cli, reply) for reply in replies), default=0)
    show_errors(cli, errors, all_failed=not replies)
    return errors[0].exit if errors else code


def _show_removed(cli: CliContext, reply: Reply[ApplyResult]) -> int:
    if cli.show_json(reply) or reply.value.get("errors"):
        return _exit_code(cli, reply)
    show_warnings(cli, reply.value.get("warnings", ()))
    saved = f", also from {path}" if (path := reply.value.get("saved")) else ""
    user, backups = UserContext(os.environ, Path.cwd()), EditorBackups(os.environ)
    for name in reply.value["removed"]:
        cli.out.line(f"{name}: removed{saved}")
        for file in [] if cli.host else backups.replaced_by(name):
            cli.out.message(
                f"note: {user.display_path(file)} had an entry for it, which mcpctl install replaced; "
                "mcpctl uninstall restores it"
            )
    return 0


def _confirms_removal(names: Sequence[str], *, every: bool) -> bool:
    shown = " ".join(names)
    if not sys.stdin.isatty():
        message = f"removing {shown} needs confirmation, but stdin is not a terminal"
        raise UsageError(message, hint=f"mcpctl remove {'--all' if every else shown} --yes")
    return click.confirm(f"Remove {shown}?", err=True)


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl config apply servers.json --plan\n"
    "  mcpctl config apply - < servers.json"
)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--plan", is_flag=True, help="Show the changes without applying them.")
@click.option(
    "--if-generation",
    type=int,
    metavar="N",
    help="Apply only if the set is still at generation N, otherwise exit with 9.",
)
@click.pass_obj
def apply(cli: CliContext, file: str, plan: bool, if_generation: int | None) -> int:
    """Replace the running set of servers with those in a file.

    The file may be JSON, YAML or TOML; - reads JSON from stdin. Unchanged servers keep their process and
    connection. The change lasts until the configuration file is reloaded or changes; that file is not
    written. `mcpctl wait` waits for the servers to connect.
    """
    params: SetServersParams = {"servers": read_definitions(file, cli.out), "dry_run": plan}
    if if_generation is not None:
        params["if_generation"] = if_generation
    return show_applied(cli, cli.call("mcpd/servers/set", params))


def read_definitions(file: str, out: Output) -> dict[str, Json]:
    """Read server definitions, by name, from a file of any format and layout, or JSON from stdin for `-`.

    Makes a relative `cwd` absolute, because the daemon does not know the directory of the file. Raises
    UsageError if the file cannot be read, DaemonError with all problems if it is invalid.
    """
    source = "stdin" if file == "-" else file
    problems: list[Problem] = []
    warnings: list[str] = []
    try:
        data = read_named_file(file, MAX_FILE_SIZE)
        kind = "JSON" if file == "-" else format_of(Path(file), source)
        outlined = read_layout(parse_text(decode_utf8(data, source), kind, source), problems, warnings)
        if problems:
            raise BadSpec(problems, source)
    except OSError as error:
        hint = "check the path, and the permissions of the file"
        raise UsageError(f"cannot read {source}: {error.strerror}", hint=hint) from None
    except BadSpec as error:
        raise DaemonError({"message": f"{source} is invalid", "data": error.data()}) from None
    for warning in warnings:
        out.warning(warning)
    base = Path.cwd() if file == "-" else Path(file).expanduser().absolute().parent
    if out.host:
        base = Path()  # in the directory of the configuration file there
    return {
        str(name): _with_absolute_cwd(definition, base, enabled=outlined.enabled)
        for name, definition, _ in outlined.servers
    }


def _with_absolute_cwd(definition: object, base: Path, *, enabled: bool) -> Json:
    if not isinstance(definition, dict):
        return cast("Json", definition)  # the daemon reports it
    absolute = dict(definition)
    cwd = absolute.get("cwd")
    if isinstance(cwd, str) and cwd and not cwd.startswith(("/", "~", "$")):
        absolute["cwd"] = os.path.normpath(base / cwd)
    if not enabled:
        absolute.pop("disabled", None)
        absolute["enabled"] = False
    return absolute


@click.command(epilog="Examples:\n\n\b\n  mcpctl config reload\n  mcpctl config reload --json")
@click.pass_obj
def reload(cli: CliContext) -> int:
    """Reload the configuration file.

    Variables such as ${TOKEN} keep the values that they had when the daemon started. After you change one,
    use `mcpctl daemon restart`.
    """
    try:
        return show_applied(cli, cli.call("mcpd/reload"))
    except DaemonError as error:
        error.hint = variable_step(error.problems) or error.hint
        raise


def show_applied(cli: CliContext, reply: Reply[ApplyResult]) -> int:
    """Print the changes that were made, or would be made, as a diff. Returns the exit code."""
    plan = reply.value
    show_warnings(cli, plan.get("warnings", ()))
    if cli.show_json(reply) or plan.get("errors"):
        return _exit_code(cli, reply)
    for key, sign, color in _CHANGES:
        cli.out.lines([[paint(f"{sign} {name}", color)] for name in plan[key]])
    would = "would be " if plan.get("dry_run") else ""
    numbers = ", ".join(f"{len(plan[key])} {would}{key}" for key, _, _ in _CHANGES if plan[key])
    kept = count(len(plan["unchanged"]), "server")
    nothing = "no server changed" if plan.get("settings_changed") else "nothing changed"
    cli.out.line(f"{numbers or nothing}; {kept} unchanged; generation {plan['generation']}")
    if settings := plan.get("settings_changed"):
        cli.out.line(f"settings changed: {', '.join(settings)}")
    if later := plan.get("restart_needed"):
        cli.out.line(f"not in effect until mcpd is restarted: {', '.join(later)}")
    if saved := plan.get("saved"):
        cli.out.line(f"saved in {saved}")
    if later:
        cli.out.next_step("mcpctl daemon restart")
    return 0


def _exit_code(cli: CliContext, reply: Reply[ApplyResult]) -> int:
    """Return 2 if the set is invalid. Prints why, unless the answer was printed as JSON."""
    errors = reply.value.get("errors")
    if errors and not cli.out.json:
        cli.out.message(paint("error: ", "red"), "nothing was changed:")
        for line in problem_lines(errors):
            cli.out.message(*line)
        if step := variable_step(errors):
            cli.out.next_step(step)
    return 2 if errors else 0
