"""Count what a call costs inside the daemon: Python calls and bytecode instructions, which no load changes.

    python -m benchmarks.counts [--check] [--calls | --native]

The daemon is stopped, gets IN_FLIGHT requests of `tools/call`, continues, and all answers are read. The
server withholds its answers until it has all requests. What the daemon does later is not part of a call and
not counted: it writes the lines of the call log a few times per second. `--check` compares the counts with
the limits and exits with 1 if one is exceeded; `--calls` counts only calls, and `--native` only the
instructions of the processor, for which it needs valgrind.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import attrs

from benchmarks.daemon import Daemon, on_pipes, running
from benchmarks.figures import IN_FLIGHT
from benchmarks.http_endpoint import new_session
from benchmarks.http_load import Direct
from benchmarks.load import LIMIT, OnLine, Wrong, aggregated, attached, bridged, control, tools_call
from benchmarks.stages import RULE

TOGETHER = f"together={IN_FLIGHT}"
BATCHES, MORE_BATCHES = 3, 12
"""Batches that are counted, and at most if all of them are above the limit."""
_PAUSE = 0.4
"""Seconds after which the daemon has written its call log."""
SERVERS = 200
"""Servers of the aggregate."""

Open = Callable[[ExitStack, Daemon], "OnLine | Direct"]


@attrs.frozen(kw_only=True)
class Route:
    """One way of a call through the daemon, and the most that a call may cost there."""

    calls: float
    """The limit of Python calls for a call: a tenth above what a quiet machine counts, because each wakeup of
    the event loop adds some. A commit that raises a limit says what a user gets for it."""
    instructions: float
    """The limit of bytecode instructions for a call."""
    open: Open
    native: float = math.inf
    """The limit of the processor's instructions for a call."""
    stub: str = ""
    """An argument of the stub."""
    servers: int = 1
    http: bool = False
    settings: Mapping[str, object] = attrs.field(factory=dict)


def _attach(held: ExitStack, daemon: Daemon) -> OnLine:
    return OnLine(held.enter_context(attached(daemon.socket, "stub-1")))


def _aggregate(held: ExitStack, daemon: Daemon) -> OnLine:
    return OnLine(held.enter_context(aggregated(daemon.socket)), partial(tools_call, prefix="stub-1__"))


def _control(held: ExitStack, daemon: Daemon) -> OnLine:
    def call(tool: str) -> Mapping[str, object]:
        params = {"server": "stub-1", "tool": tool, "arguments": {}, "raw": True}
        return {"method": "mcpd/call", "params": params}

    return OnLine(held.enter_context(control(daemon.socket)), call)


def _bridge(held: ExitStack, daemon: Daemon) -> OnLine:
    line, _ = held.enter_context(bridged(daemon.environ, "stub-1"))
    return OnLine(line)


def _http(era: str) -> Open:
    path = b"/servers/stub-1/mcp"

    def connect(held: ExitStack, daemon: Daemon) -> Direct:
        session = new_session(daemon.http, path) if era == "legacy" else b""
        return held.enter_context(closing(Direct(daemon.http, era, path=path, session=session)))

    return connect


ROUTES = {
    "same revision, `readOnlyHint`": Route(calls=30, instructions=2150, stub="kindest", open=_attach),
    "same revision, undeclared tool": Route(
        calls=30, instructions=2150, native=60_000, stub="legacy", open=_attach
    ),
    "usual case: server one revision newer": Route(calls=36, instructions=2400, native=75_000, open=_attach),
    "aggregate of 200 servers": Route(
        calls=48, instructions=2600, native=90_000, servers=SERVERS, open=_aggregate
    ),
    "`mcpd/call`": Route(calls=800, instructions=15000, open=_control),
    "bridge, in the daemon": Route(calls=36, instructions=2450, open=_bridge),
    "HTTP, 2025-11-25": Route(calls=72, instructions=4300, http=True, open=_http("legacy")),
    # Its connections count as clients of their own, which wait for write turns as long as time decides.
    "HTTP, 2026-07-28": Route(calls=130, instructions=9000, http=True, open=_http("modern")),
    "one policy": Route(calls=54, instructions=2800, open=_attach, settings={"policies": [RULE]}),
}


