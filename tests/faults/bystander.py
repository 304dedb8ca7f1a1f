"""Checks for side effects of a fault: calls to another server, and the daemon's descriptors and children."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.e2e.harness import BOUND, Client, Daemon, children, wait_until
from tests.processes import state
from tests.stopwatch import stopwatch, within

PACE = 0.01
"""Seconds between two calls of a bystander."""


@attrs.define
class Calls:
    """The calls of a bystander: the seconds of each, and the errors."""

    seconds: list[float] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)

    def percentile(self, share: float) -> float:
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]


@contextmanager
def undisturbed(daemon: Daemon, server: str, slowest: float = 0.25) -> Iterator[Calls]:
    """Call `server` continuously during the block: no errors, and a p99 below `slowest` seconds."""
    calls, begun, over = Calls(), threading.Event(), threading.Event()

    def call() -> None:
        with Client(daemon.socket) as client:
            for number in itertools.count():
                if over.wait(PACE) and number >= 2:  # at least one call in addition to the first
                    return
                began = watch.now()
                try:
                    result = client.call(server, "echo", {"n": number})
                except Exception as error:
                    calls.errors.append(repr(error))
                    begun.set()
                    return
                calls.seconds.append(watch.now() - began)
                begun.set()
                if result["output"] != f'{{"n": {number}}}':
                    calls.errors.append(f"wrong answer: {result}")

    with stopwatch() as watch:
        caller = threading.Thread(target=call, name="bystander", daemon=True)
        caller.start()
        try:
            begun.wait(BOUND)
            del calls.seconds[:1]  # the first call has compiled the schema of the tool
            yield calls
        finally:
            over.set()
            caller.join(2 * BOUND)
    assert not caller.is_alive(), "the bystander hangs"
    assert calls.errors == []
    assert calls.seconds, "the bystander has not called once"
    assert within(calls.percentile(0.99), slowest), (
        f"p99 {calls.percentile(0.99):.3f} s of {len(calls.seconds)}"
    )


@attrs.frozen
class Footprint:
    """The resources of the daemon, as the kernel counts them."""

    descriptors: int
    children: int
    zombies: int


def footprint(pid: int) -> Footprint:
    """Only root and the daemon itself may count its descriptors, as it is undumpable; -1 for other users."""
    try:
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:
        descriptors = -1
    states = Counter(map(state, children(pid)))
    return Footprint(descriptors, sum(states.values()) - states["Z"] - states[""], states["Z"])


def is_back(now: Footprint, before: Footprint) -> bool:
    """Return whether nothing leaked. Fewer descriptors than before are fine: one may have been about to
    close. So is one child less: the process that checks arguments ends when it has been idle.
    """
    children = before.children - now.children
    return now.descriptors <= before.descriptors and children in (0, 1) and not now.zombies


def settled(pid: int) -> Footprint:
    """Return the footprint once it is stable: the daemon may not have noticed a disconnect yet."""
    seen = [footprint(pid)]

    def is_still() -> bool:
        time.sleep(0.02)
        seen.append(footprint(pid))
        return len(seen) > 3 and len(set(seen[-3:])) == 1

    wait_until(is_still, lambda: f"it does not come to rest: {seen[-3:]}")
    return seen[-1]


@contextmanager
def nothing_left(daemon: Daemon) -> Iterator[None]:
    """Assert that the block leaks no descriptors, children or threads, and leaves no zombies.

    The process that checks arguments runs from the first call on, so a server named `calm` is called before.
    """
    with daemon.client() as client:
        if any(status["name"] == "calm" for status in client.request("mcpd/status")["servers"]):
            client.call("calm", "echo")
    before = settled(daemon.pid)
    threads, held = thread_count(daemon.pid), descriptors(daemon.pid)
    yield
    wait_until(
        lambda: is_back(footprint(daemon.pid), before),
        lambda: f"before {before} {held}, now {footprint(daemon.pid)} {descriptors(daemon.pid)}",
    )
    threads_end(daemon, threads)


def threads_end(daemon: Daemon, before: int) -> None:
    """Wait until there are only a few more threads than `before`. trio keeps idle worker threads for 10 s,
    and a slow machine has more of them.
    """
    wait_until(
        lambda: thread_count(daemon.pid) <= before + 4,
        lambda: f"{thread_count(daemon.pid)} threads, and {before} before",
    )


def descriptors(pid: int) -> list[str]:
    """Return readable descriptions of the open descriptors."""
    try:
        return sorted(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def thread_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def resident(pid: int) -> int:
    """Return the resident memory of the process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
