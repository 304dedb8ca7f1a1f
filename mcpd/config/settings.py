"""The daemon's own settings (`settings`, or `mcp.globalSettings`) and the defaults that servers inherit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, NewType

import attrs

from mcpd.config.http import HttpSettings
from mcpd.config.policies import (
    POLICIES_SHAPE,
    PROFILES_SHAPE,
    read_only_rules,
    read_policies,
    read_profile_rules,
    read_profiles,
)
from mcpd.config.structuring import (
    Milliseconds,
    Seconds,
    field,
    read,
    register,
    set_members,
    text,
    written_fields,
)
from mcpd.config.variables import expand, misplaced_reference
from mcpd.model.codec import Invalid
from mcpd.model.errors import Problem
from mcpd.model.events import CallLogLevel
from mcpd.model.json_path import join_path
from mcpd.model.policy import PolicyRule, Profile
from mcpd.model.record import Record
from mcpd.model.server_spec import LEAST_RESULT_LIMIT, LoginStorage, RestartPolicy, Timeouts
from mcpd.model.tool_names import ClientStyle, NameStyle

LogLevel = Literal["debug", "info", "warning", "error"]


def _seconds(description: str, default: float, name: str = "") -> Seconds | None:
    found: Seconds | None = field(
        description, name=name, shape={"type": "number", "exclusiveMinimum": 0, "default": default}
    )
    return found


_TIMEOUTS, _RESTART = Timeouts(), RestartPolicy()
_STOP = _TIMEOUTS.stop_close + _TIMEOUTS.stop_term


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenTimeouts(Record):
    connect: Seconds | None = _seconds("The handshake.", _TIMEOUTS.connect)
    install: Seconds | None = _seconds("The download by a package runner.", _TIMEOUTS.install)
    list: Seconds | None = _seconds("Fetching one list.", _TIMEOUTS.list)
    call: Seconds | None = _seconds("A call without a response or progress.", _TIMEOUTS.call)
    call_max: Seconds | None = _seconds("A call in total.", _TIMEOUTS.call_max, "call_max")
    ping: Seconds | None = _seconds("The response to a health check.", _TIMEOUTS.ping)
    stop: Seconds | None = _seconds("From closing stdin to SIGKILL.", _STOP)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenRestart(Record):
    base: Seconds | None = _seconds("The first pause.", _RESTART.base)
    cap: Seconds | None = _seconds("The longest pause.", _RESTART.cap)
    intensity: int | None = field("How many failures are a crash loop.", minimum=1)


def effective_timeouts(
    base: Timeouts,
    written: WrittenTimeouts | None,
    *,
    call: Milliseconds | None,
    connect: Milliseconds | None = None,
    call_max: Milliseconds | None = None,
    tools: Mapping[str, Milliseconds] | None = None,
    path: str,
    problems: list[Problem],
    warnings: list[str],
) -> Timeouts:
    """Return `base`, changed by `timeouts` and by the members that are written in milliseconds."""
    changes = {} if written is None else set_members(written)
    if (ping := changes.get("ping")) is not None:
        changes["ping_idle"] = 3 * ping
    if (stop := changes.pop("stop", None)) is not None:
        changes |= {"stop_close": 0.4 * stop, "stop_term": 0.6 * stop}
    for member, name, seconds in (
        ("timeout", "call", call),
        ("connectTimeout", "connect", connect),
        ("maxTimeout", "call_max", call_max),
    ):
        if seconds is None:
            continue
        if name in changes:
            message = f"'{member}' and 'timeouts.{name}' set the same value"
            problems.append(Problem(join_path(path, member), message, "keep one"))
        if seconds < 1:
            value = f"{seconds * 1000:g} means {seconds:g} seconds"
            warnings.append(f"{path}: '{member}' is in milliseconds: {value}")
        changes[name] = seconds
    result = attrs.evolve(base, tools={**base.tools, **(tools or {})}, **changes)
    if "call_max" in changes:
        return result
    # If a call may be silent for an hour, the default limit of half an hour would contradict it.
    return attrs.evolve(result, call_max=max(result.call_max, result.call, *result.tools.values()))


def effective_restart(base: RestartPolicy, written: WrittenRestart | None) -> RestartPolicy:
    """Return `base`, changed by `restart`."""
    return base if written is None else attrs.evolve(base, **set_members(written))


# ── settings ────────────────────────────────────────────────────────────────────────────────────


def _base_url(value: object) -> str:
    url = text(value)
    if not re.fullmatch(r"https?://[^\s@?#/]+[^\s@?#]*", url):
        fix = 'write "http://127.0.0.1:4318"; headers belong in OTEL_EXPORTER_OTLP_HEADERS'
        raise Invalid("must be the base URL of an OTLP endpoint, without user name and query", fix)
    return url


BaseUrl = NewType("BaseUrl", str)
register(BaseUrl, _base_url, {"type": "string"})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PlainSettings(Record):
    """Settings that apply as they are written."""

    debug: bool = field("Log the messages of every server, HTTP headers and timing.", False)
    log_level: LogLevel | None = field("The daemon's log level.")
    http: HttpSettings | None = field(
        "HOST:PORT to serve HTTP on, or an object. Read when the daemon starts."
    )
    max_starts: int = field("How many servers may start at the same time.", 8, minimum=1)
    tool_names: NameStyle = field("How tool names are combined with server names.", NameStyle.SUFFIX)
    client_tool_names: ClientStyle = field(
        "The same for the MCP clients of several servers.", ClientStyle.UNDERSCORES
    )
    validate: bool | None = field("Whether to check arguments and structured results, on any server.")
    result_limit: int | None = field(
        "Characters of text in a tool's result above which MCP clients get only its beginning and its end.",
        minimum=LEAST_RESULT_LIMIT,
    )
    call_log: CallLogLevel = field("What the call log contains; see `mcpctl calls`.", CallLogLevel.CALLS)
    call_log_size: int = field("MiB of the call log that are kept.", 8, minimum=8)
    otlp_endpoint: BaseUrl = field(
        "Base URL of an OTLP endpoint that receives a span for each call.", "", name="openTelemetry"
    )
    approval_notifications: bool = field(
        "Show a desktop notification if a call waits for your approval.", True
    )
    login_notifications: bool = field("Show a desktop notification if a login has to be repeated.", True)
    login_storage: LoginStorage = field("Where the key is that encrypts stored logins.", "file")
    watch: bool = field("Apply the file automatically when it changes.", True)
    allow_commands: bool = field("Allow ${cmd:…}. Requires a file that only you can write.", False)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenSettings(PlainSettings):
    """The settings as written. None: not set."""

    env: Mapping[str, str] | None = field("Environment variables of every local server.")
    timeout: Milliseconds | None = field("Milliseconds that a call may take without progress, on any server.")
    profiles: Mapping[str, object] | None = field(
        "Named selections of servers and tools, for clients that see less.", shape=PROFILES_SHAPE
    )
    profile_by_directory: Mapping[str, str] | None = field(
        "Directory, with * and ? in its parts → the profile of clients that work in it or below it."
    )
    policies: object = field(
        "Rules: which client may use which tools, prompts and resources.", shape=POLICIES_SHAPE
    )
    timeouts: WrittenTimeouts | None = field("All timeouts of every server, in seconds.")
    restart: WrittenRestart | None = field("The restart policy of every server, in seconds.")


SETTINGS = written_fields(WrittenSettings)
"""Name → attribute and declaration."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Settings(PlainSettings):
    """The daemon's own settings, and the defaults of every server."""

    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Added to the `env` of each definition of a local server, in which their variables are expanded."""
    timeouts: Timeouts = attrs.field(factory=Timeouts)
    restart: RestartPolicy = attrs.field(factory=RestartPolicy)
    profiles: Mapping[str, Profile] = attrs.field(factory=dict)
    """By name."""
    profile_by_directory: Mapping[str, str] = attrs.field(factory=dict)
    """Absolute directory, may contain `*` and `?` → a name in `profiles`, or `*` for everything."""
    policies: tuple[PolicyRule, ...] = ()
    """In the order in which they apply. Those of `readOnly` profiles come first. If the rules have errors, a
    single rule that denies everything."""


def parse_settings(
    values: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    path: str,
    problems: list[Problem],
    warnings: list[str],
) -> Settings:
    """Parse the object at `path`. Errors are added to `problems`, and the default is used instead."""
    expanded = expand({key: value for key, value in values.items() if key != "env"}, environ, path)
    problems += expanded.problems
    problems += [misplaced_reference(where, reference) for where, reference in expanded.unresolved]
    assert isinstance(expanded.value, dict)
    own = {"env": values["env"]} if "env" in values else {}
    written = read({**expanded.value, **own}, WrittenSettings, path, problems)
    profiles = read_profiles(written.profiles or {}, join_path(path, "profiles"), problems)
    policies = read_policies(written.policies, join_path(path, "policies"), environ, problems)
    directories = written.profile_by_directory or {}
    timeouts = effective_timeouts(
        Timeouts(), written.timeouts, call=written.timeout, path=path, problems=problems, warnings=warnings
    )
    if written.otlp_endpoint and not _can_export():
        where = join_path(path, "openTelemetry")
        warnings.append(f"{where}: nothing is exported, because mcpd is installed without the extra `otel`")
    plain = {each.name: getattr(written, each.name) for each in attrs.fields(PlainSettings)}
    return Settings(
        **plain,
        env=written.env or {},
        profiles=profiles,
        policies=(*read_only_rules(profiles, join_path(path, "profiles")), *policies),
        profile_by_directory=read_profile_rules(
            directories, profiles, join_path(path, "profileByDirectory"), environ, problems
        ),
        timeouts=timeouts,
        restart=effective_restart(RestartPolicy(), written.restart),
    )


def _can_export() -> bool:
    return (
        find_spec("opentelemetry") is not None
        and find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    )
