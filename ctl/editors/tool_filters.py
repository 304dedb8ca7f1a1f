"""The tools of a server that an editor's entry selects. Editors that share a server may differ in them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ctl.cli.json_text import strings

_MEMBERS = ("includeTools", "excludeTools")


@attrs.frozen
class ToolFilters:
    """Patterns of tools, as in a definition. `include` is None if all are selected."""

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.include is not None or bool(self.exclude)


NO_FILTERS = ToolFilters()


def filters_of(definition: Mapping[str, object]) -> ToolFilters:
    """Return the filters in a definition of mcpd."""
    include = definition.get("includeTools")
    return ToolFilters(
        None if include is None else tuple(strings(include)), tuple(strings(definition.get("excludeTools")))
    )


def unlike_ours(theirs: Mapping[str, object], ours: Mapping[str, object]) -> ToolFilters:
    """Return an editor's filters without those that the definition in mcpd has as well."""
    there, here = filters_of(theirs), filters_of(ours)
    return ToolFilters(
        None if there.include == here.include else there.include,
        () if there.exclude == here.exclude else there.exclude,
    )


def without_filters(definition: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in definition.items() if key not in _MEMBERS}


def note_about(filters: ToolFilters, editor: str, title: str, scope: str) -> str:
    """Return how to keep what only one of several editors selects; empty if it selects all.

    `scope` is that of the file with the filters.
    """
    names = _members(filters)
    if not names:
        return ""
    return (
        f"{names} of {title} do not apply to the shared server; "
        f"mcpctl install {editor}{' --project' if scope == 'project' else ''} --own keeps them in a profile"
    )


def note_about_ours(theirs: Mapping[str, object], ours: Mapping[str, object], server: str, title: str) -> str:
    """Return which lists of a server in mcpd also apply to an editor that does not have them; or empty."""
    names = _members(unlike_ours(ours, theirs))
    return f"{names} of {server} in mcpd also apply to {title}" if names else ""


def _members(filters: ToolFilters) -> str:
    """Return the names of the members that are set."""
    given = (filters.include is not None, bool(filters.exclude))
    return " and ".join(name for name, is_given in zip(_MEMBERS, given, strict=True) if is_given)


def as_profile(selected: Mapping[str, ToolFilters]) -> dict[str, list[str]]:
    """Return the members of a profile that selects these servers, and of each what its filters select."""
    profile = {"servers": list(selected)}
    if any(filters.include is not None for filters in selected.values()):
        profile["includeTools"] = [
            f"{pattern}@{server}"
            for server, filters in selected.items()
            for pattern in (("*",) if filters.include is None else filters.include)
        ]
    if excluded := [f"{each}@{server}" for server, one in selected.items() for each in one.exclude]:
        profile["excludeTools"] = excluded
    return profile
