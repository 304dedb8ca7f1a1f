"""`mcpctl tap`: a server's messages, as they pass."""

from __future__ import annotations

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import mapping
from ctl.terminal_text import clean, cut

_ARROWS = {"to-server": ("→", "cyan"), "from-server": ("←", "green"), "note": ("·", "dim")}


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl tap github\n  mcpctl tap github --method 'tools/*' --json | jq .message"
)
@click.argument("server", shell_complete=server_names)
@click.option(
    "-m",
    "--method",
    "methods",
    multiple=True,
    metavar="PATTERN",
    help="Only these, with their answers; may be given several times. * and ? allowed.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=65_536,
    show_default=True,
    help="Cut longer messages after so many bytes.",
)
@click.pass_obj
def tap(cli: CliContext, server: str, methods: tuple[str, ...], limit: int) -> int:
    """Watch a server's messages pass, secrets masked.

    Over all its connections, until Ctrl-C. → is to the server, ← from it. Calls are not slowed down: what
    comes faster than it can be shown is left out, and counted. With --json, one object a line.
    """
    if cli.out.tty:
        cli.out.message(paint(f"watching {server}; Ctrl-C ends", "dim"))
    params: Json = {"server": server, "methods": list(methods), "limit": limit}
    for item in cli.stream("mcpd/tap", params):
        assert item is not None
        if not (frame := mapping(item.value.get("frame"))):
            continue
        if cli.out.json:
            cli.out.json_line(frame)
            continue
        if dropped := frame.get("dropped"):
            cli.out.line(paint(f"… {dropped} messages came too fast to be shown", "yellow"))
        cli.out.line(*frame_line(frame, cli.out.columns))
        cli.out.flush()
    return 0


def frame_line(frame: Json, columns: int | None) -> Line:
    """One message: when, where to, what, and as much of it as fits."""
    import json

    arrow, style = _ARROWS.get(str(frame.get("direction")), ("?", "bold"))
    message = frame.get("message")
    text = str(frame.get("text", "")) if message is None else json.dumps(message, ensure_ascii=False)
    number = f" #{frame['id']}" if frame.get("id") else ""
    start = f"{str(frame.get('at', ''))[11:23]} "
    label = f" {frame.get('method') or ('-' if message is not None else '')}{number} "
    rest = clean(text) + (f" … ({frame.get('bytes')} bytes)" if frame.get("cut") else "")
    if columns is not None:
        rest = cut(rest, max(0, columns - len(start) - len(label) - 1))
    return [
        paint(start, "dim"),
        paint(arrow, style),
        label if frame.get("direction") != "note" else " ",
        rest,
    ]
