"""Reads JSON within limits: how many values, how many on one level, and how deep; and writes it also for text
that UTF-8 cannot express.

Decoding a value takes about 100 ns and 60 bytes, so a message of 32 MiB could stop the daemon for seconds and
take gigabytes. These functions look at the bytes only, and the decoders here stop at the limit. What is not
decoded, but forwarded as bytes, has no limit but its size.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from itertools import accumulate

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from mcpd.model.text import count_up_to

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_json(value: object) -> bytes:
    """Return a value of plain JSON types as one line, with U+FFFD for each surrogate.

    Python has surrogates for bytes of a path that are not UTF-8, and for half a pair such as `"\\ud800"` in
    a configuration file. Such a path or definition must not make a response about others fail.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_surrogates(value))


def _replace_surrogates(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(each) for each in value]
    return value


MAX_VALUES = 100_000
"""Values in a document that is decoded as a whole, which takes about 10 ms."""
MAX_BYTES = 8 * 1024 * 1024
"""Length of such a document, since a long string takes time and memory, too."""
MAX_DEPTH = 1000
"""Nested arrays and objects in such a document: schema validators recurse on the C stack."""
MAX_MEMBERS = 10_000
"""Members of an object of which one level is decoded."""
MAX_ITEMS = 10_000
"""Items of an array of which one level is decoded."""
_MAX_COMMAS = 50_000
"""Commas in an array of which all items are decoded, which takes 10 ms at most."""
_MAX_FIELDS = 1000
"""Fields of a decoder that is made when it may be needed, which takes 2 ms."""

_SLICE = 1 << 18
_OUTSIDE = bytes(byte for byte in range(256) if byte not in b"[]{},")
_STEP = {ord(b"["): 1, ord(b"{"): 1, ord(b"]"): -1, ord(b"}"): -1, ord(b","): 0}
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode


class JsonTooLarge(ValueError):
    """The document exceeds a limit; the message names the limit and its value. Nothing was decoded."""


def check_size(data: bytes, max_values: int = MAX_VALUES, max_bytes: int = MAX_BYTES) -> None:
    """Raise JsonTooLarge if a JSON document exceeds one of these limits, or nests deeper than MAX_DEPTH.

    Takes 6 ms per MiB at most, and nothing for a small document. The document need not be valid.
    """
    if len(data) <= MAX_DEPTH and len(data) <= max_values:
        return
    if len(data) > max_bytes:
        raise JsonTooLarge(f"{len(data)} bytes, which is more than {max_bytes}")
    opened = count_up_to(data, b"[", max_values) + count_up_to(data, b"{", max_values)
    # Upper bounds, which are enough for nearly all documents: they also count what is inside strings.
    if opened <= MAX_DEPTH and opened + count_up_to(data, b",", max_values) < max_values:
        return
    marks = _structure(data, 2 * max_values)
    # Each value but the first follows a comma or the bracket of its parent. An empty array counts twice.
    if len(marks) - marks.count(b"]") - marks.count(b"}") >= max_values:
        raise JsonTooLarge(f"more than {max_values} values")
    if max(accumulate(map(_STEP.__getitem__, marks)), default=0) > MAX_DEPTH:
        raise JsonTooLarge(f"nested deeper than {MAX_DEPTH} levels")


def _structure(data: bytes, limit: int) -> bytes:
    """Return the brackets and commas outside strings, in order. Stops soon after `limit` of them.

    Works in portions that fit into the processor's cache.
    """
    found = bytearray()
    inside = False
    start = 0
    while start < len(data) and len(found) <= limit:
        end = start + _SLICE
        while data[end - 1 : end] == b"\\":  # do not cut an escape
            end += 1
        portion = data[start:end]
        start = end
        if b"\\" in portion:
            portion = portion.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = portion.split(b'"')
        found += b"".join(pieces[inside::2]).translate(None, _OUTSIDE)
        inside ^= len(pieces) % 2 == 0
    return bytes(found)


class _CountedKey(Enum):
    """Stands for a key of an object while its members are counted.

    msgspec looks up each key and skips its value without decoding it; no other type of key can stop it.
    """

    ANY = ""

    @classmethod
    def _missing_(cls, key: object) -> _CountedKey:
        _count.left -= 1
        if _count.left < 0:
            raise ValueError(key)
        return cls.ANY


class _Count:
    left = 0


_count = _Count()
_decode_counting = msgspec.json.Decoder(dict[_CountedKey, Raw]).decode


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """Decode one level of an object. Raises JsonTooLarge, and what msgspec raises if it is not an object."""
    _check_members(raw)
    return _decode_members(raw)


def _check_members(raw: Raw | bytes) -> None:
    """Raise JsonTooLarge if an object has too many members, and perhaps what msgspec raises if it is none."""
    # A member has at least four bytes.
    if len(raw) > 4 * MAX_MEMBERS and count_up_to(bytes(raw), b":", MAX_MEMBERS) > MAX_MEMBERS:
        _count.left = MAX_MEMBERS
        try:
            _decode_counting(raw)
        except msgspec.ValidationError:
            if _count.left < 0:
                raise JsonTooLarge(f"an object with more than {MAX_MEMBERS} members") from None
            raise


def items(raw: Raw | bytes, limit: int = MAX_ITEMS) -> list[Raw]:
    """Decode one level of an array. Raises JsonTooLarge, and what msgspec raises if it is not an array."""
    found, has_more = first_items(raw, limit)
    if has_more:
        raise JsonTooLarge(f"an array with more than {limit} items")
    return found


def first_items(raw: Raw | bytes, limit: int = MAX_ITEMS) -> tuple[list[Raw], bool]:
    """Decode the first `limit` items of an array; return them, and whether there are more.

    Raises what msgspec raises if it is not an array.
    """
    if not _may_be_too_many(limit, raw):
        found = _decode_items(raw)
        return found[:limit], len(found) > limit
    found = [item for item in astuple(_first_as_fields(limit + 1).decode(raw)) if len(item)]
    return found[:limit], len(found) > limit


def _may_be_too_many(limit: int, raw: Raw | bytes) -> bool:
    """Return whether an array may have too many items to decode all and count them then."""
    if len(raw) <= 2 * limit:  # an item has at least 2 bytes, with its comma
        return False
    # A decoder for 10,000 items takes 80 ms to make and 3 MB, and is seldom needed.
    return limit <= _MAX_FIELDS or count_up_to(bytes(raw), b",", _MAX_COMMAS) > _MAX_COMMAS


@lru_cache(maxsize=8)
def _first_as_fields(limit: int) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return a decoder of the first items of an array as fields, which skips the others."""
    fields = [(f"f{number}", Raw, Raw(b"")) for number in range(limit)]
    return msgspec.json.Decoder(msgspec.defstruct("Items", fields, array_like=True, gc=False))
