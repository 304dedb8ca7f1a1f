"""What changes when one set of servers replaces another."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.spec import ServerSpec


@attrs.frozen
class ServersDiff:
    """A plan: names, each list sorted. Unchanged servers keep their process and connection."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def diff(old: Mapping[str, ServerSpec], new: Mapping[str, ServerSpec]) -> ServersDiff:
    """The plan that turns `old` into `new`. Two specs are the same server when they are equal."""
    both = old.keys() & new.keys()
    return ServersDiff(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(name for name in both if old[name] != new[name])),
        unchanged=tuple(sorted(name for name in both if old[name] == new[name])),
    )
