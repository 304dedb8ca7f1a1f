"""Finds the parts of a text that contain something in hexadecimal digits, base32, or base64, or as numbers.

The beginning of what is encoded is unknown. A text is therefore decoded once for each way in which bytes may
be aligned with characters; wrong ways result in bytes that mean nothing.
"""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from mcpd.support.escapes import Place, unescape

Contains = Callable[[str], bool]
"""Whether a decoded text, with bytes as characters of Latin-1, contains what is looked for."""

_MIN_END, _MAX_END = 6, 4096
"""Characters of an encoded part whose rest is missing."""

_MAX_DEPTH = 3
"""How often something may be encoded, as base64 in base64."""
_MAX_DECODED = 8
"""Decoded characters for each character of a text, over all depths. This limits the time that a text takes
that was made for this purpose."""
_MAX_FOUND = 16
"""Parts that are told apart. If there are more, what is between them counts as well."""
_BASE64_CHARACTERS = string.ascii_letters + string.digits + "+/_-"
_BASE32_CHARACTERS = string.ascii_letters + "234567"
_HEX_CHARACTERS = string.hexdigits
# The lengths are those of six bytes. Each pattern starts with a single character, which makes it fast.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}")
_BASE32 = re.compile(r"[A-Za-z2-7](?:(?<=[A-Z2-7])[A-Z2-7]{9,}|(?<=[a-z2-7])[a-z2-7]{9,})")
_HEX = re.compile(r"[0-9a-fA-F][0-9a-fA-F]{11,}")
_HEX_LIST = re.compile(
    r"[0-9a-fA-F](?<![0-9a-fA-F]{2})[0-9a-fA-F](?:[ :,-] ?(?:0[xX])?[0-9a-fA-F]{2}){5,}(?![0-9a-fA-F])"
)
_DECIMAL_LIST = re.compile(r"[0-9](?<![0-9]{2})[0-9]{0,2}(?:(?:, ?| )[0-9]{1,3}){5,}(?![0-9])")
_NO_HEX = re.compile(r"0[xX]|[^0-9a-fA-F]")
_STANDARD = str.maketrans("-_", "+/")
_DIGITS_32 = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_INVISIBLE = bytes((*range(9), 11, 12, *range(14, 32), *range(127, 160), 0xAD))
"""What `unescape` would remove: it is missing in spellings as well."""


def _aligned(value: int, length: int, step: int) -> Iterator[bytes]:
    """Return the bytes of a number of this many bits that end at each possible place."""
    size = length // 8 + 1
    for shift in range(0, 8, step):
        yield (value >> shift).to_bytes(size, "big")


def _from_base64(text: str) -> Iterator[bytes]:
    aligned = "A" * (-len(text) % 4) + text.translate(_STANDARD)
    return _aligned(int.from_bytes(base64.b64decode(aligned), "big"), len(aligned) * 6, 2)


def _from_base32(text: str) -> Iterator[bytes]:
    return _aligned(int(text.upper().translate(_DIGITS_32), 32), len(text) * 5, 1)


def _from_hex(text: str) -> Iterator[bytes]:
    return _aligned(int(text, 16), len(text) * 4, 4)


def _from_hex_list(text: str) -> Iterator[bytes]:
    return iter((bytes.fromhex(_NO_HEX.sub("", text)),))


def _from_decimal_list(text: str) -> Iterator[bytes]:
    return iter((bytes(int(each) & 255 for each in re.findall("[0-9]+", text)),))


@attrs.frozen
class _Encoding:
    pattern: re.Pattern[str]
    separator: str
    """Between parts that are decoded together: its bytes are in no text."""
    decode: Callable[[str], Iterator[bytes]]

    def read(self, parts: Iterable[str]) -> str:
        """Return what the parts contain, in every alignment. Without NUL, UTF-16 is readable."""
        pieces = self.decode(self.separator.join(parts))
        text = "\xff\xff".join(piece.translate(None, _INVISIBLE).decode("latin-1") for piece in pieces)
        return unescape(text) if "\\" in text or "%" in text or "&" in text else text


_ENCODINGS = (
    _Encoding(_BASE64, "////", _from_base64),
    _Encoding(_BASE32, "77777777", _from_base32),
    _Encoding(_HEX, "ffff", _from_hex),
)
_LISTS = (
    _Encoding(_HEX_LIST, ",ff,ff,", _from_hex_list),
    _Encoding(_DECIMAL_LIST, ",255,255,", _from_decimal_list),
)
_AT_END = tuple(zip((_BASE64_CHARACTERS, _BASE32_CHARACTERS, _HEX_CHARACTERS), _ENCODINGS, strict=True))


def find_encoded(text: str, contains: Contains) -> list[Place]:
    """Return which parts of `text` contain something once they are decoded, also several times."""
    found: list[Place] = []
    for encoding in (*_ENCODINGS, *_LISTS):
        places = [each.span() for each in encoding.pattern.finditer(text)]
        waiting = [places] if _is_in(text, places, encoding, contains) else []
        while waiting:
            some = waiting.pop()
            if len(some) > 1 and len(found) < _MAX_FOUND:
                halves = (some[len(some) // 2 :], some[: len(some) // 2])
                if inside := [half for half in halves if _is_in(text, half, encoding, contains)]:
                    waiting += inside
                    continue
            found.append((some[0][0], some[-1][1]))
    return found


def _is_in(text: str, places: Sequence[Place], encoding: _Encoding, contains: Contains) -> bool:
    parts = [text[start:end] for start, end in places]
    left = _MAX_DECODED * sum(map(len, parts)) + 1024
    pending = [(encoding, parts, 1)]
    while pending and left > 0:
        encoding, parts, depth = pending.pop()
        if not parts:
            continue
        plain = encoding.read(parts)
        if contains(plain):
            return True
        left -= len(plain)
        if depth < _MAX_DEPTH and _BASE64.search(plain):
            pending += ((inner, inner.pattern.findall(plain), depth + 1) for inner in _ENCODINGS)
    return False


def find_encoded_end(text: str, begins: Contains) -> int | None:
    """Return where an encoded part begins that, decoded, ends with what is looked for, or None.

    The end of the text is missing.
    """
    for characters, encoding in _AT_END:
        end = text[-_MAX_END:]
        run = end[len(end.rstrip(characters)) :]
        if len(run) >= _MIN_END and any(begins(piece.decode("latin-1")) for piece in encoding.decode(run)):
            return len(text) - len(run)
    return None
