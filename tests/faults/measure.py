"""Measure the peak memory of the daemon, and the longest time without a response."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from tests.e2e.harness import BOUND, Client, Daemon
from tests.faults.bystander import resident
from tests.stopwatch import stopwatch


@attrs.define
class Peak:
    bytes: int = 0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Sample the resident memory every millisecond during the block, and keep the maximum."""
    peak, over = Peak(resident(pid)), threading.Event()

    def sample() -> None:
        while not over.wait(0.001):
            peak.bytes = max(peak.bytes, resident(pid))

    with _beside(sample, over):
        yield peak


@attrs.define
class Stalls:
    longest: float = 0.0
    """Seconds that the smallest of requests had to wait."""


@contextmanager
def stalls(daemon: Daemon) -> Iterator[Stalls]:
    """Measure how long the event loop is blocked, by the response time of a small request."""
    seen, over = Stalls(), threading.Event()

    def ask() -> None:
        with Client(daemon.socket) as client, stopwatch() as watch:
            while not over.wait(0.002):
                began = watch.now()
                client.request("mcpd/version")
                seen.longest = max(seen.longest, watch.now() - began)

    with _beside(ask, over):
        yield seen


@contextmanager
def _beside(work: object, over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, name="measure")  # type: ignore[arg-type]  # a plain callable
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BOUND)


@contextmanager
def more_descriptors() -> Iterator[None]:
    """Allow this process 4,096 descriptors during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
