"""The definitions in force, where they came from, and changes of them, as the control API has them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.errors import Problem
from mcpd.model.spec_diff import ServersDiff


@attrs.frozen(kw_only=True)
class ConfigStatus:
    """Which configuration is in force, and whether the file on disk could be used."""

    source: str
    """A file's path, `$MCPD_SERVERS`, `api` after `mcpd/servers/set`, or `none`."""
    path: str
    """The file that `mcpd/reload` reads and `mcpd/add` writes, there or not."""
    generation: int
    loaded_at: str
    problems: tuple[Problem, ...] = ()
    """Why the newest version of the file was refused, while the last good set stays in force."""
    warnings: tuple[str, ...] = ()
    """What the configuration says that has no effect here."""


@attrs.frozen(kw_only=True)
class ConfigView:
    """`mcpd/config`: the definitions in force, secrets masked."""

    source: str
    path: str
    generation: int
    servers: Mapping[str, Mapping[str, object]]


@attrs.frozen(kw_only=True)
class SetServersParams:
    servers: Mapping[str, Mapping[str, object]]
    """Name → definition, in the shape of the configuration file."""
    dry_run: bool = False
    if_generation: int | None = None
    """Refuse with `conflict` unless the set is still at this generation."""


@attrs.frozen(kw_only=True)
class AddParams:
    server: str
    definition: Mapping[str, object]
    save: bool = True
    """Write it into the configuration file too."""
    replace: bool = False
    """Take the place of a server of that name; without it, such a server is an error."""


@attrs.frozen(kw_only=True)
class RemoveParams:
    server: str
    save: bool = True


@attrs.frozen(kw_only=True)
class ApplyResult:
    """What a change of the set does, or would do under `dry_run`. Unchanged servers are not touched."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    generation: int
    errors: tuple[Problem, ...] = ()
    """What makes the set unusable; then nothing was applied and the lists are empty."""
    dry_run: bool = False
    saved: str | None = None
    """The file that was written."""

    @classmethod
    def plan(
        cls, plan: ServersDiff, generation: int, *, dry_run: bool = False, saved: str | None = None
    ) -> ApplyResult:
        return cls(
            added=plan.added,
            removed=plan.removed,
            changed=plan.changed,
            unchanged=plan.unchanged,
            generation=generation,
            dry_run=dry_run,
            saved=saved,
        )

    @classmethod
    def refused(cls, errors: list[Problem], generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(
            added=(),
            removed=(),
            changed=(),
            unchanged=(),
            generation=generation,
            errors=tuple(errors),
            dry_run=dry_run,
        )
