"""The daemon's own settings (`settings`, or `mcp.globalSettings`) and the defaults that servers inherit."""

from __future__ import annotations

import ipaddress
import os.path
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import attrs
import msgspec

from mcpd.config.field_spec import BOOLEAN, MILLISECONDS, NUMBERS, STRING, STRINGS, FieldSpec, Shape
from mcpd.config.json_path import closest_match, join_path
from mcpd.config.policy_rules import MAX_RULES, RULE_SCHEMA, parse_policies
from mcpd.config.section_reader import Section, parse_restart_policy, parse_timeouts
from mcpd.config.variables import expand, expand_home, misplaced_reference
from mcpd.model.call_record import CallLogLevel
from mcpd.model.errors import Problem
from mcpd.model.oauth_settings import LoginStorage
from mcpd.model.policy import Decision, PolicyRule, read_only_rule
from mcpd.model.profile import ALL_SERVERS, Profile
from mcpd.model.record import Record
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.text import shorten
from mcpd.model.tool_names import ClientStyle, NameStyle

LOG_LEVELS = ("debug", "info", "warning", "error")
LOGIN_STORAGES: Mapping[str, LoginStorage] = {
    "file": "file",
    "keyring": "keyring",
    "credential": "credential",
}
_CALL_LOG_LEVELS = {level.value: level for level in CallLogLevel}
_CLIENT_STYLES = {style.value: style for style in ClientStyle}
_NAME_STYLES = {style.value: style for style in NameStyle}

_CLIENT_TOOL_NAMES: Shape = {"enum": list(_CLIENT_STYLES)}
PROFILE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "servers": STRINGS,
        "includeTools": STRINGS,
        "excludeTools": STRINGS,
        "tags": STRINGS,
        "clientToolNames": _CLIENT_TOOL_NAMES,
        "readOnly": BOOLEAN,
        "validate": BOOLEAN,
    },
}
"""One of `settings.profiles`. Names may contain `*` and `?`; a tool may be written `tool@server`."""
_PROFILES: Shape = {"type": "object", "additionalProperties": PROFILE_SCHEMA}
_POLICIES: Shape = {"type": "array", "maxItems": MAX_RULES, "items": RULE_SCHEMA}
_PROFILE_RULES: Shape = {"type": "object", "additionalProperties": {"type": "string"}}

SETTINGS = (
    FieldSpec("timeout", MILLISECONDS, "Milliseconds that a call may take without progress, on any server."),
    FieldSpec("debug", BOOLEAN, "Log the messages of every server, HTTP headers and timing."),
    FieldSpec("logLevel", {"enum": list(LOG_LEVELS)}, "The daemon's log level."),
    FieldSpec("http", STRING, "HOST:PORT of this machine to serve HTTP on. Read when the daemon starts."),
    FieldSpec("maxStarts", {"type": "integer", "minimum": 1}, "How many servers may start at the same time."),
    FieldSpec("toolNames", {"enum": list(_NAME_STYLES)}, "How tool names are combined with server names."),
    FieldSpec("clientToolNames", _CLIENT_TOOL_NAMES, "The same for the MCP clients of several servers."),
    FieldSpec("profiles", _PROFILES, "Named selections of servers and tools, for clients that see less."),
    FieldSpec(
        "profileByDirectory",
        _PROFILE_RULES,
        "Directory, with * and ? in its parts → the profile of clients that work in it or below it.",
    ),
    FieldSpec("policies", _POLICIES, "Rules: which client may use which tools, prompts and resources."),
    FieldSpec("validate", BOOLEAN, "Whether to check arguments and structured results, on any server."),
    FieldSpec("callLog", {"enum": list(_CALL_LOG_LEVELS)}, "What the call log contains; see `mcpctl calls`."),
    FieldSpec("openTelemetry", STRING, "Base URL of an OTLP endpoint that receives a span for each call."),
    FieldSpec(
        "approvalNotifications", BOOLEAN, "Show a desktop notification if a call waits for your approval."
    ),
    FieldSpec("loginNotifications", BOOLEAN, "Show a desktop notification if a login has to be repeated."),
    FieldSpec(
        "loginStorage", {"enum": list(LOGIN_STORAGES)}, "Where the key is that encrypts stored logins."
    ),
    FieldSpec("watch", BOOLEAN, "Apply the file automatically when it changes."),
    FieldSpec("allowCommands", BOOLEAN, "Allow ${cmd:…}. Requires a file that only you can write."),
    FieldSpec("timeouts", NUMBERS, "All timeouts of every server, in seconds."),
    FieldSpec("restart", NUMBERS, "The restart policy of every server, in seconds."),
)


