"""Many clients of all kinds that call many servers at the same time, with or without faults meanwhile.

Every call is answered once, by the right server, for the right client, and is executed as often as the client
was received. Afterwards, descriptors, processes and memory are as before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs

from tests.e2e import web
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, running, wait_until
from tests.faults.bystander import Footprint, is_back, resident, settled
from tests.interop.peers import ROOT
from tests.soak import servers
from tests.soak.clients import Address, Target
from tests.soak.ledger import judge, read_ledgers, read_outcomes
from tests.soak.worker import Job, WorkerReport

FAULT_INTERVAL = 0.1
"""Seconds between two faults."""
GROWTH = 10 * 1024 * 1024
"""Bytes of memory that may be in use after the end that were not in use when all clients had started."""
SETTLING = 60.0
"""Seconds of a run before its memory says anything: buffers grow to their size, and modules are loaded."""
KIND_SHARES = ("legacy", "control", "modern", "legacy", "http", "control", "modern", "legacy", "control")


@attrs.define
class LoadReport:
    """The results of a run."""

    seconds: float
    worker: WorkerReport = attrs.field(factory=WorkerReport)
    wrong: list[str] = attrs.field(factory=list)
    executed: int = 0
    """Calls in the ledgers."""
    faults: Counter[str] = attrs.field(factory=Counter)
    footprints: tuple[Footprint, Footprint] | None = None
    """Before and after."""
    memory: list[tuple[float, int]] = attrs.field(factory=list)
    """Seconds since the start and bytes, once per second."""
    last_memory: int = 0
    """Bytes after the clients have left."""

    def percentile(self, share: float) -> float:
        """Return the milliseconds that this share of the measured calls took at most."""
        wanted = share * self.worker.latencies.total()
        for tenths in sorted(self.worker.latencies):
            wanted -= self.worker.latencies[tenths]
            if wanted <= 0:
                return tenths / 10
        return 0.0

    def smallest_share(self) -> float:
        """Return the answers of the client with the fewest, relative to the mean of those of its kind that
        call the same servers.
        """
        kinds: dict[str, list[int]] = {}
        for client, answers in self.worker.by_client.items():
            kinds.setdefault(client.rpartition("-")[0], []).append(answers)
        return min((min(of) * len(of) / max(1, sum(of)) for of in kinds.values()), default=0.0)

    def __str__(self) -> str:
        mebibytes = [round(size / 2**20, 1) for _, size in self.memory] or [0.0]
        quarters = [mebibytes[(len(mebibytes) - 1) * part // 4] for part in range(5)]
        answered = sum(self.worker.by_client.values())
        before, after = self.footprints or (None, None)
        lines = [
            f"{self.worker.calls:,} calls in {self.seconds:g} s, {answered:,} answered, "
            f"{self.executed:,} in the ledgers, errors {dict(self.worker.errors)}",
            f"p50 {self.percentile(0.5):g} ms, p99 {self.percentile(0.99):g} ms, "
            f"smallest share {self.smallest_share():.2f}",
            f"faults {dict(self.faults)}, {self.worker.left} clients left in the middle of calls",
            f"memory {quarters} MiB in each quarter, {max(mebibytes)} at most, "
            f"{self.last_memory / 2**20:.1f} without clients; {before}, then {after}",
            *(f"WRONG: {each}" for each in self.wrong[:30]),
        ]
        return "\n".join(lines)


def load(
    home: Path,
    seconds: float,
    *,
    clients: int = 200,
    own_servers: int = 20,
    with_faults: bool = False,
    processes: int = 2,
    seed: int = 1,
) -> LoadReport:
    """Run it, with clients in so many processes."""
    report = LoadReport(seconds)
    ledgers, outcomes = home / "ledgers", home / "outcomes"
    for directory in (ledgers, outcomes):
        directory.mkdir()
    with ExitStack() as stack:
        definitions = servers.own(own_servers, ledgers)
        targets = [Target(name) for name in definitions]
        definitions |= servers.serial(ledgers)
        slow = [Target("serial", is_slow=True)]
        daemon = stack.enter_context(running(home, definitions, *web.PORT))
        daemon.wait_connected(*definitions, bound=2 * BOUND)
        jobs = _jobs(daemon, targets, slow, clients, processes, outcomes, seconds, with_faults, seed)
        warm_up = [_warm_up(job) for job in jobs]
        early = LoadReport(0.5)
        with _working(warm_up, early):
            pass
        report.wrong += early.wrong
        before = settled(daemon.pid)
        with _sampling(daemon, report), _working(jobs, report):
            if with_faults:
                _hurt(daemon, list(definitions), seconds, report, seed)
        daemon.wait_connected(*definitions, bound=2 * BOUND)
        _look_afterwards(daemon, report, before)
        if (code := daemon.stop()) != 0:
            report.wrong.append(f"the daemon exited with {code}")
        unexpected = ("Traceback", "an error in mcpd itself")
        report.wrong += [line for line in daemon.log.splitlines() if any(each in line for each in unexpected)]
    executed = read_ledgers(ledgers)
    report.executed = executed.total()
    report.wrong += judge(executed, read_outcomes(outcomes))
    if not with_faults and report.worker.errors:
        report.wrong.append(f"errors without a fault: {dict(report.worker.errors)}")
    return report


def _jobs(
    daemon: Daemon,
    targets: Sequence[Target],
    slow: Sequence[Target],
    clients: int,
    processes: int,
    outcomes: Path,
    seconds: float,
    leaves: bool,
    seed: int,
) -> list[Job]:
    """Share the clients between the processes. A tenth of them call the slow servers, for which the others,
    which send a call when they have an answer, would spend their time waiting.
    """
    endpoint = web.http_endpoint(daemon)
    address = Address(daemon.socket, endpoint.port, endpoint.token)
    jobs = []
    for process in range(processes):
        made = []
        for number in range(process, clients, processes):
            calls_slow = number % 10 == 9
            name = f"{'slow' if calls_slow else 'fast'}-{number}"
            made.append((name, KIND_SHARES[number % len(KIND_SHARES)], slow if calls_slow else targets))
        file = str(outcomes / f"{process}")
        jobs.append(Job(address, made, seconds, leaves, seed + process, file))
    return jobs


def _warm_up(job: Job) -> Job:
    """Return a short job for a few clients of each kind, for what the daemon creates at the first use."""
    few = [(f"early-{name}", kind, targets) for name, kind, targets in job.clients[:20]]
    return attrs.evolve(job, clients=few, seconds=0.5, leaves=False, outcomes=f"{job.outcomes}-early")


@contextmanager
def _working(jobs: Sequence[Job], report: LoadReport) -> Iterator[None]:
    """Run the jobs. The block begins when all clients are connected; leaving it waits for their reports."""
    with ExitStack() as stack:
        workers = []
        for job in jobs:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(worker)
            stack.callback(worker.kill)
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(attrs.asdict(job)) + "\n")
            worker.stdin.flush()
            workers.append(worker)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", "the clients cannot connect"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        yield
        for worker, job in zip(workers, jobs, strict=True):
            out, _ = worker.communicate(timeout=job.seconds + 5 * BOUND)
            _add(report, WorkerReport(**json.loads(out)))


def _add(report: LoadReport, found: WorkerReport) -> None:
    total = report.worker
    total.calls += found.calls
    total.left += found.left
    total.errors.update(found.errors)
    total.by_client.update(found.by_client)
    total.latencies.update({int(tenths): count for tenths, count in found.latencies.items()})
    report.wrong += found.wrong
    if found.wrong_count > len(found.wrong):
        report.wrong.append(f"and {found.wrong_count - len(found.wrong)} more")


@contextmanager
def _sampling(daemon: Daemon, report: LoadReport) -> Iterator[None]:
    """Note the daemon's memory once per second."""
    over, began = threading.Event(), time.monotonic()

    def sample() -> None:
        while True:
            report.memory.append((time.monotonic() - began, resident(daemon.pid)))
            if over.wait(1.0):
                return

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BOUND)


