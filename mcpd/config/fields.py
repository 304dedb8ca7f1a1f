"""The vocabulary of a server's definition: every field, how others spell it, and what we let pass.

One table serves the parser, the published JSON Schema and the test that keeps the documentation whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import attrs

Shape = Mapping[str, object]

TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
TEXTS: Shape = {"type": "array", "items": {"type": "string"}}
TEXT_MAP: Shape = {"type": "object", "additionalProperties": {"type": "string"}}
MILLISECONDS: Shape = {"type": "number", "exclusiveMinimum": 0}
NUMBERS: Shape = {"type": "object", "additionalProperties": {"type": ["number", "object"]}}


@attrs.frozen
class Field:
    """One field: its name, its shape as JSON Schema, what it means, and where it has a meaning."""

    name: str
    shape: Shape
    meaning: str
    also: tuple[str, ...] = ()
    """Spellings of other products that mean exactly the same."""
    only: Literal["stdio", "remote"] | None = None


TYPES: Mapping[str, Literal["stdio", "http", "sse", "ws"]] = MappingProxyType(
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

_COMMAND: Shape = {"anyOf": [{"type": "string", "minLength": 1}, {**TEXTS, "minItems": 1}]}

FIELDS = (
    Field("type", {"enum": list(TYPES)}, "How the server is reached.", ("transport", "transportType")),
    Field("command", _COMMAND, "The program, or a list of the program and its arguments.", ("cmd",), "stdio"),
    Field("args", TEXTS, "Its arguments.", (), "stdio"),
    Field("env", TEXT_MAP, "Added to its environment.", ("environment", "envs"), "stdio"),
    Field("cwd", TEXT, "Its working directory.", ("workingDirectory",), "stdio"),
    Field("umask", {"type": "string", "pattern": "^[0-7]{3,4}$"}, "Its umask, in octal.", (), "stdio"),
    Field("url", TEXT, "Where a remote server listens.", ("serverUrl", "server_url", "uri"), "remote"),
    Field("httpUrl", TEXT, "The same, and says that it is Streamable HTTP.", (), "remote"),
    Field("headers", TEXT_MAP, "Sent with every request.", ("http_headers",), "remote"),
    Field("caFile", TEXT, "PEM file of authorities to trust besides the system's.", ("ca_file",), "remote"),
    Field("enabled", FLAG, "Whether the server is started.", ("isActive",)),
    Field("disabled", FLAG, "The opposite of `enabled`."),
    Field("lazy", FLAG, "Start it on first use."),
    Field("description", TEXT, "A note for people."),
    Field("timeout", MILLISECONDS, "Milliseconds of silence allowed during a call."),
    Field("connectTimeout", MILLISECONDS, "Milliseconds for the handshake.", ("connectionTimeout",)),
    Field("maxTimeout", MILLISECONDS, "Milliseconds after which a call ends whatever its progress."),
    Field(
        "toolTimeouts",
        {"type": "object", "additionalProperties": MILLISECONDS},
        "Milliseconds per tool, in place of `timeout`.",
    ),
    Field(
        "includeTools",
        TEXTS,
        "Only these tools; `*` and `?` allowed.",
        ("enabledTools", "enabled_tools", "tools"),
    ),
    Field("excludeTools", TEXTS, "All but these tools.", ("disabledTools", "disabled_tools")),
    Field("trust", FLAG, "Your word that its tools need no confirmation."),
    Field("debug", FLAG, "Log its messages, HTTP headers and timing."),
    Field("era", {"enum": ["auto", "modern", "legacy"]}, "Which protocol era to speak."),
    Field("maxFrame", {"type": "integer", "minimum": 1024}, "Bytes of one message at most."),
    Field("maxInFlight", {"type": "integer", "minimum": 1}, "Requests unanswered at once."),
    Field("maxQueued", {"type": "integer", "minimum": 0}, "Requests waiting their turn."),
    Field("share", {"enum": ["all", "root", "client"]}, "Which clients use one instance of it together."),
    Field("concurrency", {"enum": ["free", "writes", "serial"]}, "Which of its calls may overlap."),
    Field("timeouts", NUMBERS, "Every waiting time, in seconds."),
    Field("restart", NUMBERS, "The restart policy, in seconds."),
)

SPELLINGS: Mapping[str, str] = MappingProxyType(
    {spelling: field.name for field in FIELDS for spelling in (field.name, *field.also)}
)
"""Every spelling of a field → our name for it."""

IGNORED: Mapping[str, str] = MappingProxyType(
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

INSTEAD: Mapping[str, str] = MappingProxyType(
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
