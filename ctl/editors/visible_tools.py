"""What an editor will see of mcpd's tools, and what that costs it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from ctl.cli.errors import CtlError, DaemonError
from ctl.cli.json_text import strings
from ctl.cli.text import count
from ctl.daemon.client import DaemonReply, Json
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.take_over import TakeOver

_BYTES_PER_TOKEN = 4
"""A rough average for JSON and English."""
_MANY_TOOLS = 40
"""Tools from which on a profile is suggested. Some editors use no more than that many."""
_AT_ONCE = 50
"""Tools about which the daemon is asked before its answers are read. Each names all rules compared."""
_MAX_COMPARISONS = 20_000
"""Tools times rules. The daemon compares that many in about a second, in which others have to wait."""
_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory."""


def describe_tools(
    entry: TakeOver,
    target: InstallTarget,
    profile: str | None,
    fields: Mapping[str, object],
    own: Collection[str],
    again: str,
) -> str:
    """Return how many tools the editor will see and what they cost it, in one line; empty if not known.

    `profile` is the name of the entry's profile, and `fields` its members. `own`: the servers that the editor
    had before. `again` is the command that was run, to which an option can be appended.
    """
    entry.cli.may_start = False
    try:
        tools = entry.cli.call("mcpd/tools", timeout=_TIMEOUT).value["tools"]
        seen = [tool for tool in tools if tool.get("server") in entry.visible and _selects(fields, tool)]
        rules = _count_rules(entry, fields)
        is_exact = len(seen) * rules <= _MAX_COMPARISONS
        seen = _allowed(entry, target, profile, seen) if rules and is_exact else seen
    except CtlError:
        return ""
    if not seen:
        return ""
    shown = [{key: tool.get(key) for key in ("name", "description", "inputSchema")} for tool in seen]
    size = len(json.dumps(shown, ensure_ascii=False).encode())
    servers = {str(tool.get("server")) for tool in seen}
    tokens = max(100, round(size // _BYTES_PER_TOKEN, -2))
    number = f"{'' if is_exact else 'up to '}{count(len(seen), 'tool')}"
    text = (
        f"{target.editor.title} will see {number} of {count(len(servers), 'server')}, "
        f"about {tokens:,} tokens in each conversation"
    )
    if profile:
        return text
    if own and servers.difference(own):
        had = "this project" if target.project is not None else "it"
        number = count(len(own), "server")  # it may have had others that mcpd does not have
        return f"{text}; for only the {number} in mcpd that {had} had: {again} --own"
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


def _allowed(
    entry: TakeOver, target: InstallTarget, profile: str | None, tools: Sequence[Json]
) -> list[Json]:
    """Return the tools that no rule denies to the editor. The daemon decides that. Raises CtlError."""
    known: Json = {
        "client": target.editor.name,
        "transport": "bridge",
        "profile": profile if profile in entry.profiles else "*",
        "directory": str(target.project or entry.user.home),
    }
    asked = [{**known, "server": tool.get("server"), "tool": tool.get("name")} for tool in tools]
    answers: list[DaemonReply | DaemonError] = []
    for start in range(0, len(asked), _AT_ONCE):
        batch = asked[start : start + _AT_ONCE]
        answers += entry.cli.call_all("mcpd/policy", batch, timeout=_TIMEOUT)
    return [
        tool
        for tool, answer in zip(tools, answers, strict=True)
        if isinstance(answer, DaemonError) or answer.value["decision"] != "deny"
    ]


def _count_rules(entry: TakeOver, profile: Mapping[str, object]) -> int:
    """Return how many rules may apply to a tool: those in the settings, and each `readOnly` is one."""
    policies = entry.target.policies if entry.target is not None else None
    definitions = [profile, *entry.visible.values()]
    read_only = sum(bool(each.get("readOnly")) for each in definitions)
    return read_only + (len(policies) if isinstance(policies, list) else bool(policies))
