"""The full command line, built with click. Command modules are imported only when they are used."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import click

from ctl.cli.errors import CtlError, DaemonError, UsageError
from ctl.cli.invocation import CliContext
from ctl.commands import COMMANDS, EVERYDAY, LOCAL, SECTIONS, SYNONYMS
from mcpd.model.errors import CannotWrite

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _CommandContext(click.Context):
    def invoke(self, callback: Any, /, *args: Any, **values: Any) -> Any:  # noqa: ANN401 # as in click
        name = self.command_path.removeprefix("mcpctl ")
        is_local = name in LOCAL or name.partition(" ")[0] in LOCAL
        cli = _cli_context(self)
        if is_local and cli.elsewhere and not isinstance(self.command, click.Group):
            option = "--host" if cli.host else "--url"
            message = f"mcpctl {name} is for the machine that it runs on, and takes no {option}"
            raise UsageError(message, hint=f"mcpctl {name}")
        return super().invoke(callback, *args, **values)

    def get_help(self) -> str:
        text = super().get_help()
        if not _cli_context(self).out.json:
            return text
        return json.dumps({"command": self.command_path, "help": text})


class LazyGroup(click.Group):
    """The root group. Lists commands from a table and loads their modules on demand."""

    context_class = _CommandContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, entry in COMMANDS.items() if not entry.hidden]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        module = importlib.import_module(f"ctl.commands.{entry.module}")
        return _with_common_options(getattr(module, entry.attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            error = UsageError(f"no such command: {args[0]}")
            if args[0] in SYNONYMS:
                error.hint = SYNONYMS[args[0]]
                raise error
            raise error.suggest(args[0], COMMANDS, "mcpctl --help lists the commands")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Everyday commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in EVERYDAY])
        for section in SECTIONS:
            listed = [(n, e.help) for n, e in COMMANDS.items() if e.section == section and not e.hidden]
            with formatter.section(section):
                formatter.write_dl([each for each in listed if each[0] not in EVERYDAY])


def _cli_context(ctx: click.Context) -> CliContext:
    return cast("CliContext", ctx.find_root().obj)


def _set_json(cli: CliContext, _: bool) -> None:
    cli.out.json = cli.json_option = True


def _set_host(cli: CliContext, host: str) -> None:
    from ctl.daemon.ssh import checked_host

    cli.out.host = checked_host(host)


def _set_url(cli: CliContext, url: str) -> None:
    from ctl.daemon.network import checked_origin

    cli.out.url = str(checked_origin(url))


def _option(name: str, apply: Callable[[CliContext, Any], None], help: str, **more: object) -> click.Option:
    def callback(ctx: click.Context, _: click.Parameter, value: object) -> None:
        if value not in (None, False) and ctx.find_root().obj is not None:
            apply(_cli_context(ctx), value)

    return click.Option(
        [name], is_eager=True, expose_value=False, callback=callback, help=help, **cast("Any", more)
    )


def _common_options(*, after: bool) -> list[click.Option]:
    """Return the common options. `after` a command's name, only `--json` is listed in its help."""
    return [
        _option(
            "--json",
            _set_json,
            "Print one JSON document on stdout, and errors as JSON on stderr. [MCPCTL_OUTPUT=json]",
            is_flag=True,
        ),
        _option(
            "--socket",
            lambda cli, value: setattr(cli, "socket_option", value),
            "The socket of the daemon. [MCPD_SOCKET]",
            metavar="PATH",
            hidden=after,
        ),
        _option(
            "--host",
            _set_host,
            "Use the daemon of another machine, over ssh: HOST, USER@HOST or ssh://URI.",
            metavar="HOST",
            hidden=after,
        ),
        _option(
            "--url",
            _set_url,
            "Use the mcpd at a URL, with the token in --token-file: https://HOST[:PORT].",
            metavar="URL",
            hidden=after,
        ),
        _option(
            "--token-file",
            lambda cli, value: setattr(cli.out, "token_file", value),
            "The file with the token for --url: mcpd's own, or an access token. [MCPD_TOKEN_FILE]",
            metavar="FILE",
            hidden=after,
        ),
        _option(
            "--no-start",
            lambda cli, _: setattr(cli, "may_start", False),
            "Fail if the daemon is not running instead of starting it. [MCPD_NO_START=1]",
            is_flag=True,
            hidden=after,
        ),
    ]


def _with_common_options(command: click.Command) -> click.Command:
    """Add the common options to a command and its subcommands, after their own options."""
    taken = {option for parameter in command.params for option in parameter.opts}
    for option in _common_options(after=True):
        if taken.isdisjoint(option.opts):
            command.params.append(option)
    command.context_settings = {**CONTEXT, **command.context_settings}
    command.context_class = _CommandContext
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _with_common_options(child)
    return command


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from mcpd import __version__

        _cli_context(ctx).out.answer({"mcpctl": __version__}, f"mcpctl {__version__}")
        ctx.exit()


app = LazyGroup(
    "mcpctl",
    context_settings=CONTEXT,
    help="Control mcpd, the daemon that keeps your MCP servers connected.",
    epilog="Exit codes: mcpctl help exit-codes. Shell completion: mcpctl completion --help. Examples:\n\n\b\n"
    "  mcpctl status\n  mcpctl call get_current_time@time timezone=Europe/Paris",
    params=[
        *_common_options(after=False),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Show the version of mcpctl.",
        ),
    ],
)


def run_app(cli: CliContext, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Raises CtlError, KeyboardInterrupt or BrokenPipeError.

    Does not use click's `main`, which exits the process with its own exit codes.
    """
    if instruction := environ.get("_MCPCTL_COMPLETE"):
        return _complete(cli, instruction)
    if "--json" in (argv[: argv.index("--")] if "--" in argv else argv):
        cli.out.json = True  # before parsing, so that usage errors are JSON too
    try:
        with app.make_context("mcpctl", list(argv) or ["--help"], obj=cli) as ctx:
            result = app.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        cli.out.end_prompt_line()
        raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError as error:
        cli.out.block(error.format_message())
        return 0
    except CannotWrite as error:
        raise DaemonError({"message": error.message, "data": error.data()}) from None
    except click.ClickException as error:
        raise _to_error(error, argv) from None
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _to_error(error: click.ClickException, argv: Sequence[str]) -> CtlError:
    if not isinstance(error, click.UsageError):
        return CtlError(error.format_message())
    path = error.ctx.command_path if error.ctx is not None else "mcpctl"
    possible = getattr(error, "possibilities", None)
    near = {"suggestions": [*possible]} if possible else {}
    message = error.format_message()
    hint = f"{path} --help"
    if group := re.fullmatch(r"No such command '(.*?)'.*", message):
        name = path.removeprefix("mcpctl ")
        hint = SYNONYMS.get(f"{name} {group[1]}") or SYNONYMS.get(name, hint)
        if argv[-1] != group[1] and not argv[-1].startswith("-"):
            hint = re.sub("SERVER|NAME", argv[-1], hint)
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint, **near)


def _complete(cli: CliContext, instruction: str) -> int:
    from click.shell_completion import add_completion_class, shell_complete

    from ctl.cli.completion import SHELLS

    for shell in SHELLS.values():
        add_completion_class(shell)
    return shell_complete(app, {"obj": cli}, "mcpctl", "_MCPCTL_COMPLETE", instruction)
