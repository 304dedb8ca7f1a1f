"""What a configuration says about the daemon as a whole: `settings`, or `globalSettings`."""

from __future__ import annotations

import ipaddress
import os.path
from collections.abc import Mapping
from typing import Any

import attrs

from mcpd.config.fields import BOOLEAN, MILLISECONDS, NUMBERS, STRING, STRINGS, FieldSpec
from mcpd.config.json_path import closest_match, join_path
from mcpd.config.section import Section, parse_restart_policy, parse_timeouts
from mcpd.config.variables import expand, misplaced_reference
from mcpd.model.errors import Problem
from mcpd.model.profile import ALL_SERVERS, Profile
from mcpd.model.qualified_names import ClientStyle, NameStyle
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.text import shorten

LOG_LEVELS = ("debug", "info", "warning", "error")

PROFILE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "servers": STRINGS,
        "includeTools": STRINGS,
        "excludeTools": STRINGS,
        "clientToolNames": {"enum": [style.value for style in ClientStyle]},
    },
}
"""One of `settings.profiles`: servers and tools by name, with `*` and `?`; a tool also as `tool@server`."""

SETTINGS = (
    FieldSpec("timeout", MILLISECONDS, "Milliseconds of silence allowed during a call, for every server."),
    FieldSpec("debug", BOOLEAN, "Log the messages of every server, HTTP headers and timing."),
    FieldSpec("logLevel", {"enum": list(LOG_LEVELS)}, "How much the daemon logs."),
    FieldSpec(
        "http", STRING, "HOST:PORT of this machine to listen on for HTTP; read when the daemon starts."
    ),
    FieldSpec("maxStarts", {"type": "integer", "minimum": 1}, "How many servers may be starting at once."),
    FieldSpec(
        "toolNames", {"enum": [style.value for style in NameStyle]}, "How tools are named with their server."
    ),
    FieldSpec(
        "clientToolNames",
        {"enum": [style.value for style in ClientStyle]},
        "How tools of several servers are named towards MCP clients.",
    ),
    FieldSpec(
        "profiles",
        {"type": "object", "additionalProperties": PROFILE_SCHEMA},
        "Named choices of servers and tools, for clients that are to see less.",
    ),
    FieldSpec(
        "profileByDirectory",
        {"type": "object", "additionalProperties": {"type": "string"}},
        "Directory, with * and ? in its parts → the profile of clients that work in it or below.",
    ),
    FieldSpec("watch", BOOLEAN, "Notice when the file is changed, and apply it."),
    FieldSpec(
        "allowCommands", BOOLEAN, "Let definitions have ${cmd:…}; only in a file that nobody else can write."
    ),
    FieldSpec("timeouts", NUMBERS, "Every waiting time, in seconds, for every server."),
    FieldSpec("restart", NUMBERS, "The restart policy, in seconds, for every server."),
)


@attrs.frozen(kw_only=True)
class Settings:
    """The daemon's own settings, and the defaults that every server starts from."""

    timeouts: Timeouts = attrs.field(factory=Timeouts)
    restart: RestartPolicy = attrs.field(factory=RestartPolicy)
    debug: bool = False
    log_level: str | None = None
    """One of `LEVELS`; None: not said."""
    http: Address | None = None
    """Where to listen for HTTP; None: nowhere."""
    max_starts: int = 8
    """How many servers may be starting at once."""
    tool_names: NameStyle = NameStyle.SUFFIX
    client_tool_names: ClientStyle = ClientStyle.UNDERSCORES
    profiles: Mapping[str, Profile] = attrs.field(factory=dict)
    """By name."""
    profile_by_directory: Mapping[str, str] = attrs.field(factory=dict)
    """Absolute directory, `*` and `?` allowed → a name of `profiles`, or `*`."""
    watch: bool = True
    """Whether a change of the file is noticed."""
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
    """The settings in `values`; what is wrong with them is added to `problems`."""
    expanded = expand(values, environ, path)
    problems += expanded.problems
    problems += [misplaced_reference(where, reference) for where, reference in expanded.unresolved]
    assert isinstance(expanded.value, dict)
    section = Section(expanded.value, path, problems)
    section.refuse_unknown(field.name for field in SETTINGS)
    level = section.string("logLevel")
    if level is not None and level not in LOG_LEVELS:
        section.add_problem(
            "logLevel", f"unknown log level '{shorten(level, 40)}'", f"write one of {', '.join(LOG_LEVELS)}"
        )
    http = section.string("http")
    address = None
    if http is not None:
        try:
            address = parse_address(http)
        except ValueError as error:
            section.add_problem("http", f"'http' cannot be listened on: {error}", 'write "127.0.0.1:8931"')
    starts = section.integer("maxStarts", minimum=1)
    names = _style(section, "toolNames", [style.value for style in NameStyle])
    client_names = _style(section, "clientToolNames", [style.value for style in ClientStyle])
    profiles = _parse_profiles(section)
    watch = section.boolean("watch")
    return Settings(
        timeouts=parse_timeouts(section, Timeouts(), warnings),
        restart=parse_restart_policy(section, RestartPolicy()),
        debug=section.boolean("debug") or False,
        log_level=level,
        http=address,
        max_starts=8 if starts is None else starts,
        tool_names=NameStyle.SUFFIX if names is None else NameStyle(names),
        client_tool_names=ClientStyle.UNDERSCORES if client_names is None else ClientStyle(client_names),
        profiles=profiles,
        profile_by_directory=_parse_profile_rules(section, profiles, environ),
        watch=True if watch is None else watch,
        allow_commands=section.boolean("allowCommands") or False,
    )


