"""`.env` files: NAME=value lines, as the editors' libraries read them."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*
    (?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'|(?P<bare>[^\r\n]*))""",
    re.VERBOSE | re.MULTILINE,
)
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\"": '"', r"\\": "\\", r"\$": "$"}


def read_dotenv(path: Path) -> dict[str, str] | None:
    """Its variables in order; None when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    return parse_dotenv(text)


def parse_dotenv(text: str) -> dict[str, str]:
    """A `#` after a blank begins a remark, but not inside quotes; in double quotes `\\n` is a line break."""
    values: dict[str, str] = {}
    for found in _LINE.finditer(text):
        if found["double"] is not None:
            value = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), found["double"])
        elif found["single"] is not None:
            value = found["single"]
        else:
            value = re.split(r"\s#", found["bare"], maxsplit=1)[0].strip()
        values[found["name"]] = value
    return values