class Address(msgspec.Struct, frozen=True):
    """A loopback address to listen on. Port 0: any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`; `localhost` is 127.0.0.1. Raises ValueError with a message for the user."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError('it must be HOST:PORT, for example "127.0.0.1:8931"')
    if len(port) > 5 or int(port) > 65535:
        raise ValueError(f"the port {shorten(port, 10)} is out of range; use one from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('an IPv6 address needs brackets: "[::1]:8931"')
    if host.lower() == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise ValueError(
            "mcpd listens on loopback addresses only: use 127.0.0.1, localhost or [::1], "
            "and an ssh tunnel from other machines"
        )
    return Address(str(address), int(port))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Settings(Record):
    """The daemon's own settings, and the defaults of every server."""

    timeouts: Timeouts = attrs.field(factory=Timeouts)
    restart: RestartPolicy = attrs.field(factory=RestartPolicy)
    debug: bool = False
    log_level: str | None = None
    """One of `LOG_LEVELS`. None: not set."""
    http: Address | None = None
    """None: do not serve HTTP."""
    max_starts: int = 8
    """How many servers may start at the same time."""
    tool_names: NameStyle = NameStyle.SUFFIX
    client_tool_names: ClientStyle = ClientStyle.UNDERSCORES
    profiles: Mapping[str, Profile] = attrs.field(factory=dict)
    """By name."""
    profile_by_directory: Mapping[str, str] = attrs.field(factory=dict)
    """Absolute directory, may contain `*` and `?` → a name in `profiles`, or `*` for everything."""
    policies: tuple[PolicyRule, ...] = ()
    """In the order in which they apply. Those of `readOnly` profiles come first. If the rules have errors, a
    single rule that denies everything."""
    validate: bool | None = None
    """Whether tool calls are checked against the tools' schemas. None: as `ServerSpec.validate`."""
    call_log: CallLogLevel = CallLogLevel.CALLS
    otlp_endpoint: str = ""
    """The base URL to which spans are exported; empty for none."""
    approval_notifications: bool = True
    """Whether to show a desktop notification if a call waits for approval and its client cannot ask."""
    login_notifications: bool = True
    """Whether to show a desktop notification if a person has to log in again."""
    login_storage: LoginStorage = "file"
    """With which key stored logins are encrypted. Applies when the daemon starts."""
    watch: bool = True
    """Whether to apply the file when it changes."""
    allow_commands: bool = False
    """Whether `${cmd:…}` may run programs."""


def parse_settings(
    values: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    path: str,
    problems: list[Problem],
    warnings: list[str],
) -> Settings:
    """Parse the object at `path`. Errors are added to `problems`, and the default is used instead."""
    expanded = expand(values, environ, path)
    problems += expanded.problems
    problems += [misplaced_reference(where, reference) for where, reference in expanded.unresolved]
    assert isinstance(expanded.value, dict)
    section = Section(expanded.value, path, problems)
    section.refuse_unknown(field.name for field in SETTINGS)
    level = section.choice("logLevel", {level: level for level in LOG_LEVELS})
    http = section.string("http")
    address = None
    if http is not None:
        try:
            address = parse_address(http)
        except ValueError as error:
            section.add_problem("http", f"'http' cannot be used: {error}", 'write "127.0.0.1:8931"')
    return Settings(  # in this order, so that the problems are reported in it
        log_level=level,
        http=address,
        max_starts=section.integer("maxStarts", minimum=1) or 8,
        tool_names=section.choice("toolNames", _NAME_STYLES) or NameStyle.SUFFIX,
        client_tool_names=section.choice("clientToolNames", _CLIENT_STYLES) or ClientStyle.UNDERSCORES,
        profiles=(profiles := _parse_profiles(section)),
        policies=_parse_policies(section, profiles, environ),
        validate=section.boolean("validate"),
        call_log=section.choice("callLog", _CALL_LOG_LEVELS) or CallLogLevel.CALLS,
        otlp_endpoint=_parse_endpoint(section, warnings),
        approval_notifications=section.boolean("approvalNotifications") is not False,
        login_notifications=section.boolean("loginNotifications") is not False,
        login_storage=section.choice("loginStorage", LOGIN_STORAGES) or "file",
        watch=section.boolean("watch") is not False,
        timeouts=parse_timeouts(section, Timeouts(), warnings),
        restart=parse_restart_policy(section, RestartPolicy()),
        debug=section.boolean("debug") or False,
        profile_by_directory=_parse_profile_rules(section, profiles, environ),
        allow_commands=section.boolean("allowCommands") or False,
    )


