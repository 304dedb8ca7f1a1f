"""Requests as JSON. What a program passes and JSON cannot express is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mcpd.client.errors import NOT_SENT, InvalidCall
from mcpd.client.json_types import describe_foreign_type, has_only_json_types, to_base_type
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
    Raises TypeError for a type that JSON does not have, also if the encoder could convert it.
    """
    params = message.get("params", {})
    try:
        data = msgspec.json.encode(message, enc_hook=to_base_type)
    except TypeError as error:
        raise TypeError(_describe_type(params) or _describe(params, error)) from None
    except (UnicodeEncodeError, RecursionError) as error:
        raise InvalidCall(_describe(params, error), "invalid_arguments", NOT_SENT) from None
    if not has_only_json_types(params):
        raise TypeError(_describe_type(params))
    if len(data) > MAX_MESSAGE:
        raise InvalidCall(describe_excess(len(data)), "invalid_arguments", NOT_SENT)
    if b"null" in data:  # which the encoder also writes for NaN
        text = describe_non_finite(params.get("arguments")) or describe_non_finite(params)
        if text:
            raise InvalidCall(text, "invalid_arguments", NOT_SENT)
    return data


def _describe_type(params: Mapping[str, Any]) -> str:
    return describe_foreign_type(params.get("arguments")) or describe_foreign_type(params)


def _describe(params: Mapping[str, Any], error: Exception) -> str:
    """Return the text of an encoder's error, and the argument or parameter that it is about."""
    arguments = params.get("arguments")
    for named in (arguments, params):
        for name, value in named.items() if isinstance(named, Mapping) else ():
            try:
                msgspec.json.encode({name: value}, enc_hook=to_base_type)
            except type(error):
                return f"the argument {name} cannot be sent as JSON: {error}"
    return f"the request cannot be sent as JSON: {error}"
