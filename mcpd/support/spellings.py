"""The spellings in which programs usually repeat a text: escaped, encoded, or as a line of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

from mcpd.support.escapes import unescape

_MIN_LENGTH = 6
"""Characters. Shorter spellings occur in ordinary text."""
_MIN_LINE_LENGTH = 16
_MAX_LENGTH = 16_384
"""Characters. Longer texts, such as whole keys, are not percent-encoded or written in HTML."""
_MAX_LINES = 100
"""Lines that are spelled in every way. Further ones are found as they are."""


def spellings(text: str) -> frozenset[str]:
    """Return `text` in all known spellings of at least six characters, also without its escape sequences.

    These are escape sequences, as in JSON and Python's `repr`, percent-encoding and its reverse, HTML,
    hexadecimal digits, and base64, also if `text` is a part of what is encoded, as the password in the header
    of HTTP's Basic authentication. Lines of at least 16 characters count separately, because logs are read by
    line.
    """
    found: set[str] = set()
    lines = [line for line in map(str.strip, text.splitlines()) if len(line) >= _MIN_LINE_LENGTH]
    found.update(lines[_MAX_LINES:])
    for part in {text, unquote(text), *lines[:_MAX_LINES]}:
        found.add(part)
        if part.isalnum() and part.isascii():  # escaping does not change it
            found.update(_encoded(part))
        else:
            found.update(_escaped(part))
            found.update(_encoded(part))
    found |= {unescape(each) for each in found}
    return frozenset(each for each in found if len(each) >= _MIN_LENGTH)


def _escaped(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    data = _bytes(text)
    yield data.decode("latin-1")  # of `repr` of bytes, unescaped
    if any(character > "\uffff" for character in text):
        units = text.encode("utf-16-le", "surrogatepass")
        yield "".join(chr(a | b << 8) for a, b in zip(units[::2], units[1::2], strict=True))  # of JSON
    if len(text) > _MAX_LENGTH:
        return
    for encoded in (
        quote(text, errors="replace"),
        quote(text, safe="", errors="replace"),
        quote_plus(text, errors="replace"),
    ):
        yield encoded
        yield encoded.replace("%", "%25")  # a URL within a URL
        yield "%".join(
            part[:2].lower() + part[2:] if n else part for n, part in enumerate(encoded.split("%"))
        )
    # As `html.escape`, whose module brings a table of 0.3 MB with it.
    unquoted = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = unquoted.replace('"', "&quot;").replace("'", "&#x27;")
    yield from (escaped, unquoted, escaped.replace("&#x27;", "&#39;"))
    yield escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _encoded(text: str) -> Iterator[str]:
    data = _bytes(text)
    yield data.hex()
    yield data.hex().upper()
    yield base64.b64encode(data).decode().rstrip("=")
    for before in range(3):
        # Three bytes make four characters. The first and last character may contain bits of other bytes.
        whole = base64.b64encode(b"\0" * before + data).decode()
        inside = whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6]
        yield inside
        yield inside.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as the environment's bytes were decoded
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
