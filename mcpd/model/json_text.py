"""Writes JSON also for text that UTF-8 cannot express."""

from __future__ import annotations

import re

import msgspec

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
