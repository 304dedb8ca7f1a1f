"""What an editor will see of mcpd's tools, and what that costs it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from ctl.cli.errors import CtlError
from ctl.cli.json_text import strings
from ctl.cli.text import count
from ctl.daemon.client import Json
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.take_over import TakeOver

_BYTES_PER_TOKEN = 4
"""A rough average for JSON and English."""
_MANY_TOOLS = 40
"""Tools from which on a profile is suggested. Some editors use no more than that many."""
_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory."""


def describe_tools(
    entry: TakeOver,
    target: InstallTarget,
    fields: Mapping[str, object] | None,
    had: Collection[str],
    again: str,
) -> str:
    """Return how many tools the editor will see and what they cost it, in one line; empty if not known.

    `fields` are the members of the entry's profile, if it has one. `had`: the servers that the editor had
    before. `again` is the command that was run, to which an option can be appended.
    """
    entry.cli.may_start = False
    try:
        tools = entry.cli.call("mcpd/tools", timeout=_TIMEOUT).value["tools"]
    except CtlError:
        return ""
    seen = [tool for tool in tools if tool.get("server") in entry.visible and _selects(fields or {}, tool)]
    if not seen:
        return ""
    shown = [{key: tool.get(key) for key in ("name", "description", "inputSchema")} for tool in seen]
    size = len(json.dumps(shown, ensure_ascii=False).encode())
    servers = {str(tool.get("server")) for tool in seen}
    tokens = max(100, round(size // _BYTES_PER_TOKEN, -2))
    limits = [fields or {}, *entry.visible.values()]
    is_limited = any(one.get("readOnly") for one in limits) or (entry.target and entry.target.policies)
    text = (
        f"{target.editor.title} will see {'up to ' if is_limited else ''}{count(len(seen), 'tool')} of "
        f"{count(len(servers), 'server')}, about {tokens:,} tokens in each conversation"
    )
    if fields is not None:
        return text
    if had and servers.difference(had):
        whose = "this project" if target.project is not None else "it"
        number = count(len(had), "server")  # it may have had others that mcpd does not have
        return f"{text}; for only the {number} in mcpd that {whose} had: {again} --own"
    if len(seen) < _MANY_TOOLS:
        return text
    return f"{text}; for fewer, define a profile and run: {again} --profile NAME"


def _selects(profile: Mapping[str, object], tool: Json) -> bool:
    """Return whether a profile selects a tool, by its tags and by the patterns `tool` and `tool@server`."""
    name, full = str(tool.get("name")), f"{tool.get('name')}@{tool.get('server')}"

    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(full if "@" in each else name, each) for each in patterns)

    include, tags = profile.get("includeTools"), profile.get("tags")
    has_tag = any(fnmatchcase(tag, each) for tag in strings(tool.get("tags")) for each in strings(tags))
    return (
        (include is None or matches(strings(include)))
        and (tags is None or has_tag)
        and not matches(strings(profile.get("excludeTools")))
    )