def _hurt(daemon: Daemon, names: list[str], seconds: float, report: LoadReport, seed: int) -> None:
    """Kill or reconnect a server ten times per second."""
    dice = random.Random(seed)
    end = time.monotonic() + seconds
    pause = threading.Event()
    with Client(daemon.socket) as client:
        while time.monotonic() < end:
            name = dice.choice(names)
            if dice.random() < 0.5:
                pid = _pid(client, name)
                with suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                        report.faults["killed"] += 1
            else:
                with suppress(Refused):
                    client.request("mcpd/reconnect", server=name)
                    report.faults["reconnected"] += 1
            pause.wait(FAULT_INTERVAL)


def _pid(client: Client, name: str) -> int | None:
    statuses: list[Json] = client.request("mcpd/status")["servers"]
    return next((status["pid"] for status in statuses if status["name"] == name), None)


def _look_afterwards(daemon: Daemon, report: LoadReport, before: Footprint) -> None:
    """Compare the daemon with what it was before."""
    with suppress(AssertionError):
        wait_until(lambda: is_back(settled(daemon.pid), before), lambda: "")
    after = settled(daemon.pid)
    report.footprints = (before, after)
    if not is_back(after, before):
        report.wrong.append(f"{before} before, {after} after")
    limit = next((size for second, size in report.memory if second >= SETTLING / 2), 0) + GROWTH
    is_judged = report.seconds >= SETTLING
    with suppress(AssertionError):
        wait_until(lambda: not is_judged or resident(daemon.pid) <= limit, lambda: "", 10.0)
    report.last_memory = resident(daemon.pid)
    if is_judged and report.last_memory > limit:
        report.wrong.append(f"memory: {report.last_memory / 2**20:.1f} MiB are more than {limit / 2**20:.1f}")
