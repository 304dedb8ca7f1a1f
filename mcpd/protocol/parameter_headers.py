"""HTTP headers that repeat parts of a modern message, so that proxies need not parse it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcpd.wire import message as wire
from mcpd.wire.headers import (
    NAME_PARAMETERS,
    encode_header_value,
    invalid_annotations,
    mirrored_properties,
    param_headers,
)
from mcpd.wire.message import BadFrame


class _Params(msgspec.Struct, frozen=True):
    """The params that are repeated, or decide what is."""

    name: str | None = None
    uri: str | None = None
    taskId: str | None = None  # the protocol's spelling
    arguments: Raw = Raw(b"{}")


class _Frame(msgspec.Struct, frozen=True):
    params: _Params = _Params()


_decode = msgspec.json.Decoder(_Frame).decode


class ParameterHeaders:
    """Knows which arguments of which tools are repeated; `admit_tool` must see a tool before it is called."""

    def __init__(self, version: str) -> None:
        self._version = {"MCP-Protocol-Version": version}
        self._schemas: dict[str, Mapping[str, object]] = {}

    def headers(self, method: str, frame: bytes) -> Mapping[str, str]:
        """Return the headers of a message; see `Dialect.headers`."""
        if not method:
            return self._version
        headers = {**self._version, "Mcp-Method": encode_header_value(method)}
        named_by = NAME_PARAMETERS.get(method)
        if named_by is None:
            return headers
        try:
            params = _decode(frame).params
        except (msgspec.MsgspecError, RecursionError):
            return headers  # let the server refuse such a request
        name = getattr(params, named_by)
        if name is not None:
            headers["Mcp-Name"] = encode_header_value(name)
            schema = self._schemas.get(name) if method == "tools/call" else None
            if schema is not None:
                headers.update(_argument_headers(schema, params.arguments))
        return headers

    def admit_tool(self, tool: str, definition: bytes) -> str | None:
        """Learn which arguments to repeat; return why the tool must not be offered, or None."""
        self._schemas.pop(tool, None)
        if b"x-mcp-header" not in definition and b"\\u" not in definition:
            return None
        try:
            body = wire.value(definition)
        except BadFrame as error:
            return str(error)
        schema = body.get("inputSchema") if isinstance(body, dict) else None
        if not isinstance(schema, dict):
            return None
        wrong = invalid_annotations(schema)
        if wrong is None and mirrored_properties(schema):
            self._schemas[tool] = schema
        return wrong


def _argument_headers(schema: Mapping[str, object], arguments: Raw) -> Mapping[str, str]:
    try:
        return param_headers(schema, wire.mapping(arguments))
    except BadFrame:
        return {}
