"""Measure what sharing saves: editors that start their own servers, and editors that share one mcpd.

    make install-dev && .venv/bin/python examples/sharing.py

This prints a Markdown table. Memory is the sum of PSS, which counts shared pages only once. The numbers
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
from typing import IO, Any

import attrs
from demo import definitions, private_environment, running_daemon
from shell import Terminal, lines

EDITORS = 8


@attrs.frozen
class Cost:
    """The cost of all editors together, and the seconds until one more editor knows all tools."""

    processes: int
    megabytes: float
    seconds: float


def each_its_own(servers: dict[str, Any], terminal: Terminal) -> Cost:
    """Measure editors that each start every server."""
    with ExitStack() as stack:
        pids: list[int] = []
        took = 0.0
        for _ in range(EDITORS):
            began = time.monotonic()
            started = [stack.enter_context(_spawned(server, terminal)) for server in servers.values()]
            for process in started:
                _handshake(process)
            took = time.monotonic() - began
            pids += [process.pid for process in started]
        cost = _cost(pids, took)
        for pid in pids:
            subprocess.run(["kill", str(pid)], check=True)
    return cost


def through_mcpd(home: Path, servers: dict[str, Any], terminal: Terminal) -> Cost:
    """Measure editors that each start a bridge to one daemon."""
    bridge = {"command": "mcpctl", "args": ["--socket", str(home / "mcpd.sock"), "bridge"]}
    with running_daemon(home, terminal, servers) as tour, ExitStack() as stack:
        tour.all_connected()
        took = 0.0
        bridges = []
        for _ in range(EDITORS):
            began = time.monotonic()
            bridges.append(stack.enter_context(_spawned(bridge, terminal)))
            _handshake(bridges[-1])
            took = time.monotonic() - began
        cost = _cost([tour.daemon.pid, *(process.pid for process in bridges)], took)
        for process in bridges:
            process.terminate()
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
        shared = through_mcpd(home, servers, terminal)
        own = each_its_own(servers, terminal)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"{EDITORS} editors, {len(servers)} servers: {lines(list(servers))}\n")
    print("| | each editor starts its own servers | through mcpd |\n|---|---|---|")
    among = f"including mcpd, its guardian and {EDITORS} bridges"
    print(f"| processes | {own.processes} | {shared.processes} ({among}) |")
    print(f"| memory | {own.megabytes:.0f} MB | {shared.megabytes:.0f} MB |")
    print(f"| time until one more editor knows its tools | {_time(own.seconds)} | {_time(shared.seconds)} |")
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


def _handshake(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "sharing", "version": "1"},
    }
    _ask(process.stdin, process.stdout, "initialize", hello)
    print(
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), file=process.stdin, flush=True
    )
    _ask(process.stdin, process.stdout, "tools/list", {})


def _ask(out: IO[str], back: IO[str], method: str, params: object) -> None:
    """Send a request and wait for its response. Other messages are ignored."""
    request = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
    print(json.dumps(request), file=out, flush=True)
    for line in back:
        message = json.loads(line)
        if message.get("id") == method and "result" in message:
            return
    raise RuntimeError(f"no response to {method}")


def _cost(roots: list[int], seconds: float) -> Cost:
    time.sleep(2)  # let the processes become idle
    pids = [pid for root in roots for pid in _tree(root)]
    kilobytes = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        kilobytes += sum(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Pss:"))
    return Cost(len(pids), kilobytes / 1000, seconds)


def _tree(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")  # a child belongs to the thread that started it
    children = [child for thread in threads for child in thread.read_text().split()]
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
