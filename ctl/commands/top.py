"""`mcpctl top`: what servers cost now."""

from __future__ import annotations

import time

import click

from ctl.context import CliContext
from ctl.usage_view import SORTS, top_table

_SAMPLE_SECONDS = 0.5
"""Seconds between the two looks that a rate needs."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl top --watch\n  mcpctl top --sort cpu --json")
@click.option("-w", "--watch", is_flag=True, help="Keep it on the screen and up to date; q or Ctrl-C ends.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="memory", show_default=True, help="What comes first."
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two looks, with --watch.",
)
@click.pass_obj
def top(cli: CliContext, watch: bool, sort: str, interval: float) -> int:
    """What servers cost now: memory, processor, calls.

    Memory and processor time are those of a server's whole process tree. With --watch, piped or under --json,
    it prints one table or one object for each look.
    """
    if watch:
        from ctl.watch import watch_top

        return watch_top(cli, sort, interval)
    asked = {"processes": True}
    before = cli.call("mcpd/stats", asked).value
    if cli.out.json:
        cli.out.json_document(cli.call("mcpd/stats", asked).text)
        return 0
    time.sleep(_SAMPLE_SECONDS)
    answer = cli.call("mcpd/stats", asked).value
    cli.out.lines(top_table(before, answer, sort, cli.out.columns))
    return 0
