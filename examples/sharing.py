"""Measure what sharing saves: editors that start their own servers, and editors that share one mcpd.

    make install-dev && .venv/bin/python examples/sharing.py

Each editor says what Claude Code says when it connects, and calls each server once. This prints a Markdown
table. The last column is for a state directory that mcpd has never used: it learns then which servers need
one process for all clients. Memory is the sum of PSS, which counts shared pages only once. The numbers
include everything that the editors start, such as the bridges, but not the editors themselves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
from demo import definitions, private_environment, running_daemon
from shell import Terminal, lines

EDITORS = 8
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"roots": {}, "elicitation": {}},
    "clientInfo": {"name": "claude-code", "version": "2.1.0"},
}
"""What Claude Code says when it connects."""
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "time": ("get_current_time", {"timezone": "UTC"}),
    "git": ("git_status", {"repo_path": "project"}),
    "everything": ("echo", {"message": "hello"}),
    "files": ("list_allowed_directories", {}),
    "memory": ("read_graph", {}),
}
"""The tool of each server that every editor calls once."""


@attrs.frozen
class Cost:
    """The cost of all editors together, and the seconds that one more editor waits."""

    processes: int
    megabytes: float
    list_seconds: float
    """Until it knows all tools."""
    call_seconds: float
    """For its first call of each server, on average."""


class Editor:
    """An editor's end of one connection, to a server or to mcpd."""

    def __init__(self, process: subprocess.Popen[str], root: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._out, self._back, self._root = process.stdin, process.stdout, root

    def greet(self) -> None:
        self._ask("initialize", HELLO)
        self._send({"method": "notifications/initialized"})
        self._ask("tools/list", {})

    def call(self, tool: str, arguments: dict[str, Any]) -> None:
        arguments = {
            name: str(self._root) if name == "repo_path" else value for name, value in arguments.items()
        }
        self._ask("tools/call", {"name": tool, "arguments": arguments})

    def _send(self, message: dict[str, Any]) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), file=self._out, flush=True)

    def _ask(self, method: str, params: object) -> None:
        """Send a request and wait for its response. Tell servers the directory; ignore other messages."""
        self._send({"id": method, "method": method, "params": params})
        for line in self._back:
            message = json.loads(line)
            if message.get("method") == "roots/list":
                self._send({"id": message["id"], "result": {"roots": [{"uri": self._root.as_uri()}]}})
            elif message.get("id") == method and "result" in message:
                if message["result"].get("isError"):
                    raise RuntimeError(f"{method} failed: {line}")
                return
            elif message.get("id") == method and "error" in message:
                raise RuntimeError(f"{method} failed: {line}")
        raise RuntimeError(f"no response to {method}")


def each_its_own(home: Path, servers: dict[str, Any], terminal: Terminal) -> Cost:
    """Measure editors that each start every server."""
    with ExitStack() as stack:
        pids: list[int] = []
        listed = called = 0.0
        for _ in range(EDITORS):
            began = time.monotonic()
            editors = {
                name: Editor(stack.enter_context(_spawned(server, terminal)), home / "project")
                for name, server in servers.items()
            }
            for editor in editors.values():
                editor.greet()
            listed, began = time.monotonic() - began, time.monotonic()
            for name, editor in editors.items():
                editor.call(*CALLS[name])
            called = (time.monotonic() - began) / len(servers)
            pids += [editor.process.pid for editor in editors.values()]
        cost = _cost(pids, listed, called)
        for pid in pids:
            subprocess.run(["kill", str(pid)], check=True)
    return cost


def through_mcpd(home: Path, servers: dict[str, Any], terminal: Terminal) -> Cost:
    """Measure editors that each start a bridge to one daemon."""
    bridge = {"command": "mcpctl", "args": ["--socket", str(home / "mcpd.sock"), "bridge"]}
    with running_daemon(home, terminal, servers) as tour, ExitStack() as stack:
        tour.all_connected()
        listed = called = 0.0
        editors = []
        for _ in range(EDITORS):
            began = time.monotonic()
            editors.append(Editor(stack.enter_context(_spawned(bridge, terminal)), home / "project"))
            editors[-1].greet()
            listed, began = time.monotonic() - began, time.monotonic()
            for name in servers:
                tool, arguments = CALLS[name]
                editors[-1].call(f"{name}__{tool}", arguments)
            called = (time.monotonic() - began) / len(servers)
        cost = _cost([tour.daemon.pid, *(editor.process.pid for editor in editors)], listed, called)
        for editor in editors:
            editor.process.terminate()
        return cost


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="mcpd-sharing-", dir="/tmp"))
    terminal = Terminal(private_environment(home), home)
    servers = definitions(home, terminal)
    del servers["test"]  # not a typical server
    memory = shutil.which("mcp-server-memory", path=terminal.environ["PATH"])
    if memory is not None:
        servers["memory"] = {"command": memory, "env": {"MEMORY_FILE_PATH": str(home / "memory.json")}}
    try:
        first = through_mcpd(home, servers, terminal)
        shared = through_mcpd(home, servers, terminal)
        own = each_its_own(home, servers, terminal)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"{EDITORS} editors, {len(servers)} servers: {lines(list(servers))}\n")
    print("| | each editor starts its own servers | through mcpd | mcpd's very first start |")
    print("|---|---|---|---|")
    costs = (own, shared, first)
    for title, cells in (
        ("processes", [str(each.processes) for each in costs]),
        ("memory (sum of PSS)", [f"{each.megabytes:.0f} MB" for each in costs]),
        ("time until another editor has its tool list", [_time(each.list_seconds) for each in costs]),
        ("its first call of a server", [_time(each.call_seconds) for each in costs]),
    ):
        print(f"| {title} | {' | '.join(cells)} |")
    return 0


def _spawned(server: dict[str, Any], terminal: Terminal) -> subprocess.Popen[str]:
    command = [server["command"], *server.get("args", [])]
    command[0] = shutil.which(command[0], path=terminal.environ["PATH"]) or command[0]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=terminal.directory,
        env=dict(terminal.environ),
    )


def _cost(roots: list[int], list_seconds: float, call_seconds: float) -> Cost:
    time.sleep(2)  # let the processes become idle
    pids = [pid for root in roots for pid in _tree(root)]
    kilobytes = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        kilobytes += sum(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Pss:"))
    return Cost(len(pids), kilobytes / 1000, list_seconds, call_seconds)


def _tree(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")  # a child belongs to the thread that started it
    children = [child for thread in threads for child in thread.read_text().split()]
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
