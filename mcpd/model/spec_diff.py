"""What changes when one set of servers replaces another."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.server_spec import ServerSpec


@attrs.frozen
class ServersDiff:
    """A plan: names, each list sorted. Unchanged servers keep their process and connection."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def diff_specs(old: Mapping[str, ServerSpec], new: Mapping[str, ServerSpec]) -> ServersDiff:
    """The plan that turns `old` into `new`. Two specs are the same server when they are equal."""
    both = old.keys() & new.keys()
    return ServersDiff(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(name for name in both if old[name] != new[name])),
        unchanged=tuple(sorted(name for name in both if old[name] == new[name])),
    )


def definition_parts(definition: Mapping[str, object]) -> dict[str, object]:
    """The parts of a definition as written, by the names that people know: `args`, `env.TOKEN`."""
    found: dict[str, object] = {}
    for key, value in definition.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found


def changed_parts(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """Which parts of a definition are not what they were, in the order of the newer one."""
    before, after = definition_parts(old), definition_parts(new)
    names = [*after, *(name for name in before if name not in after)]
    return tuple(
        name for name in names if name not in before or name not in after or before[name] != after[name]
    )
