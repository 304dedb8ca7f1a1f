"""The spellings of a text that differ from it even without escapes, as bytes and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from mcpd.support.escapes import unescape

_MIN_LENGTH = 6
"""Characters. Shorter spellings occur in ordinary text."""
_MIN_LINE_LENGTH = 16
_MIN_KEPT = 8
"""ASCII characters of a text whose other ones were lost."""
_LINES = str.maketrans("", "", "\n\r\t")


def spellings(text: str) -> frozenset[str]:
    """Return `text` as programs repeat it, in spellings of at least six characters.

    Escapes and encodings are not among them: `Unescaped` and `find_encoded` read the text that is searched.
    Escapes that `text` contains itself are read as well. Lines of at least 16 characters count separately,
    because logs are read by line.
    """
    lines = [line for line in map(str.strip, text.splitlines()) if len(line) >= _MIN_LINE_LENGTH]
    found = {each for part in {text, unquote(text), *lines} for each in _spelled(part)}
    found |= {unescape(each) for each in found}
    found |= {unescape(each.translate(_LINES)) for each in found}
    return frozenset(each for each in found if len(each) >= _MIN_LENGTH)


def _spelled(text: str) -> Iterator[str]:
    for each in (text, *_of_character_sets(text)):
        yield each
        if " " in each:
            yield each.replace(" ", "+")  # in forms


def _of_character_sets(text: str) -> Iterator[str]:
    if text.isascii():
        return
    yield _bytes(text).decode("latin-1")  # the bytes of percent-encoding, and of Python's `repr`
    if any(character > "\uffff" for character in text):
        units = text.encode("utf-16-le", "surrogatepass")
        yield "".join(chr(a | b << 8) for a, b in zip(units[::2], units[1::2], strict=True))  # of JSON
    kept = "".join(character for character in text if character.isascii())
    if len(kept) >= _MIN_KEPT:
        yield kept  # of bytes that are not UTF-8


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as the environment's bytes were decoded
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
