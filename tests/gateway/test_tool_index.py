"""The ranking of tools: what is found, and that nothing a server or a client sends takes long."""

from __future__ import annotations

import json
import time

from mcpd.gateway.signatures import signature
from mcpd.gateway.tool_index import ToolIndex, build_tool_index
from mcpd.model.steps import run_steps

TOOLS = {
    "createPullRequest": "Open a new pull request.",
    "delete_branch": "Remove a branch",
    "list-issues": "Show what is wrong.",
    "Übersetzen": "Translates ÄÖÜ",
}


def entry(name: str, description: object, schema: object = None) -> bytes:
    return json.dumps(
        {"name": f"git__{name}", "description": description, "inputSchema": schema or {}}
    ).encode()


def index_of(*entries: bytes) -> ToolIndex:
    return run_steps(build_tool_index(entries, ["git"] * len(entries)))


def found(index: ToolIndex, query: str) -> tuple[list[int], bool]:
    positions, fits = run_steps(index.search(query))
    return list(positions), fits


def test_tools_are_found_by_forms_beginnings_and_meanings() -> None:
    index = index_of(*(entry(name, text) for name, text in TOOLS.items()))
    for query, first in [
        ("pull requests", 0),
        ("creating a pull req", 0),
        ("erase branches", 1),
        ("issue", 2),
        ("übersetzen", 3),
    ]:
        assert found(index, query)[0][0] == first, query
    assert found(index, "pull request") == ([0], True)
    assert found(index, "branch of an oak in Patagonia") == ([1], False), "it fits in one of three words"
    assert found(index, "") == found(index, "?!") == found(index, "zeppelin") == ([], False)


def test_signature_is_one_short_line_and_takes_linear_time() -> None:
    names = [f"a{number}" for number in range(8000)]
    schema = {
        "properties": {name: {"type": "x\ny" * 1000} for name in names},
        "required": [n + "\n" for n in names],
    }
    began = time.process_time()
    line = signature(entry("many", "x", schema))
    assert time.process_time() - began < 0.5
    assert "\n" not in line
    assert len(line) < 3000


def test_whatever_is_searched_takes_short_steps() -> None:
    """Also what no sensible server or client sends."""
    long = "word " * 2_000_000
    odd = [
        entry("long", long),
        entry("wide", "x", {"properties": {f"p{n}": {"description": long[:9000]} for n in range(2000)}}),
        entry("huge", "x", {"properties": {"p": {"description": long}}}),
        entry("odd", 7, {"properties": [1]}),
        b'{"name": "endless", "inputSchema": {"maximum": 1e999}}',
        entry("odder", None, {"properties": {"p": 3, "q": {"description": 4}}}),
    ]
    for query in (long, "x" * 1_000_000, " ".join(map(str, range(100_000)))):
        for steps in (build_tool_index(odd, ["git"] * len(odd)), index_of(*odd).search(query)):
            began = time.process_time()
            run_steps(steps)
            assert time.process_time() - began < 0.5
