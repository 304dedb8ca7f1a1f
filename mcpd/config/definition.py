"""The fields of a definition, which other products spell differently, and the JSON Schema of a document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NewType, get_args

import attrs

from mcpd.config.oauth import OAUTH_SHAPE
from mcpd.config.settings import (
    WrittenRestart,
    WrittenSettings,
    WrittenTimeouts,
)
from mcpd.config.structuring import (
    Duration,
    Milliseconds,
    field,
    object_schema,
    register,
    spellings,
    text,
    written_fields,
)
from mcpd.model.codec import Invalid, converter
from mcpd.model.json_path import closest_match
from mcpd.model.record import Record
from mcpd.model.server_spec import (
    LEAST_RESULT_LIMIT,
    Concurrency,
    Share,
)
from mcpd.model.text import shorten

RemoteKind = Literal["http", "sse", "ws"]
TransportKind = Literal["stdio", RemoteKind]
_HTTP_TYPES = """
    http https streamable-http streamableHttp streamable_http streamablehttp http-stream httpStream
    http_stream remote
"""
TRANSPORT_TYPES: Mapping[str, TransportKind] = {
    "stdio": "stdio",
    "local": "stdio",
    **dict.fromkeys(_HTTP_TYPES.split(), get_args(RemoteKind)[0]),
    "sse": "sse",
    "ws": "ws",
    "wss": "ws",
    "websocket": "ws",
}
"""Every accepted value of `type` → the transport."""


def _transport(value: object) -> TransportKind:
    written = text(value)
    kind = TRANSPORT_TYPES.get(written) or TRANSPORT_TYPES.get(written.lower())
    if kind is None:
        match = closest_match(written, list(TRANSPORT_TYPES))
        fix = f"did you mean '{match}'?" if match else "write one of stdio, http, sse, ws"
        raise Invalid(f"unknown type '{shorten(written, 40)}'", fix)
    return kind


def _command(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (text(value),)
    words = converter.structure(value, tuple[str, ...])
    if not words or not words[0]:
        raise Invalid("Missing 'command': the list is empty", "write the program as the first item")
    return words


def _umask(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise Invalid("must be a string of three octal digits", 'write for example "022", in quotes')
    return int(value, 8)


def _tag(value: object) -> str:
    tag = text(value)
    if set(tag) & set("*?[]"):
        raise Invalid(f"{tag!r} is not a tag", "write a word, such as work")
    return tag


def _cache(value: object) -> object:
    return False if value is False else converter.structure(value, dict[str, Duration])


Type = NewType("Type", str)
Command = NewType("Command", tuple[str, ...])
Umask = NewType("Umask", int)
Tag = NewType("Tag", str)
_STRINGS = {"type": "array", "items": {"type": "string"}}
_LIFETIMES = {"type": "object", "additionalProperties": {"type": "string"}}
register(Type, _transport, {"enum": list(TRANSPORT_TYPES)})
register(Command, _command, {"anyOf": [{"type": "string", "minLength": 1}, {**_STRINGS, "minItems": 1}]})
register(Umask, _umask, {"type": "string", "pattern": "^0?[0-7]{3}$"})
register(Tag, _tag, {"type": "string"})
Cache = NewType("Cache", object)
"""False, or names of tools → seconds."""
register(Cache, _cache, {"anyOf": [{"const": False}, _LIFETIMES]})
_INCLUDE_ALIASES = ("enabledTools", "enabled_tools")
_EXCLUDE_ALIASES = ("disabledTools", "disabled_tools")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenArgument(Record):
    hide: bool | None = field("Do not show the argument to clients.")
    value: object = field("Send this value instead; clients do not see the argument.", shape={})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenOverride(Record):
    """What is changed of one tool."""

    name: str | None = field("The name for clients.")
    description: str | None = field("The description for clients.", may_be_empty=True)
    arguments: Mapping[str, WrittenArgument] | None = field("Arguments to hide or to fix.")
    always_load: bool | None = field("Ask hosts that defer tools not to defer it.")


Tools = NewType("Tools", object)
"""Names of tools to include, as some editors write it, or changes by the name of a tool."""


def _tools(value: object) -> object:
    kind = tuple[str, ...] if isinstance(value, list) else dict[str, WrittenOverride]
    return converter.structure(value, kind)


register(
    Tools,
    _tools,
    {"anyOf": [_STRINGS, {"type": "object", "additionalProperties": object_schema(WrittenOverride)}]},
)


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class StdioFields(Record):
    """What only a local server has."""

    command: Command | None = field("The program, or a list of program and arguments.", aliases=("cmd",))
    args: tuple[str, ...] | None = field("The program's arguments.")
    env: Mapping[str, str] | None = field("Extra environment variables.", aliases=("environment", "envs"))
    cwd: str | None = field("The working directory.", aliases=("workingDirectory",))
    umask: Umask | None = field("The umask, in octal.")


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class RemoteFields(Record):
    """What only a remote server has."""

    url: str | None = field(
        "The URL of a remote server.", aliases=("httpUrl", "serverUrl", "server_url", "uri")
    )
    headers: Mapping[str, str] | None = field(
        "Headers to send with every request.", aliases=("http_headers",)
    )
    ca_file: str | None = field("PEM file of additional CA certificates to trust.", aliases=("ca_file",))
    oauth: object = field("How to log in to a remote server, or false.", shape=OAUTH_SHAPE)


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class ToolFields(Record):
    """What concerns the tools of a server."""

    tool_timeouts: Mapping[str, Milliseconds] | None = field(
        "Milliseconds for single tools, instead of `timeout`."
    )
    include_tools: tuple[str, ...] | None = field(
        "Provide only these tools; `*` and `?` allowed.", aliases=_INCLUDE_ALIASES
    )
    exclude_tools: tuple[str, ...] | None = field(
        "Do not provide these tools; `*` and `?` allowed.", aliases=_EXCLUDE_ALIASES
    )
    tools: Tools | None = field("Changes of single tools: `name`, `description`, `arguments`, `alwaysLoad`.")
    always_load: bool | None = field("Ask hosts that defer tools not to defer these.")
    tags: tuple[Tag, ...] | None = field("Groups that the server and its tools belong to.")
    tool_tags: Mapping[str, tuple[Tag, ...]] | None = field(
        "Further groups of single tools; `*` and `?` allowed."
    )
    cache: Cache | None = field("How long to use the results of tools again; `false`: cache nothing.")
    read_only: bool | None = field(
        "Refuse all tools that are not annotated as read-only.", aliases=("read_only",)
    )
    validate: bool | None = field("Whether to check arguments and structured results of tools.")
    result_limit: int | None = field(
        "Characters of a longer result's text, of which only a part is passed on.", minimum=LEAST_RESULT_LIMIT
    )
    trust: bool | None = field("Use the server's tools without asking, where a policy says `ask`.")


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class Definition(StdioFields, RemoteFields, ToolFields):
    """The fields as written. None: not set."""

    type: Type | None = field("The transport of the server.", aliases=("transport", "transportType"))
    enabled: bool | None = field("Whether to start the server.", aliases=("isActive",))
    disabled: bool | None = field("The opposite of `enabled`.")
    lazy: bool | None = field("Start the server on first use.")
    description: str | None = field("A note for people.", may_be_empty=True)
    timeout: Milliseconds | None = field("Milliseconds that a call may take without progress.")
    connect_timeout: Milliseconds | None = field(
        "Milliseconds for the handshake.", aliases=("connectionTimeout",)
    )
    max_timeout: Milliseconds | None = field("Milliseconds that a call may take in total, despite progress.")
    debug: bool | None = field("Log the server's messages, HTTP headers and timing.")
    era: Literal["auto", "modern", "legacy"] | None = field("The MCP protocol era to use.")
    max_frame: int | None = field("Maximum size of one message in bytes.", minimum=1024)
    max_in_flight: int | None = field("Maximum number of concurrent requests.", minimum=1)
    max_queued: int | None = field("Maximum number of queued requests.", minimum=0)
    share: Share | None = field("Which clients share one instance.")
    concurrency: Concurrency | None = field("Which calls may overlap.")
    timeouts: WrittenTimeouts | None = field("All timeouts, in seconds.")
    restart: WrittenRestart | None = field("The restart policy, in seconds.")


FIELDS = written_fields(Definition)
"""Name → attribute and declaration."""
SIDES = dict.fromkeys(written_fields(StdioFields), "stdio") | dict.fromkeys(
    written_fields(RemoteFields), "remote"
)
"""The fields that only one kind of server has."""
CANONICAL_NAMES = spellings(Definition)
"""Every name or alias of a field → its name."""

_UNUSED = """
    auth alwaysAllow autoApprove allowedTools default_tools_approval_mode icon iconUrl logoUrl gallery
    provider providerUrl source version dev sandbox sandboxEnabled authProviderType targetAudience scopes
    required supports_parallel_tool_calls bundled quarantined settings id note notes comment longRunning
    autoStart registryUrl displayName
