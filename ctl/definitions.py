"""Servers' definitions from a file, for `mcpctl apply`: read here, judged by the daemon."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ctl.errors import DaemonError, UsageError
from ctl.output import Output
from mcpd.config.loader import decode_utf8, format_of, parse_text, read_layout
from mcpd.model.errors import BadSpec, Problem


def read_definitions(file: str, out: Output) -> dict[str, object]:
    """Name → definition, from a file in either shape and any format, or from stdin for `-` (JSON).

    A relative `cwd` is relative to the file, and the daemon does not know where that is: it is made
    absolute. Raises Usage when the file cannot be read, Refused with all problems when it is no set.
    """
    source = "stdin" if file == "-" else file
    problems: list[Problem] = []
    warnings: list[str] = []
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
        kind = "JSON" if file == "-" else format_of(Path(file), source)
        outlined = read_layout(parse_text(decode_utf8(data, source), kind, source), problems, warnings)
        if problems:
            raise BadSpec(problems, source)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except BadSpec as error:
        raise DaemonError({"message": f"{source} cannot be used", "data": error.data()}) from None
    for warning in warnings:
        out.message(f"warning: {warning}")
    base = Path.cwd() if file == "-" else Path(file).expanduser().absolute().parent
    definitions: dict[str, object] = {}
    for name, definition, _ in outlined.servers:
        definitions[str(name)] = _with_absolute_cwd(definition, base, enabled=outlined.enabled)
    return definitions


def _with_absolute_cwd(definition: object, base: Path, *, enabled: bool) -> object:
    if not isinstance(definition, dict):
        return definition
    placed = dict(definition)
    cwd = placed.get("cwd")
    if isinstance(cwd, str) and cwd and not cwd.startswith(("/", "~", "$")):
        placed["cwd"] = os.path.normpath(base / cwd)
    if not enabled:
        placed.pop("disabled", None)
        placed["enabled"] = False
    return placed
