"""Measure the overhead of the daemon as ratios and compare them with limits (`make bench`).

    python -m benchmarks.run [--quick] [--write]

Values that are compared are measured alternately in several rounds, and each result is the median of the
rounds. The exit status is 1 if a limit is exceeded. `--write` updates the table in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import http_endpoint, remote
from benchmarks.daemon import Daemon, on_pipes, running
from benchmarks.figures import (
    IN_FLIGHT,
    PATIENCE,
    Row,
    Way,
    a_second,
    in_turns,
    micro,
    milli,
    pair,
    ratio,
    table,
)
from benchmarks.load import OnLine, Wrong, attached, bridged, control, direct

ROUNDS = 5
CALLS, FLOOD, BIG_CALLS = 3000, 40_000, 60
SERVERS = 20
RESULTS = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def speed(rounds: int) -> list[Row]:
    """Compare calls through the daemon with calls to the stub server."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(1)))
        bare = Way("direct", OnLine(held.enter_context(direct())))
        plain = Way("unix", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))))
        through_api = Way("mcpd/call", OnLine(held.enter_context(control(daemon.socket)), "stub-1"))
        bridge = Way("bridge", OnLine(held.enter_context(bridged(daemon.environ, "stub-1"))))
        in_turns((bare, plain, through_api, bridge), rounds, CALLS, FLOOD, BIG_CALLS)
    rows = [
        Row(
            "mcpctl bridge vs. Unix socket: p50",
            pair(plain.p50, bridge.p50, micro),
            ratio(bridge.p50, plain.p50),
            1.6,
        ),
        Row(
            "mcpctl bridge vs. Unix socket: p99",
            pair(plain.p99, bridge.p99, micro),
            ratio(bridge.p99, plain.p99),
        ),
        Row(
            f"mcpctl bridge vs. Unix socket: calls per second, {IN_FLIGHT} in flight",
            pair(plain.rate, bridge.rate, a_second),
            100 * ratio(bridge.rate, plain.rate),
            at_least=True,
            unit="%",
        ),
    ]
    for way, limited in (plain, True), (through_api, False):
        name = "tools/call on the Unix socket" if limited else "mcpd/call, raw"
        rows += [
            Row(
                f"{name}: p50",
                pair(bare.p50, way.p50, micro),
                ratio(way.p50, bare.p50),
                5 if limited else None,
            ),
            Row(f"{name}: p99", pair(bare.p99, way.p99, micro), ratio(way.p99, bare.p99)),
            Row(
                f"{name}: calls per second, {IN_FLIGHT} in flight",
                pair(bare.rate, way.rate, a_second),
                100 * ratio(way.rate, bare.rate),
                35 if limited else None,
                at_least=True,
                unit="%",
            ),
            Row(
                f"{name}: 1 MiB result",
                pair(bare.big, way.big, milli),
                ratio(way.big, bare.big),
                6 if limited else None,
            ),
        ]
    return rows


def cost(starts: int, idle_seconds: float) -> list[Row]:
    """Measure the startup, the idle cost and the response time of a daemon with twenty servers."""
    signal.alarm(2 * PATIENCE)
    taken = []
    for _ in range(starts - 1):
        with running(on_pipes(SERVERS)) as daemon:
            taken.append(daemon.connected_after)
    with running(on_pipes(SERVERS)) as daemon:
        taken.append(daemon.connected_after)
        time.sleep(2)  # let the processes become idle
        memory, kind = daemon.memory()
        cpu = daemon.cpu(idle_seconds)
        return [
            Row(
                f"{SERVERS} servers connected after start",
                f"{min(taken):.2f} to {max(taken):.2f} s",
                statistics.median(taken),
                1,
                unit="s",
            ),
            Row(f"idle memory with {SERVERS} servers", f"{kind}, guardian included", memory, 40, unit="MB"),
            Row(f"idle CPU with {SERVERS} servers", f"over {idle_seconds:g} s", cpu, 0.5, unit="%"),
            _client(daemon, 20),
        ]


def _client(daemon: Daemon, times: int) -> Row:
    """Compare `mcpctl status` with an empty Python program."""
    bare = [sys.executable, "-c", "pass"]
    status = [str(Path(sys.executable).with_name("mcpctl")), "status"]
    _wall(status, daemon)  # the first run writes the bytecode
    pairs = [(_wall(bare, daemon), _wall(status, daemon)) for _ in range(times)]
    nothing, asked = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    value = statistics.median(asked) / statistics.median(nothing)
    return Row("mcpctl status vs. python -c pass", pair(nothing, asked, milli), value, 6)


def _wall(command: Sequence[str], daemon: Daemon) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, env=daemon.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    taken = time.perf_counter() - start
    if done.returncode:
        raise Wrong(f"{' '.join(command)} exited with status {done.returncode}: {done.stderr.decode()}")
    return taken


def machine() -> str:
    """Describe the machine and the date. Absolute values differ between machines more than ratios do."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    today = time.strftime("%Y-%m-%d")
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{today}, {model}, {os.cpu_count()} cores, {system}"


def write(text: str) -> None:
    """Replace the table between the markers in RESULTS.md."""
    old = RESULTS.read_text() if RESULTS.exists() else f"# Benchmark results\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    RESULTS.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _overdue(*_: object) -> None:
    raise Wrong(f"no response for {PATIENCE} s")


def main() -> int:
    flags = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    flags.add_argument("--quick", action="store_true", help="measure a single round")
    flags.add_argument("--write", action="store_true", help=f"update the table in {RESULTS.name}")
    flags.add_argument("--only", choices=("speed", "remote", "endpoint", "cost"), help="run one part")
    given = flags.parse_args()
    rows: list[Row] = []
    signal.signal(signal.SIGALRM, _overdue)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`
    try:
        if given.only in (None, "speed"):
            rows += speed(1 if given.quick else ROUNDS)
        if given.only in (None, "remote"):
            rows += remote.speed(1 if given.quick else ROUNDS)
        if given.only in (None, "endpoint"):
            rows += http_endpoint.speed(1 if given.quick else ROUNDS)
        if given.only in (None, "cost"):
            rows.append(http_endpoint.clients())
            rows += cost(1 if given.quick else 3, 3 if given.quick else 10)
    except Wrong as error:
        print(f"the benchmark is invalid: {error}", file=sys.stderr)
        return 2
    text = f"{machine()}\n\n{table(rows)}"
    print(text)
    if given.write:
        write(text)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
