"""Measure what tools cost in the context of a model: how well they are found, and the tokens of whole tasks.

    python -m benchmarks.context

The tools are those of 37 real servers (`context_data`). A token is four bytes. No model takes part: a script
does each task as an agent would. It gets the list of its surface, finds a tool by the words in `tasks.json`,
and calls it. It succeeds if it was shown the wanted tool and the call has its result. Exits with 1 if a
requirement is not met.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from benchmarks.daemon import running
from benchmarks.figures import Row
from benchmarks.load import VERSION, Line, control
from mcpd.gateway.tool_index import ToolIndex, build_tool_index
from mcpd.model.steps import run_steps

DATA = Path(__file__).with_name("context_data")
SERVER = Path(__file__).with_name("listed_server.py")
TOOLS = DATA / "tools.json.gz"
BYTES_PER_TOKEN = 4
MANY = 2000
"""Tools for which the speed is required."""
_USUAL = ("github", "filesystem", "notion", "playwright")
"""Servers that the person has in each task, in addition to those that the task needs."""
_SEARCHED = 5
"""Definitions that a host's own search adds to the context, as Anthropic's does."""


def servers() -> list[dict[str, object]]:
    with gzip.open(TOOLS) as file:
        found: list[dict[str, object]] = json.load(file)["servers"]
    return found


def listed() -> Iterator[tuple[str, str, bytes]]:
    """Yield (server, tool, its entry as clients of mcpd see it)."""
    for server in servers():
        tools = server["tools"]
        assert isinstance(tools, list)
        for tool in tools:
            name, text = server["name"], tool.get("description", "")
            entry = {**tool, "name": f"{name}__{tool['name']}", "description": f"[{name}] {text}"}
            yield str(name), str(tool["name"]), json.dumps(entry).encode()


def ranking() -> list[Row]:
    every = list(listed())
    ids = [f"{server}/{tool}" for server, tool, _ in every]
    index = run_steps(build_tool_index([entry for *_, entry in every], [server for server, *_ in every]))
    rows = []
    for half, name in enumerate(("steps used for tuning", "steps held out")):
        steps = _steps()[half::2]
        ranks = [_rank(index, ids, query, wanted) for query, wanted in steps]
        for top, limit in (20, 85), (5, 75), (1, None):
            share = 100 * sum(rank < top for rank in ranks) / len(ranks)
            what, measured = f"{name}: wanted tool among the first {top}", f"{len(steps)} of {len(ids)} tools"
            rows.append(Row(what, measured, share, limit if half else None, at_least=True, unit="%"))
    return rows


def _steps() -> list[tuple[str, set[str]]]:
    lines = [each for each in (DATA / "steps.txt").read_text().splitlines() if each and each[0] != "#"]
    pairs = (line.split(" | ") for line in lines)
    return [(query, {tool.strip() for tool in wanted.split(",")}) for query, wanted in pairs]


def _rank(index: ToolIndex, ids: Sequence[str], query: str, wanted: set[str]) -> int:
    positions, _ = run_steps(index.search(query))
    return next((rank for rank, position in enumerate(positions) if ids[position] in wanted), len(ids))


def speed() -> list[Row]:
    every = list(listed())
    every = (every * (MANY // len(every) + 1))[:MANY]
    tracemalloc.start()
    index = run_steps(build_tool_index([entry for *_, entry in every], [server for server, *_ in every]))
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    taken = []
    for query, _ in _steps():
        began = time.process_time()
        run_steps(index.search(query))
        taken.append(1000 * (time.process_time() - began))
    what = f"a query, {MANY} tools: CPU time"
    return [
        Row(f"{what}, median", f"{len(taken)} queries", statistics.median(taken), 2, unit="ms"),
        Row(f"{what}, slowest", f"{len(taken)} queries", max(taken), unit="ms"),
        Row(f"the index of {MANY} tools", "tracemalloc", memory, 5, unit="MB"),
    ]


@attrs.define
class Cost:
    """What a task costs: tokens in the context at its end, and in the input of all requests to a model."""

    context: int = 0
    inputs: int = 0
    requests: int = 0

    def add(self, *parts: object) -> None:
        """Add what the next request to the model contains for the first time, and make that request."""
        self.context += sum(_tokens(part) for part in parts)
        self.inputs += self.context
        self.requests += 1


def _tokens(value: object) -> int:
    return len(value if isinstance(value, str) else json.dumps(value)) // BYTES_PER_TOKEN


class Agent:
    """A host with a script instead of a model."""

    def __init__(self, line: Line, client: str, surface: str, profile: str, *, searches: bool) -> None:
        """`searches`: whether the host shows the model only names, and definitions that its search finds."""
        self._line, self._key, self._searches = line, 1, searches
        identity = {"client": {"name": client, "surface": surface}, "profile": profile}
        self._ask("mcpd/attach", identity)
        info = {"name": client, "version": "1"}
        self._ask("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": info})
        line.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        answer = self._ask("tools/list", {})
        assert isinstance(answer, dict)
        self.tools: dict[str, object] = {tool["name"]: tool for tool in answer["tools"]}

    def _ask(self, method: str, params: object) -> object:
        self._key += 1
        return self._line.ask({"jsonrpc": "2.0", "id": self._key, "method": method, "params": params})

    def _call(self, tool: str, arguments: object) -> tuple[object, str]:
        params = {"name": tool, "arguments": arguments}
        result = self._ask("tools/call", params)
        assert isinstance(result, dict)
        return params, str(result["content"][0]["text"])

    def do(self, steps: Sequence[dict[str, object]]) -> tuple[Cost, bool]:
        """Do a task; return what it cost, and whether it succeeded."""
        cost = Cost()
        first = self._first_definitions()
        cost.add(first)
        for step in steps:
            wanted = str(step["tool"]).replace("/", "__")
            if "find_tools" in self.tools:
                if not self._find(step, wanted, cost):
                    return cost, False
                used, text = self._call("call_tool", {"name": wanted, "arguments": {}})
            else:
                if self._searches:  # its own search, whose rank is not at issue here
                    start = list(self.tools).index(wanted)
                    cost.add({"query": step["queries"]}, list(self.tools.values())[start : start + _SEARCHED])
                used, text = self._call(wanted, {})
            if not text.startswith("ok"):
                return cost, False
            cost.add(used, text)
        return cost, True

    def _first_definitions(self) -> object:
        if not self._searches:
            return list(self.tools.values())
        # A tool that the server wants to be loaded always is, and of the others the host shows the names.
        return [
            tool if isinstance(tool, dict) and "anthropic/alwaysLoad" in tool.get("_meta", {}) else name
            for name, tool in self.tools.items()
        ]

    def _find(self, step: dict[str, object], wanted: str, cost: Cost) -> bool:
        queries = step["queries"]
        assert isinstance(queries, list)
        for query in queries:
            used, found = self._call("find_tools", {"query": query})
            cost.add(used, found)
            if f"- {wanted}(" in found:
                return True
        return False


def tasks() -> list[Row]:
    every = json.loads((DATA / "tasks.json").read_text())
    definitions = {
        str(server["name"]): {
            "command": sys.executable,
            "args": [str(SERVER), str(TOOLS), str(server["name"])],
        }
        for server in servers()
    }
    few = {each["task"]: {"servers": sorted({*_USUAL, *_servers_of(each["steps"])})} for each in every}
    rows: list[Row] = []
    with running(definitions, settings={"profiles": few}) as daemon:
        for host, client, searches in ("searches itself", "claude-code", True), ("does not", "agent", False):
            for scope in "few servers", "all servers":
                totals: dict[str, Cost] = {}
                for surface in "full", "search", "auto":
                    total, success = totals.setdefault(surface, Cost()), 0
                    for each in every:
                        profile = each["task"] if scope == "few servers" else "*"
                        with _agent(daemon.socket, client, surface, profile, searches) as agent:
                            cost, is_done = agent.do(each["steps"])
                        success += is_done
                        total.context += cost.context
                        total.inputs += cost.inputs
                        total.requests += cost.requests
                    what = f"host {host}, {scope}, {surface}: {len(every)} tasks"
                    measured = (
                        f"{total.inputs:,} input tokens, {total.requests} requests, context {total.context:,}"
                    )
                    rows.append(Row(what, measured, success, len(every), at_least=True, unit="succeed"))
                limit, full, auto = 100 if searches else 40, totals["full"], totals["auto"]
                what = f"host {host}, {scope}, auto vs. full"
                rows.append(
                    Row(f"{what}: context", "tokens", 100 * auto.context / full.context, limit, unit="%")
                )
                rows.append(Row(f"{what}: input", "tokens", 100 * auto.inputs / full.inputs, limit, unit="%"))
    return rows


def _servers_of(steps: Sequence[dict[str, object]]) -> set[str]:
    return {str(step["tool"]).partition("/")[0] for step in steps}


@contextmanager
def _agent(socket: str, client: str, surface: str, profile: str, searches: bool) -> Iterator[Agent]:
    with control(socket) as line:
        yield Agent(line, client, surface, profile, searches=searches)


def main() -> int:
    rows = [*ranking(), *speed(), *tasks()]
    for row in rows:
        print(" | ".join(row.cells()))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
