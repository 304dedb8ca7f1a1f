"""The vocabulary of a server's definition: every field, how others spell it, and what we let pass.

One table serves the parser, the published JSON Schema and the test that keeps the documentation whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import attrs

Shape = Mapping[str, object]

STRING: Shape = {"type": "string"}
BOOLEAN: Shape = {"type": "boolean"}
STRINGS: Shape = {"type": "array", "items": {"type": "string"}}
STRING_MAP: Shape = {"type": "object", "additionalProperties": {"type": "string"}}
MILLISECONDS: Shape = {"type": "number", "exclusiveMinimum": 0}
NUMBERS: Shape = {"type": "object", "additionalProperties": {"type": ["number", "object"]}}


@attrs.frozen
class FieldSpec:
    """One field: its name, its shape as JSON Schema, what it means, and where it has a meaning."""

    name: str
    shape: Shape
    description: str
    aliases: tuple[str, ...] = ()
    """Spellings of other products that mean exactly the same."""
    applies_to: Literal["stdio", "remote"] | None = None


TRANSPORT_TYPES: Mapping[str, Literal["stdio", "http", "sse", "ws"]] = MappingProxyType(
    {
        "stdio": "stdio",
        "local": "stdio",
        "http": "http",
        "https": "http",
        "streamable-http": "http",
        "streamableHttp": "http",
        "streamable_http": "http",
        "streamablehttp": "http",
        "http-stream": "http",
        "httpStream": "http",
        "http_stream": "http",
        "remote": "http",
        "sse": "sse",
        "ws": "ws",
        "wss": "ws",
        "websocket": "ws",
    }
)

_COMMAND: Shape = {"anyOf": [{"type": "string", "minLength": 1}, {**STRINGS, "minItems": 1}]}

FIELDS = (
    FieldSpec(
        "type", {"enum": list(TRANSPORT_TYPES)}, "How the server is reached.", ("transport", "transportType")
    ),
    FieldSpec(
        "command", _COMMAND, "The program, or a list of the program and its arguments.", ("cmd",), "stdio"
    ),
    FieldSpec("args", STRINGS, "Its arguments.", (), "stdio"),
    FieldSpec("env", STRING_MAP, "Added to its environment.", ("environment", "envs"), "stdio"),
    FieldSpec("cwd", STRING, "Its working directory.", ("workingDirectory",), "stdio"),
    FieldSpec("umask", {"type": "string", "pattern": "^[0-7]{3,4}$"}, "Its umask, in octal.", (), "stdio"),
    FieldSpec("url", STRING, "Where a remote server listens.", ("serverUrl", "server_url", "uri"), "remote"),
    FieldSpec("httpUrl", STRING, "The same, and says that it is Streamable HTTP.", (), "remote"),
    FieldSpec("headers", STRING_MAP, "Sent with every request.", ("http_headers",), "remote"),
    FieldSpec(
        "caFile", STRING, "PEM file of authorities to trust besides the system's.", ("ca_file",), "remote"
    ),
    FieldSpec("enabled", BOOLEAN, "Whether the server is started.", ("isActive",)),
    FieldSpec("disabled", BOOLEAN, "The opposite of `enabled`."),
    FieldSpec("lazy", BOOLEAN, "Start it on first use."),
    FieldSpec("description", STRING, "A note for people."),
    FieldSpec("timeout", MILLISECONDS, "Milliseconds of silence allowed during a call."),
    FieldSpec("connectTimeout", MILLISECONDS, "Milliseconds for the handshake.", ("connectionTimeout",)),
    FieldSpec("maxTimeout", MILLISECONDS, "Milliseconds after which a call ends whatever its progress."),
    FieldSpec(
        "toolTimeouts",
        {"type": "object", "additionalProperties": MILLISECONDS},
        "Milliseconds per tool, in place of `timeout`.",
    ),
    FieldSpec(
        "includeTools",
        STRINGS,
        "Only these tools; `*` and `?` allowed.",
        ("enabledTools", "enabled_tools", "tools"),
    ),
    FieldSpec("excludeTools", STRINGS, "All but these tools.", ("disabledTools", "disabled_tools")),
    FieldSpec("trust", BOOLEAN, "Your word that its tools need no confirmation."),
    FieldSpec("debug", BOOLEAN, "Log its messages, HTTP headers and timing."),
    FieldSpec("era", {"enum": ["auto", "modern", "legacy"]}, "Which protocol era to speak."),
    FieldSpec("maxFrame", {"type": "integer", "minimum": 1024}, "Bytes of one message at most."),
    FieldSpec("maxInFlight", {"type": "integer", "minimum": 1}, "Requests unanswered at once."),
    FieldSpec("maxQueued", {"type": "integer", "minimum": 0}, "Requests waiting their turn."),
    FieldSpec("share", {"enum": ["all", "root", "client"]}, "Which clients use one instance of it together."),
    FieldSpec("concurrency", {"enum": ["free", "writes", "serial"]}, "Which of its calls may overlap."),
    FieldSpec("timeouts", NUMBERS, "Every waiting time, in seconds."),
    FieldSpec("restart", NUMBERS, "The restart policy, in seconds."),
)

CANONICAL_NAMES: Mapping[str, str] = MappingProxyType(
    {spelling: field.name for field in FIELDS for spelling in (field.name, *field.aliases)}
)
"""Every spelling of a field → our name for it."""

IGNORED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "envFile": "the file is not read: set the variables in 'env', or in the environment of mcpd",
        "oauth": "",
        "auth": "",
        "headersHelper": "the program is not run: write the header into 'headers'",
        **dict.fromkeys(
            (
                *("alwaysAllow", "autoApprove", "allowedTools", "default_tools_approval_mode"),
                *(
                    "icon",
                    "iconUrl",
                    "logoUrl",
                    "gallery",
                    "provider",
                    "providerUrl",
                    "tags",
                    "source",
                    "version",
                ),
                *("dev", "sandbox", "sandboxEnabled", "authProviderType", "targetAudience", "scopes"),
                *("required", "supports_parallel_tool_calls", "bundled", "quarantined", "settings", "id"),
                *("note", "notes", "comment", "longRunning", "autoStart", "registryUrl", "displayName"),
            ),
            "",
        ),
    }
)
"""What other products write and we have no use for → what that means for the user, if anything."""

REPLACEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "startup_timeout_sec": "write 'connectTimeout', in milliseconds",
        "startup_timeout_ms": "write 'connectTimeout'",
        "tool_timeout_sec": "write 'timeout', in milliseconds",
        "env_vars": 'write \'env\': {"NAME": "${NAME}"}',
        "env_keys": 'write \'env\': {"NAME": "${NAME}"}',
        "bearerToken": 'write \'headers\': {"Authorization": "Bearer ${VAR}"}',
        "bearer_token": 'write \'headers\': {"Authorization": "Bearer ${VAR}"}',
        "bearer_token_env_var": 'write \'headers\': {"Authorization": "Bearer ${VAR}"}',
        "env_http_headers": 'write \'headers\': {"X-Name": "${VAR}"}',
        "requestOptions": "write its headers into 'headers'",
    }
)
"""Fields of other products that matter and that we spell differently → how."""


def is_comment(key: str) -> bool:
    """Keys that people use for remarks: `_comment`, `//`, `x-…`, `$schema`."""
    return key.startswith(("_", "//", "#", "x-", "$"))