def _parse_profiles(section: Section) -> dict[str, Profile]:
    given = section.child("profiles")
    profiles: dict[str, Profile] = {}
    for name in () if given is None else given.values:
        one = given.child(name) if given is not None else None
        if one is None:
            continue
        one.refuse_unknown(PROFILE_SCHEMA["properties"])
        style = _style(one, "clientToolNames", [style.value for style in ClientStyle])
        profiles[name] = Profile(
            name=name,
            servers=one.strings("servers"),
            include_tools=one.strings("includeTools"),
            exclude_tools=one.strings("excludeTools") or (),
            style=None if style is None else ClientStyle(style),
        )
    return profiles


def _parse_profile_rules(
    section: Section, profiles: Mapping[str, Profile], environ: Mapping[str, str]
) -> dict[str, str]:
    rules: dict[str, str] = {}
    for written, profile in (section.string_map("profileByDirectory") or {}).items():
        place = join_path(join_path(section.path, "profileByDirectory"), written)
        home = environ.get("HOME") or os.path.expanduser("~")
        pattern = home + written[1:] if written == "~" or written.startswith("~/") else written
        if not pattern.startswith("/"):
            section.problems.append(Problem(place, "this is no absolute directory", "begin it with / or ~/"))
        if profile not in profiles and profile != ALL_SERVERS:
            meant = closest_match(profile, list(profiles))
            fix = f"did you mean '{meant}'?" if meant else "add it to 'profiles', or write '*' for everything"
            section.problems.append(Problem(place, f"there is no profile '{shorten(profile, 40)}'", fix))
        rules[os.path.normpath(pattern)] = profile
        rules[_resolve_links(pattern)] = profile
    return rules


def _resolve_links(pattern: str) -> str:
    """A process knows its own directory without symbolic links."""
    head, found, _ = pattern.partition("*")
    head, found, _ = head.partition("?") if not found else (head, found, "")
    stem = head if not found else head.rpartition("/")[0] or "/"
    return os.path.normpath(os.path.realpath(stem) + "/" + pattern[len(stem) :])


def _style(section: Section, field: str, styles: list[str]) -> str | None:
    """The named style, None for none or a wrong one, which has been complained about."""
    name = section.string(field)
    if name is not None and name not in styles:
        section.add_problem(
            field, f"unknown style '{shorten(name, 40)}'", f"write one of {', '.join(styles)}"
        )
        return None
    return name


@attrs.frozen
class Address:
    """To listen on; port 0 takes a free one."""

    host: str
    """An IP address of the loopback interface."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises ValueError with words for whoever wrote it. `localhost` is 127.0.0.1."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError('it must be HOST:PORT, for example "127.0.0.1:8931"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('an IPv6 address needs brackets: "[::1]:8931"')
    if host.lower() == "localhost":
        host = "127.0.0.1"
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        found = None
    if found is None or not found.is_loopback:
        raise ValueError(
            "only this machine may reach it: listen on 127.0.0.1, localhost or [::1], "
            "and come from elsewhere through an ssh tunnel"
        )
    return Address(str(found), int(port))