def count(route: Route, what: str, limit: float, *, shows_functions: bool = False) -> float:
    """Return the `calls`, `instructions` or `native` instructions for one call on a route.

    `shows_functions`: print the part of each function in the last batch.
    """
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="mcpd-bench-") as home:
        file = Path(home, "count")
        arguments = [route.stub] if route.stub else []
        daemon = held.enter_context(
            running(
                on_pipes(route.servers, *arguments, TOGETHER),
                http=route.http,
                settings=route.settings,
                command=("-m", "benchmarks.counted_daemon", what, str(file)),
            )
        )
        way = route.open(held, daemon)
        counts, found = list[float](), list[tuple[int, str]]()
        while len(counts) <= BATCHES or (min(counts[1:]) > limit and len(counts) <= MORE_BATCHES):
            time.sleep(_PAUSE)
            counter = _native(daemon.pid, file) if what == "native" else _python(daemon.pid, file)
            next(counter)
            os.kill(daemon.pid, signal.SIGSTOP)
            _wait_stopped(daemon.pid)
            with way.batch(IN_FLIGHT):
                os.kill(daemon.pid, signal.SIGCONT)
            found = next(counter)
            counts.append(sum(number for number, _ in found) / IN_FLIGHT)
        if shows_functions:
            for number, name in found:
                print(f"{number / IN_FLIGHT:9.2f} {name}")
        # The first one includes what is made once for a client. Other programs can only add to a count, when
        # they make the daemon read a batch in several portions.
        return min(counts[1:])


def _python(pid: int, file: Path) -> Iterator[list[tuple[int, str]]]:
    """Start to count, and then return the numbers of all functions."""
    os.kill(pid, signal.SIGUSR1)
    yield _read(file)
    os.kill(pid, signal.SIGUSR2)
    yield _read(file)


def _native(pid: int, file: Path) -> Iterator[list[tuple[int, str]]]:
    """Start to count, and then return a single number."""
    for command in ("instrumentation on", "zero"):
        _tell_valgrind(pid, command)
    yield []
    _tell_valgrind(pid, "dump")
    [dump] = file.parent.glob(f"{file.name}.*")
    text = dump.read_text()
    dump.unlink()
    yield [(int(text.partition("\ntotals: ")[2].split()[0]), "native instructions")]


def _tell_valgrind(pid: int, command: str) -> None:
    subprocess.run(["vgdb", f"--pid={pid}", *command.split()], check=True, timeout=LIMIT, capture_output=True)


def _read(file: Path) -> list[tuple[int, str]]:
    deadline = time.monotonic() + LIMIT
    while not file.exists():
        if time.monotonic() > deadline:
            raise Wrong("the daemon did not write its count")
        time.sleep(0.01)
    lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
    file.unlink()
    return [(int(number), name) for number, name in lines]


def _wait_stopped(pid: int) -> None:
    while ") T " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.001)


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    flags.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    flags.add_argument("--calls", action="store_true", help="count only Python calls")
    flags.add_argument("--native", action="store_true", help="count only instructions of the processor")
    flags.add_argument("--only", help="routes whose name contains this text")
    flags.add_argument("--functions", action="store_true", help="show the part of each function")
    given = flags.parse_args()
    exceeded = False
    for name, route in ROUTES.items():
        if given.only and given.only not in name:
            continue
        limits = {"calls": route.calls, "instructions": route.instructions, "native": route.native}
        kinds = ("native",) if given.native else ("calls",) if given.calls else ("calls", "instructions")
        for what in kinds:
            found = count(route, what, limits[what], shows_functions=given.functions)
            is_over = found > limits[what]
            exceeded |= is_over
            print(
                f"{name:42}{what:14}{found:9.1f}  (at most {limits[what]:g}{': EXCEEDED' if is_over else ''})"
            )
    return 1 if exceeded and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
