"""The fields that every kind of server has: whether it runs, its tools, its patience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import attrs

from mcpd.config.section import Section
from mcpd.config.settings import Settings
from mcpd.config.timeouts import parse_restart_policy, parse_timeouts
from mcpd.model.server_spec import Concurrency, Era, RestartPolicy, ServerSpec, Share, Timeouts
from mcpd.model.text import shorten

T = TypeVar("T")
_DEFAULT = ServerSpec(name="")
_CONCURRENCY: Mapping[str, Concurrency] = {"free": "free", "writes": "writes", "serial": "serial"}
_SHARE: Mapping[str, Share] = {"all": "all", "root": "root", "client": "client"}


@attrs.frozen(kw_only=True)
class Shared:
    """The part of a ServerSpec that does not depend on how the server is reached."""

    enabled: bool
    lazy: bool
    trust: bool
    include_tools: tuple[str, ...] | None
    exclude_tools: tuple[str, ...]
    debug: bool
    description: str
    era: Era
    timeouts: Timeouts
    restart: RestartPolicy
    max_frame: int
    max_in_flight: int
    max_queued: int
    concurrency: Concurrency
    share: Share


def parse_common_fields(section: Section, settings: Settings, warnings: list[str]) -> Shared:
    """Read them from `section`; complaints go to its problems, and a default stands in."""
    include = section.strings("includeTools")
    if include == ():
        warnings.append(f"{section.path}: 'includeTools' is empty, so none of its tools is offered")
    debug = section.boolean("debug")
    description = section.string("description") if section.values.get("description") != "" else ""
    return Shared(
        enabled=_enabled(section),
        lazy=section.boolean("lazy") or False,
        trust=section.boolean("trust") or False,
        include_tools=include,
        exclude_tools=section.strings("excludeTools") or (),
        debug=settings.debug if debug is None else debug,
        description=description or "",
        era=_era(section),
        timeouts=parse_timeouts(section, settings.timeouts, warnings),
        restart=parse_restart_policy(section, settings.restart),
        max_frame=_or(section.integer("maxFrame", minimum=1024), _DEFAULT.max_frame),
        max_in_flight=_or(section.integer("maxInFlight", minimum=1), _DEFAULT.max_in_flight),
        max_queued=_or(section.integer("maxQueued", minimum=0), _DEFAULT.max_queued),
        concurrency=_one_of(section, "concurrency", _CONCURRENCY) or _DEFAULT.concurrency,
        share=_one_of(section, "share", _SHARE) or _DEFAULT.share,
    )


def _one_of(section: Section, field: str, values: Mapping[str, T]) -> T | None:
    """None for none or a wrong one, which has been complained about."""
    said = section.string(field)
    if said is not None and said not in values:
        section.add_problem(field, f"unknown '{shorten(said, 40)}'", f"write one of {', '.join(values)}")
    return None if said is None else values.get(said)


def _enabled(section: Section) -> bool:
    enabled, disabled = section.boolean("enabled"), section.boolean("disabled")
    if enabled is not None and disabled is not None and enabled == disabled:
        section.add_problem("disabled", "'enabled' and 'disabled' contradict each other", "keep one")
    if enabled is not None:
        return enabled
    return not disabled


def _era(section: Section) -> Era:
    match section.string("era"):
        case None | "auto":
            return "auto"
        case "modern":
            return "modern"
        case "legacy":
            return "legacy"
        case other:
            section.add_problem(
                "era", f"unknown era '{shorten(other, 40)}'", "write one of auto, modern, legacy"
            )
            return "auto"


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
