"""Every field of a server's definition: its name, its aliases in other products, and its JSON Schema.

The parser, the published JSON Schema and the test that checks the documentation all use this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from mcpd.config.field_spec import (
    BOOLEAN,
    MILLISECONDS,
    NUMBERS,
    STRING,
    STRING_MAP,
    STRINGS,
    FieldSpec,
    Shape,
)
from mcpd.config.oauth_names import OAUTH_SHAPE

_HTTP_TYPES = """
    http https streamable-http streamableHttp streamable_http streamablehttp http-stream httpStream
    http_stream remote
"""
_HTTP: Literal["http"] = "http"

TRANSPORT_TYPES: Mapping[str, Literal["stdio", "http", "sse", "ws"]] = MappingProxyType(
    {
        "stdio": "stdio",
        "local": "stdio",
        **dict.fromkeys(_HTTP_TYPES.split(), _HTTP),
        "sse": "sse",
        "ws": "ws",
        "wss": "ws",
        "websocket": "ws",
    }
)
"""Every accepted value of `type` → the transport."""

_TYPE: Shape = {"enum": list(TRANSPORT_TYPES)}
_COMMAND: Shape = {"anyOf": [{"type": "string", "minLength": 1}, {**STRINGS, "minItems": 1}]}
_UMASK: Shape = {"type": "string", "pattern": "^[0-7]{3,4}$"}
_TOOL_TIMEOUTS: Shape = {"type": "object", "additionalProperties": MILLISECONDS}
_TOOL_TAGS: Shape = {"type": "object", "additionalProperties": STRINGS}
_CACHE: Shape = {"anyOf": [{"const": False}, {"type": "object", "additionalProperties": {"type": "string"}}]}
_INCLUDE_ALIASES = ("enabledTools", "enabled_tools", "tools")
_EXCLUDE_ALIASES = ("disabledTools", "disabled_tools")

FIELDS = (
    FieldSpec("type", _TYPE, "The transport of the server.", ("transport", "transportType")),
    FieldSpec("command", _COMMAND, "The program, or a list of program and arguments.", ("cmd",), "stdio"),
    FieldSpec("args", STRINGS, "The program's arguments.", (), "stdio"),
    FieldSpec("env", STRING_MAP, "Extra environment variables.", ("environment", "envs"), "stdio"),
    FieldSpec("cwd", STRING, "The working directory.", ("workingDirectory",), "stdio"),
    FieldSpec("umask", _UMASK, "The umask, in octal.", (), "stdio"),
    FieldSpec("url", STRING, "The URL of a remote server.", ("serverUrl", "server_url", "uri"), "remote"),
    FieldSpec("httpUrl", STRING, "The URL of a Streamable HTTP server.", (), "remote"),
    FieldSpec("headers", STRING_MAP, "Headers to send with every request.", ("http_headers",), "remote"),
    FieldSpec("caFile", STRING, "PEM file of additional CA certificates to trust.", ("ca_file",), "remote"),
    FieldSpec("oauth", OAUTH_SHAPE, "How to log in to a remote server, or false.", (), "remote"),
    FieldSpec("enabled", BOOLEAN, "Whether to start the server.", ("isActive",)),
    FieldSpec("disabled", BOOLEAN, "The opposite of `enabled`."),
    FieldSpec("lazy", BOOLEAN, "Start the server on first use."),
    FieldSpec("description", STRING, "A note for people."),
    FieldSpec("timeout", MILLISECONDS, "Milliseconds that a call may take without progress."),
    FieldSpec("connectTimeout", MILLISECONDS, "Milliseconds for the handshake.", ("connectionTimeout",)),
    FieldSpec("maxTimeout", MILLISECONDS, "Milliseconds that a call may take in total, despite progress."),
    FieldSpec("toolTimeouts", _TOOL_TIMEOUTS, "Milliseconds for single tools, instead of `timeout`."),
    FieldSpec("includeTools", STRINGS, "Provide only these tools; `*` and `?` allowed.", _INCLUDE_ALIASES),
    FieldSpec("excludeTools", STRINGS, "Do not provide these tools; `*` and `?` allowed.", _EXCLUDE_ALIASES),
    FieldSpec("tags", STRINGS, "Groups that the server and its tools belong to."),
    FieldSpec("toolTags", _TOOL_TAGS, "Further groups of single tools; `*` and `?` allowed."),
    FieldSpec("cache", _CACHE, "How long to use the results of tools again; `false`: cache nothing."),
    FieldSpec("readOnly", BOOLEAN, "Refuse all tools that are not annotated as read-only.", ("read_only",)),
    FieldSpec("validate", BOOLEAN, "Whether to check arguments and structured results of tools."),
    FieldSpec("trust", BOOLEAN, "Use the server's tools without asking, where a policy says `ask`."),
    FieldSpec("debug", BOOLEAN, "Log the server's messages, HTTP headers and timing."),
    FieldSpec("era", {"enum": ["auto", "modern", "legacy"]}, "The MCP protocol era to use."),
    FieldSpec("maxFrame", {"type": "integer", "minimum": 1024}, "Maximum size of one message in bytes."),
    FieldSpec("maxInFlight", {"type": "integer", "minimum": 1}, "Maximum number of concurrent requests."),
    FieldSpec("maxQueued", {"type": "integer", "minimum": 0}, "Maximum number of queued requests."),
    FieldSpec(
        "share", {"enum": ["all", "root", "declared-root", "client"]}, "Which clients share one instance."
    ),
    FieldSpec("concurrency", {"enum": ["auto", "free", "writes", "serial"]}, "Which calls may overlap."),
    FieldSpec("timeouts", NUMBERS, "All timeouts, in seconds."),
    FieldSpec("restart", NUMBERS, "The restart policy, in seconds."),
)

CANONICAL_NAMES: Mapping[str, str] = MappingProxyType(
    {spelling: field.name for field in FIELDS for spelling in (field.name, *field.aliases)}
)
"""Every name or alias of a field → its name."""

_UNUSED = """
    auth alwaysAllow autoApprove allowedTools default_tools_approval_mode icon iconUrl logoUrl gallery
    provider providerUrl source version dev sandbox sandboxEnabled authProviderType targetAudience scopes
    required supports_parallel_tool_calls bundled quarantined settings id note notes comment longRunning
    autoStart registryUrl displayName
"""

IGNORED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "envFile": "the file is not read: set the variables in 'env', or in the environment of mcpd",
        "headersHelper": "the program is not run: write the header into 'headers'",
        **dict.fromkeys(_UNUSED.split(), ""),
    }
)
"""Fields of other products that mcpd ignores → a note for the user, if ignoring them matters."""

_AUTHORIZATION_HEADER = 'write \'headers\': {"Authorization": "Bearer ${VAR}"}'
_ENV_REFERENCE = 'write \'env\': {"NAME": "${NAME}"}'

REPLACEMENTS: Mapping[str, str] = MappingProxyType(
    {
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
)
"""Fields of other products that matter and have another form in mcpd → what to write instead."""


def is_comment(key: str) -> bool:
    """Return whether people use this key for remarks: `_comment`, `//`, `x-…`, `$schema`."""
    return key.startswith(("_", "//", "#", "x-", "$"))
