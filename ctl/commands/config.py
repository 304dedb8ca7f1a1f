"""`mcpctl config`: validate, show, path."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ctl import definition_fields
from ctl.context import CliContext
from ctl.errors import DaemonError
from ctl.output import Line
from ctl.status_view import labelled_lines, mapping, shell_join
from ctl.table import table
from ctl.terminal_text import count


@click.group(epilog="Examples:\n\n\b\n  mcpctl config validate\n  mcpctl config path")
def config() -> None:
    """Validate, show or find the configuration."""


@config.command(
    epilog="Examples:\n\n\b\n  mcpctl config validate\n  mcpctl config validate ./servers.yaml --json"
)
@click.argument("file", required=False, type=click.Path())
@click.pass_obj
def validate(cli: CliContext, file: str | None) -> int:
    """Check a configuration without using it.

    Without FILE, the one that mcpd would read. Needs no daemon. Exit 2 when it cannot be used, with
    every complaint, its place and how to mend it.
    """
    from mcpd.config.loader import load
    from mcpd.model.errors import BadSpec

    try:
        loaded = load(Path(file) if file else None, os.environ)
    except BadSpec as error:
        raise DaemonError(
            {"message": f"{error.source or file} cannot be used", "data": error.data()}
        ) from None
    for warning in loaded.warnings:
        cli.out.message(f"warning: {warning}")
    names = sorted(loaded.specs)
    if cli.out.json:
        cli.out.json_value({"source": loaded.source, "servers": names, "warnings": list(loaded.warnings)})
    elif loaded.source == "none":
        cli.out.line(f"{loaded.path}: not there yet, which is good too: no servers")
    else:
        cli.out.line(
            f"{loaded.source}: good, {count(len(names), 'server')}", f": {', '.join(names)}" if names else ""
        )
    return 0


@config.command(epilog="Examples:\n\n\b\n  mcpctl config show\n  mcpctl config show --json")
@click.pass_obj
def show(cli: CliContext) -> int:
    """The definitions in force, secrets masked."""
    reply = cli.call("mcpd/config")
    if cli.show_json(reply):
        return 0
    view = reply.value
    cli.out.lines(labelled_lines([(key, str(view.get(key))) for key in ("source", "path", "generation")]))
    definitions = mapping(view.get("servers"))
    rows: list[Line] = []
    for name, value in definitions.items():
        definition = mapping(value)
        what = definition_fields.url(definition) or shell_join(definition_fields.command(definition))
        rows.append([name, "on" if definition_fields.is_enabled(definition) else "off", what])
    if rows:
        cli.out.line()
        cli.out.lines(table(("SERVER", "SWITCHED", "COMMAND OR URL"), rows, fit=cli.out.columns))
    return 0


@config.command(epilog="Examples:\n\n\b\n  mcpctl config path\n  $EDITOR $(mcpctl config path)")
@click.pass_obj
def path(cli: CliContext) -> int:
    """Where the configuration file is, there or not.

    What the running daemon says; without one, what it would say. Never starts one.
    """
    from ctl.commands.edit import configuration_path

    found = str(configuration_path(cli)[0])
    if cli.out.json:
        cli.out.json_value({"path": found})
    else:
        cli.out.line(found)
    return 0
