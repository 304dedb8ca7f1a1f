"""`mcpctl resources` and `mcpctl read`."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.errors import CtlError, UsageError
from ctl.output import Line
from ctl.status_view import objects
from ctl.table import table


@click.command(epilog="Examples:\n\n\b\n  mcpctl resources\n  mcpctl resources everything --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def resources(cli: CliContext, server: str | None) -> int:
    """The resources and templates of every server, or of one."""
    reply = cli.call("mcpd/resources", {"server": server} if server else {})
    if cli.show_json(reply):
        return 0
    entries = [(entry, entry.get("uri")) for entry in objects(reply.value.get("resources"))]
    entries += [(entry, entry.get("uriTemplate")) for entry in objects(reply.value.get("resource_templates"))]
    if not entries:
        cli.out.message("no resources" + (f" on {server}" if server else ""))
        return 0
    rows: list[Line] = [
        [
            str(entry.get("server", "?")),
            str(uri or "?"),
            str(entry.get("mimeType") or "-"),
            " - ".join(str(entry[key]) for key in ("name", "description") if entry.get(key)) or "-",
        ]
        for entry, uri in entries
    ]
    header = ("SERVER", "URI", "TYPE", "NAME")
    cli.out.lines(table(header, rows, fit=cli.out.columns, drop=(2,), whole=1))
    return 0


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl read everything demo://resource/static/document/features.md\n"
    "  mcpctl read photos img://7 --output 7.png"
)
@click.argument("server", shell_complete=server_names)
@click.argument("uri", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write the content there instead.")
@click.pass_obj
def read(cli: CliContext, server: str, uri: str | None, output: str | None) -> int:
    """Read a resource.

    Written SERVER URI, or URI@SERVER.
    """
    if uri is None:
        uri, _, server = server.rpartition("@")
        if not uri or not server:
            raise UsageError("which resource?", hint="write SERVER URI; mcpctl resources lists them")
    reply = cli.call("mcpd/read", {"server": server, "uri": uri}, timeout=None)
    if cli.show_json(reply):
        return 0
    contents = objects(reply.value.get("contents"))
    if output is not None:
        _save(b"".join(_bytes(content) for content in contents), output)
        cli.out.message(f"wrote {output}")
        return 0
    for content in contents:
        _print(cli, content)
    return 0


def _print(cli: CliContext, content: Json) -> None:
    if isinstance(text := content.get("text"), str):
        cli.out.block(text)
    elif cli.out.tty:
        kind, size = content.get("mimeType", "binary"), len(_bytes(content))
        cli.out.message(f"[{kind}, {size} bytes: not shown on a terminal; use --output FILE, or a pipe]")
    else:
        cli.out.data(_bytes(content))


def _bytes(content: Json) -> bytes:
    if isinstance(text := content.get("text"), str):
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(str(content.get("blob", "")))
    except binascii.Error:
        raise CtlError(f"the server sent a broken base64 content for {content.get('uri')}") from None


def _save(data: bytes, path: str) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise CtlError(f"cannot write {path}: {error.strerror}") from None
