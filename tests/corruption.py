"""Random damage to the bytes of a file: what failing disks, crashes and other programs do to it."""

from __future__ import annotations

import random
from collections.abc import Callable

_SPLICED = (
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"\0",
    b"\0" * 512,
    b"1e400",
    b"-1e308",
    b"1e308",
    b"9" * 30,
    b"-" + b"9" * 400,
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"{}",
    b"[]",
    b"[" * 3000,
    b'{"a":' * 1200,
    b"\n",
    b"\r",
    b"\xe2\x80\xa8",
    b'"',
    b"\\",
    b"\xef\xbb\xbf",
)


def corrupt(data: bytes, dice: random.Random) -> bytes:
    """Return `data` with one to three random damages; the result may still be valid."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(_DAMAGES)(data, dice)
    return data


def _flip_bit(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + bytes(byte ^ 1 << dice.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]


def _truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: _place(data, dice)]


def _delete(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + data[at + dice.randrange(1, 40) :]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    at, size = _place(data, dice), dice.randrange(1, 200)
    return data[:at] + data[at : at + size] * 2 + data[at + size :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + dice.choice(_SPLICED) + data[at:]


def _damage_string(data: bytes, dice: random.Random) -> bytes:
    """Insert behind a quotation mark, so that the JSON around the damage is often still valid."""
    quotes = [at for at, byte in enumerate(data) if byte == ord('"')] or [0]
    at = dice.choice(quotes) + 1
    return data[:at] + dice.choice(_SPLICED[:7]) + data[at:]


def _replace_value(data: bytes, dice: random.Random) -> bytes:
    """Replace what follows a colon up to the next comma or bracket."""
    colons = [at for at, byte in enumerate(data) if byte == ord(":")] or [0]
    start = dice.choice(colons) + 1
    ends = [end for mark in b",}]" if (end := data.find(mark, start)) >= 0]
    return data[:start] + dice.choice(_SPLICED) + data[min(ends, default=len(data)) :]


def _overwrite(data: bytes, dice: random.Random) -> bytes:
    """Replace a block, as a failing disk does."""
    at, size = _place(data, dice), dice.randrange(1, 64)
    return data[:at] + dice.choice((b"\0" * size, dice.randbytes(size))) + data[at + size :]


def _noise(data: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(64))


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip_bit,
    _flip_bit,
    _truncate,
    _delete,
    _repeat,
    _insert,
    _damage_string,
    _damage_string,
    _replace_value,
    _replace_value,
    _overwrite,
    _noise,
)


def _place(data: bytes, dice: random.Random) -> int:
    return dice.randrange(len(data) + 1)
