"""A process with many clients, started by `load.py`.

    python -m tests.soak.worker <JOB >REPORT

The job and the report are JSON. The worker prints `ready` when all clients are connected, and begins when it
reads a line.
"""

from __future__ import annotations

import json
import random
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.e2e.harness import BOUND, Json
from tests.soak.clients import KINDS, Address, ClosedByDaemon, SoakClient, Target

LEAVE_INTERVAL = 0.25
"""Seconds between two clients that leave in the middle of their calls, if clients do that."""


@attrs.frozen
class Job:
    """What the clients of one process do."""

    address: Address
    clients: Sequence[tuple[str, str, Sequence[Target]]]
    """Name, kind, and the servers that it calls."""
    seconds: float
    leaves: bool
    """Whether clients disconnect in the middle of calls, and connect again."""
    seed: int
    outcomes: str
    """The file for the outcomes."""


@attrs.define
class WorkerReport:
    """The outcome of a run."""

    calls: int = 0
    errors: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)
    wrong_count: int = 0
    left: int = 0
    """Clients that left in the middle of their calls."""
    by_client: dict[str, int] = attrs.field(factory=dict)
    """Answers for each client."""
    latencies: Counter[int] = attrs.field(factory=Counter)
    """Tenths of milliseconds → answers."""


def work(job: Job, ready: Callable[[], object] = lambda: None) -> WorkerReport:
    """Run all clients. `ready` is called when they are connected."""
    dice = random.Random(job.seed)
    clients = [
        KINDS[kind](name, job.address, list(targets), dice.randrange(1 << 30))
        for name, kind, targets in job.clients
    ]
    report = WorkerReport()
    ready()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.fill()
        end = time.monotonic() + job.seconds
        leaves_at = time.monotonic() + LEAVE_INTERVAL
        while (now := time.monotonic()) < end or any(client.pending for client in clients):
            for key, _ in selector.select(0.02):
                _serve(key.data, selector, is_over=now >= end)
            if now >= end + BOUND:
                break
            if now >= end:
                continue
            for client in clients:
                if client.resumes_at and client.resumes_at <= now:
                    client.resumes_at = 0.0
                    client.fill()
            if job.leaves and now >= leaves_at:
                leaves_at = now + LEAVE_INTERVAL
                _replace(client := dice.choice(clients), selector)
                report.left += 1
                client.fill()
        _look_for_more(selector)
    with Path(job.outcomes).open("w") as file:
        for client in clients:
            _finish(client, report)
            file.writelines(f"{token} {outcome}\n" for token, outcome in client.outcomes)
    report.wrong_count = len(report.wrong)
    del report.wrong[20:]
    return report


def _replace(client: SoakClient, selector: selectors.BaseSelector) -> None:
    """Disconnect in the middle of calls, and connect again."""
    selector.unregister(client.socket)
    client.leave()
    client.come_back()
    selector.register(client.socket, selectors.EVENT_READ, client)


def _serve(client: SoakClient, selector: selectors.BaseSelector, *, is_over: bool) -> None:
    try:
        client.read()
    except (ClosedByDaemon, OSError) as error:
        client.wrong.append(f"{client.name}: {error!r}")
        _replace(client, selector)
    if not is_over and not client.resumes_at:
        client.fill()


def _look_for_more(selector: selectors.BaseSelector) -> None:
    """Read what comes within a moment after all answers: a second answer to a call."""
    until = time.monotonic() + 0.3
    while (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            _serve(key.data, selector, is_over=True)


def _finish(client: SoakClient, report: WorkerReport) -> None:
    client.wrong += [f"{client.name}: {call.token} was never answered" for call in client.pending.values()]
    client.leave()
    report.calls += len(client.outcomes)
    report.errors.update(client.errors)
    report.wrong += client.wrong
    report.by_client[f"{client.kind} {client.name}"] = client.answered
    report.latencies.update(int(seconds * 10_000) for seconds in client.seconds)


def decode_job(data: Json) -> Job:
    clients = [
        (name, kind, [Target(**target) for target in targets]) for name, kind, targets in data.pop("clients")
    ]
    return Job(address=Address(**data.pop("address")), clients=clients, **data)


def main() -> None:
    job = decode_job(json.loads(sys.stdin.readline()))

    def ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(attrs.asdict(work(job, ready))), flush=True)


if __name__ == "__main__":
    main()