"""
IGNORED_FIELDS: Mapping[str, str] = {
    "envFile": "the file is not read: set the variables in 'env', or in the environment of mcpd",
    "headersHelper": "the program is not run: write the header into 'headers'",
    **dict.fromkeys(_UNUSED.split(), ""),
}
"""Fields of other products that mcpd ignores → a note for the user, if ignoring them matters."""
_AUTHORIZATION_HEADER = 'write \'headers\': {"Authorization": "Bearer ${VAR}"}'
_ENV_REFERENCE = 'write \'env\': {"NAME": "${NAME}"}'
REPLACEMENTS: Mapping[str, str] = {
    "startup_timeout_sec": "write 'connectTimeout', in milliseconds",
    "startup_timeout_ms": "write 'connectTimeout'",
    "tool_timeout_sec": "write 'timeout', in milliseconds",
    "env_vars": _ENV_REFERENCE,
    "env_keys": _ENV_REFERENCE,
    "bearerToken": _AUTHORIZATION_HEADER,
    "bearer_token": _AUTHORIZATION_HEADER,
    "bearer_token_env_var": _AUTHORIZATION_HEADER,
    "env_http_headers": 'write \'headers\': {"X-Name": "${VAR}"}',
    "requestOptions": "write its headers into 'headers'",
}
"""Fields of other products that matter and have another form in mcpd → what to write instead."""


def is_comment(key: str) -> bool:
    """Return whether people use this key for remarks: `_comment`, `//`, `x-…`, `$schema`."""
    return key.startswith(("_", "//", "#", "x-", "$"))


def server_schema() -> dict[str, object]:
    """Return the JSON Schema of a definition."""
    schema = object_schema(Definition)
    schema["properties"] |= {"name": {"type": "string"}, **dict.fromkeys(IGNORED_FIELDS, True)}
    return {**schema, "patternProperties": {"^(_|//|#|x-|\\$)": True}}


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of both layouts. It does not check URLs, names or variables."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/server"}}
    listed = {
        "type": "array",
        "items": {"$ref": "#/$defs/server", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mcpd configuration",
        "type": "object",
        "properties": {
            "mcpServers": servers,
            "services": {"type": "object", "properties": {"mcp": {"anyOf": [servers, listed]}}},
            "settings": {"$ref": "#/$defs/settings"},
            "mcp": {
                "type": "object",
                "properties": {
                    "enabled": {"type": "boolean"},
                    "servers": {"anyOf": [servers, listed]},
                    "globalSettings": {"$ref": "#/$defs/settings"},
                },
                "additionalProperties": False,
            },
        },
        "not": {"required": ["mcpServers", "mcp"]},
        "$defs": {"server": server_schema(), "settings": object_schema(WrittenSettings)},
        "allowTrailingCommas": True,
    }
