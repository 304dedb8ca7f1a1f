"""What a call costs through the balancer, and the official scenarios through it.

Calls per second follow from the CPU time of all processes, which another program hardly changes.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack, closing
from pathlib import Path

import trio

from benchmarks.daemon import on_pipes
from benchmarks.http_endpoint import new_session
from benchmarks.http_load import Direct
from tests.conformance import server_side, suite
from tests.conformance.references import REFERENCES
from tests.e2e.harness import children
from tests.interop.peers import free_port, listening
from tests.team import replicas

ROUNDS, CALLS = 5, 300
IN_FLIGHT, FLOOD = 64, 10_000
CORES = 2
MORE_MS, MORE_FORWARDED_MS, CALLS_PER_SECOND = 0.4, 0.8, 5_000
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = {"haproxy": "HAProxy", "stub": "servers", "tests.team": "the client", "mcpd": "replicas"}
"""What is in the command line of a process → what it is."""
_PATH = b"/servers/stub-1/mcp"
_TOKEN = f"Authorization: Bearer {replicas.TOKEN}\r\n".encode()


def measure(home: Path) -> list[str]:
    """Measure p50 and calls per second, and return the figures that are missed."""
    with replicas.running(home, {**on_pipes(1)}) as team, ExitStack() as held:
        port = int(team.replicas[0].address.rpartition(":")[2])

        def client(port: int, era: str, session: bytes = b"") -> Direct:
            made = Direct(port, era, path=_PATH, session=session, more=_TOKEN)
            return held.enter_context(closing(made))

        session = new_session(team.port, _PATH)
        alone, through = client(port, "modern"), client(team.port, "modern")
        alone_legacy = client(port, "legacy", new_session(port, _PATH, _TOKEN))
        legacy = client(team.port, "legacy", session)
        found: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, one in (("alone", alone), ("legacy alone", alone_legacy), ("through", through)):
                found.setdefault(name, []).append(statistics.median(one.latencies("echo", CALLS)))
            # The balancer takes the replicas in turn: every third request reaches the owner of the session.
            taken = legacy.latencies("echo", CALLS)
            thirds = sorted(statistics.median(taken[turn::3]) for turn in range(3))
            found.setdefault("not forwarded", []).append(thirds[0])
            found.setdefault("forwarded", []).append(thirds[1])
        rounds, rates = [], []
        for _ in range(ROUNDS):
            before = _cpu_times()
            rates.append(through.rate(FLOOD, IN_FLIGHT))
            rounds.append({kind: (now - before[kind]) / FLOOD for kind, now in _cpu_times().items()})
    p50 = {name: 1000 * min(each) for name, each in found.items()}
    rows = (
        ("one replica without a balancer: p50", p50["alone"], p50["alone"]),
        ("through the balancer: p50", p50["through"], p50["alone"] + MORE_MS),
        ("the same with sessions, at the owner: p50", p50["not forwarded"], p50["legacy alone"] + MORE_MS),
        ("forwarded: p50", p50["forwarded"], p50["legacy alone"] + MORE_FORWARDED_MS),
    )
    for name, taken_ms, limit in rows:
        print(f"{name:45} {taken_ms:8.2f} ms, limit {limit:.2f} ms")
    cheapest = min(rounds, key=lambda each: sum(each.values()))
    best = 1e6 * CORES / sum(cheapest.values())
    print(f"CPU time of a call, {IN_FLIGHT} in flight:")
    for name, microseconds in sorted(cheapest.items()):
        print(f"  {name:43} {microseconds:8.0f} µs")
    print(f"{f'calls per second of {CORES} cores':45} {best:8.0f}, at least {CALLS_PER_SECOND}")
    print(f"{'calls per second that were measured':45} {max(rates):8.0f}", flush=True)
    missed = [
        f"{name}: {taken_ms:.2f} ms > {limit:.2f} ms" for name, taken_ms, limit in rows if taken_ms > limit
    ]
    return missed + [f"{best:.0f} calls per second"] * (best < CALLS_PER_SECOND)


def _cpu_times() -> dict[str, float]:
    """Return the microseconds of CPU time that each kind of process has used."""
    found: dict[str, float] = {}
    pids = [os.getpid()]
    for pid in pids:
        pids += children(pid)
        command = Path(f"/proc/{pid}/cmdline").read_text()
        kind = next((kind for part, kind in _KINDS.items() if part in command), "other processes")
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        found[kind] = found.get(kind, 0.0) + 1e6 * (int(user) + int(system)) / _TICKS
    return found


def conformance(home: Path) -> list[str]:
    """Run the scenarios of each revision through the balancer, and return what fails."""
    reference = REFERENCES[0]
    port, environ = free_port(), {"PYTHONPATH": str(reference.imports)}
    server = {"url": f"http://127.0.0.1:{port}/mcp"}  # one for all replicas: scenarios change its lists
    faults = []
    with (
        listening(reference.http(port), port, environ),
        replicas.running(home / "reference", {"reference": server}) as team,
    ):
        for revision in reference.revisions:
            names = suite.scenarios("server", revision)
            url, out = team.url("/servers/reference/mcp"), home / "conformance" / revision
            outcomes = trio.run(server_side.judge, url, revision, names, True, out)
            passed = sum(outcome.passed for outcome in outcomes)
            print(f"scenarios of {revision} through the balancer: {passed}/{len(names)}", flush=True)
            faults += [
                f"{outcome.scenario} ({revision}): {complaint}"
                for outcome in outcomes
                for complaint in outcome.complaints
            ]
    return faults
