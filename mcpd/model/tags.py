"""Tags: groups of servers and tools, as definitions name them. Policies, profiles and lists select by tag."""

from __future__ import annotations

from fnmatch import fnmatchcase

from mcpd.model.policy import fold
from mcpd.model.server_spec import ServerSpec


def tags_of_tool(spec: ServerSpec, tool: str) -> tuple[str, ...]:
    """Return the tags of a tool: those of its server, then those of its own name."""
    if not spec.tool_tags:
        return spec.tags
    own = (tag for pattern, tags in spec.tool_tags.items() if fnmatchcase(tool, pattern) for tag in tags)
    return tuple(dict.fromkeys((*spec.tags, *own)))


def tags_of_similar_tools(spec: ServerSpec, tool: str) -> tuple[str, ...]:
    """Return the tags of names that a tolerant server may take for this one."""
    folded = fold(tool)
    return tuple(
        tag for pattern, tags in spec.tool_tags.items() if fnmatchcase(folded, fold(pattern)) for tag in tags
    )


def all_tags(spec: ServerSpec) -> frozenset[str]:
    """Return every tag that the definition uses."""
    return frozenset(spec.tags).union(*spec.tool_tags.values())