def _parse_endpoint(section: Section, warnings: list[str]) -> str:
    key = "openTelemetry"
    url = section.string(key)
    if url is None:
        return ""
    if not _is_base_url(url):
        message = f"'{key}' must be the base URL of an OTLP endpoint, without user name and query"
        fix = 'write "http://127.0.0.1:4318"; headers belong in OTEL_EXPORTER_OTLP_HEADERS'
        section.add_problem(key, message, fix)
        return ""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        where = join_path(section.path, key)
        warnings.append(f"{where}: nothing is exported, because mcpd is installed without the extra `otel`")
    return url


def _is_base_url(url: str) -> bool:
    """Return whether it is an HTTP URL that has nothing but an address and a path."""
    try:
        parts = urlsplit(url)
        has_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    has_more = "@" in parts.netloc or parts.query or parts.fragment
    return parts.scheme in ("http", "https") and has_address and not has_more


def _parse_profiles(section: Section) -> dict[str, Profile]:
    children = section.child("profiles")
    profiles: dict[str, Profile] = {}
    for name in () if children is None else children.values:
        child = children.child(name) if children is not None else None
        if child is None:
            continue
        child.refuse_unknown(PROFILE_SCHEMA["properties"])
        profiles[name] = Profile(
            name=name,
            style=child.choice("clientToolNames", _CLIENT_STYLES),
            # An invalid value or name is an error; until it is fixed, the profile allows less and not more.
            read_only=any(
                key != "readOnly"
                and closest_match(str(key), list(PROFILE_SCHEMA["properties"])) == "readOnly"
                for key in child.values
            )
            or (child.has("readOnly") and child.boolean("readOnly") is not False),
            validate=child.boolean("validate"),
            servers=child.strings("servers"),
            include_tools=child.strings("includeTools"),
            exclude_tools=child.strings("excludeTools") or (),
            tags=child.strings("tags"),
        )
    return profiles


def _parse_policies(
    section: Section, profiles: Mapping[str, Profile], environ: Mapping[str, str]
) -> tuple[PolicyRule, ...]:
    rules = parse_policies(section, "policies", environ)
    path = join_path(section.path, "policies")
    if rules is None:
        return (rule_for_errors(path),)
    places = ((name, join_path(join_path(section.path, "profiles"), name)) for name in profiles)
    read_only = (
        read_only_rule(join_path(place, "readOnly"), profiles=(name,))
        for name, place in places
        if profiles[name].read_only
    )
    return (*read_only, *rules)


def rule_for_errors(path: str) -> PolicyRule:
    """Return what replaces rules with errors: part of them may allow what the whole would not."""
    return PolicyRule(decision=Decision.DENY, place=path, reason="the rules have errors")


def _parse_profile_rules(
    section: Section, profiles: Mapping[str, Profile], environ: Mapping[str, str]
) -> dict[str, str]:
    rules: dict[str, str] = {}
    for text, profile in (section.string_map("profileByDirectory") or {}).items():
        path = join_path(join_path(section.path, "profileByDirectory"), text)
        pattern = expand_home(text, environ)
        if not pattern.startswith("/"):
            section.problems.append(Problem(path, "not an absolute directory", "begin it with / or ~/"))
        if profile not in profiles and profile != ALL_SERVERS:
            match = closest_match(profile, list(profiles))
            fix = f"did you mean '{match}'?" if match else "add it to 'profiles', or write '*' for everything"
            section.problems.append(Problem(path, f"there is no profile '{shorten(profile, 40)}'", fix))
        rules[os.path.normpath(pattern)] = profile
        rules[_resolve_links(pattern)] = profile
    return rules


def _resolve_links(pattern: str) -> str:
    """Resolve symbolic links before the first wildcard: a process knows its directory without links."""
    head, found, _ = pattern.partition("*")
    head, found, _ = head.partition("?") if not found else (head, found, "")
    stem = head if not found else head.rpartition("/")[0] or "/"
    try:
        stem_without_links = os.path.realpath(stem)
    except ValueError:  # NUL or half a surrogate pair: no directory has such a name
        return os.path.normpath(pattern)
    return os.path.normpath(stem_without_links + "/" + pattern[len(stem) :])
