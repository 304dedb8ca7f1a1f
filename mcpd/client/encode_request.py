"""Requests as JSON. What a program passes and JSON cannot express is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mcpd.client.errors import NOT_SENT, InvalidCall
from mcpd.model.finite_numbers import describe_non_finite
from mcpd.model.message_limit import MAX_MESSAGE, describe_excess


def as_object(arguments: Mapping[str, object] | None) -> dict[str, object]:
    """Return the arguments of a tool or prompt as a dict. Raises TypeError if they are not a mapping."""
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise TypeError(f'the arguments must be a mapping such as {{"path": "/tmp"}}, not {kind}')
    return dict(arguments)


def encode_request(message: Mapping[str, Any]) -> bytes:
    """Return a request as JSON.

    Raises InvalidCall for NaN, infinities, text with lone surrogates, and more than `MAX_MESSAGE` bytes.
    Raises TypeError for a type that JSON does not have.
    """
    try:
        data = msgspec.json.encode(message)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        text = _describe(message.get("params", {}), error)
        if isinstance(error, TypeError):
            raise TypeError(text) from None
        raise InvalidCall(text, "invalid_arguments", NOT_SENT) from None
    if len(data) > MAX_MESSAGE:
        raise InvalidCall(describe_excess(len(data)), "invalid_arguments", NOT_SENT)
    if b"null" in data:  # which the encoder also writes for NaN
        params = msgspec.to_builtins(message.get("params", {}))
        text = describe_non_finite(params.get("arguments")) or describe_non_finite(params)
        if text:
            raise InvalidCall(text, "invalid_arguments", NOT_SENT)
    return data


def _describe(params: Mapping[str, Any], error: Exception) -> str:
    """Return the text of an encoder's error, and the argument or parameter that it is about."""
    arguments = params.get("arguments")
    for named in (arguments, params):
        for name, value in named.items() if isinstance(named, Mapping) else ():
            try:
                msgspec.json.encode({name: value})
            except type(error):
                return f"the argument {name} cannot be sent as JSON: {error}"
    return f"the request cannot be sent as JSON: {error}"
