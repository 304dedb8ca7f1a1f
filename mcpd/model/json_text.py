"""Writes JSON also for text that UTF-8 cannot express."""

from __future__ import annotations

import re

import msgspec

from mcpd.model.steps import Steps

_PORTION = 1 << 20
"""Bytes or characters of a long string that are converted in one step."""
_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]")
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


def encode_text(text: str) -> Steps[bytes]:
    """Return a string without surrogates as JSON; a long one takes up to 4 ms per MiB."""
    if len(text) <= _PORTION:
        return msgspec.json.encode(text)
    parts = [b'"']
    for start in range(0, len(text), _PORTION):
        parts.append(msgspec.json.encode(text[start : start + _PORTION])[1:-1])
        yield
    parts.append(b'"')
    return b"".join(parts)


def decode_text(data: bytes) -> Steps[str]:
    """Decode a JSON string. Raises what msgspec raises. A long one takes up to 2 ms per MiB."""
    if len(data) <= _PORTION or not (data.startswith(b'"') and data.endswith(b'"')):
        return msgspec.json.decode(data, type=str)
    parts = []
    start, last = 1, len(data) - 1
    while start < last:
        end = _cut(data, start, start + _PORTION) if start + _PORTION < last else last
        parts.append(msgspec.json.decode(b'"%b"' % data[start:end], type=str))
        start = end
        yield
    return "".join(parts)


def _cut(data: bytes, start: int, end: int) -> int:
    """Return the last place until `end` where a string can be cut, given that it can be cut at `start`."""
    while data[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    at = data.rfind(b"\\", end - 6, end)
    if at < 0 or not _begins_escape(data, start, at):
        return end
    is_second = _PAIR.match(data, at - 6) is not None and _begins_escape(data, start, at - 6)
    return at - 6 if is_second else at


def _begins_escape(data: bytes, start: int, at: int) -> bool:
    """Return whether the backslash at `at` is not itself escaped."""
    before = data[start:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _replace_surrogates(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(each) for each in value]
    return value
