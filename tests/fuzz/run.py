"""Fuzz a daemon through every way in, and watch it from outside.

    python -m tests.fuzz [--seconds N] [--seed S] [--target NAME [--first N] [--count N]]

Every input is determined by the seed, the name of the target, and a number; a failure names all three, and
`--target NAME --seed S --first N --count 1` sends that input again. What must hold at any time:

- The daemon is alive, and its log contains no traceback.
- Every answer is a message of the protocol, and every call and every well-formed request gets one.
- A client of another server gets only right answers. No input makes it wait for more than STALL seconds of
  processor time of the daemon, none for LONGEST, and the 99th percentile of its waits is at most P99.
- Nothing that the daemon shows or writes contains a secret of the configuration.
- In the end, all descriptors, and all memory but GROWTH, are free again.

Only processor time is measured, so that a busy machine changes little: see `affordable`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from tests.e2e.harness import BOUND, Client, Refused, children, describe, wait_until
from tests.faults.bystander import descriptors, resident, settled
from tests.fuzz.steps import Logins, Rules, Sse
from tests.fuzz.target import Target, Wrong
from tests.fuzz.targets import Bridge, Files, Http, Lines, Server, Web, WebSockets
from tests.fuzz.world import HOSTILE, MCPD, ROOT, World, excerpt, world
from tests.stopwatch import affordable

TARGETS: Sequence[tuple[type[Target], int]] = (
    (Lines, 30),
    (Http, 25),
    (Server, 15),
    (Web, 15),
    (WebSockets, 8),
    (Sse, 5),
    (Logins, 5),
    (Rules, 3),
    (Bridge, 1),
    (Files, 1),
)
"""Every way in, with its share of the batches."""
STALL = 0.1
"""Seconds of processor time of the daemon that a bystander may wait because of one input."""
LONGEST = 1.0
"""Seconds that are wrong even once. Many inputs at the same time may make it wait for more than STALL."""
P99 = 0.05
GROWTH = 25 * 1024 * 1024
"""Bytes of memory that may be in use after the end: caches that are bounded, and modules that were needed."""
HANGS = 600
"""Seconds after its time at which the fuzzer itself is taken to hang: slow inputs are sent again."""
TRIES = 5
"""How often a slow input is sent again. Other work counts, too, so the fastest time is the right one."""


@attrs.define
class Report:
    seed: int
    wrong: list[str] = attrs.field(factory=list)
    inputs: Counter[str] = attrs.field(factory=Counter)
    bystander: dict[str, float] = attrs.field(factory=dict)
    slowest: tuple[float, str] = (0.0, "")
    memory: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Mebibytes at first, at most, and at last."""
    descriptors: tuple[int, int] = (0, 0)

    def add(self, what: str, target: str, number: int, count: int = 1) -> None:
        again = f"--seed {self.seed} --target {target} --first {number} --count {count}"
        self.wrong.append(f"{what}\n    again: python -m tests.fuzz {again}")

    def __str__(self) -> str:
        first, most, last = self.memory
        return (
            f"seed {self.seed}: {self.inputs.total()} inputs {dict(self.inputs)}\n"
            f"bystander: {self.bystander}; slowest input {self.slowest[0] * 1000:.0f} ms {self.slowest[1]}\n"
            f"memory {first:.1f}, at most {most:.1f}, in the end {last:.1f} MiB; "
            f"descriptors {self.descriptors}\n" + "".join(f"WRONG: {each}\n" for each in self.wrong)
        )


class Fuzzer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.report = Report(world.seed)
        self.bystander: Bystander | None = None
        self._targets: dict[type[Target], Target] = {}
        self._next: Counter[str] = Counter()
        self._logged = 0

    def target(self, kind: type[Target]) -> Target:
        if kind not in self._targets:
            self._targets[kind] = kind(self.world)
        return self._targets[kind]

    def run(self, target: Target, first: int, count: int) -> None:
        """Send a batch, and look at the daemon afterwards."""
        world, began = self.world, self.world.cpu()
        left = range(first, first + count)
        while left and world.daemon.process.poll() is None:
            try:
                target.send_all(left)
            except Wrong as error:
                number = left[-1] if error.number is None else error.number
                at = (first, count) if error.number is None else (number, 1)
                self.report.add(str(error), target.name, *at)
                left = range(number + 1, left.stop)
            else:
                break
        self.report.inputs[target.name] += count
        try:
            world.fence()
        except (OSError, EOFError) as error:
            self.report.add(f"the daemon does not answer: {error!r}", target.name, first, count)
            with suppress(subprocess.TimeoutExpired):
                world.daemon.process.wait(BOUND)
        if not self._is_alive(target, first, count):
            return
        if self.bystander is not None:
            self._check_wait(self.bystander, target, first, count)
        if target.counts_cpu and world.cpu() - began > STALL:
            self._find_slow(target, first, count)
            if self.bystander is not None:
                self.bystander.worst()

    def calm_down(self) -> None:
        """End what cases have started: connections, servers, and work in the background."""
        for target in self._targets.values():
            target.close()
        ask = self.world.control.request
        for name in ("extra-1", "extra-2"):
            with suppress(Refused):
                ask("mcpd/remove", server=name, save=False)
        for name in HOSTILE:
            ask("mcpd/disconnect", server=name, wait=30.0)
        self.world.settle()

    def _is_alive(self, target: Target, first: int, count: int) -> bool:
        log = self.world.daemon.log[self._logged :]
        self._logged += len(log)
        for name, secret in self.world.secrets.items():
            if secret in log:
                where = f"the secret {name!r} is in the log: {excerpt(log, secret)}"
                self.report.add(where, target.name, first, count)
        if "Traceback" in log or "error in mcpd itself" in log:
            self.report.add(f"in the log: {log[-4000:]}", target.name, first, count)
        if self.world.daemon.process.poll() is not None:
            self.report.add(f"the daemon has exited: {log[-4000:]}", target.name, first, count)
            return False
        return True

    def _check_wait(self, bystander: Bystander, target: Target, first: int, count: int) -> None:
        """Send a batch again for which the bystander had to wait: what comes by chance is not its fault."""
        longest = least = bystander.worst()
        for _ in range(TRIES - 1):
            if least <= STALL:
                break
            with suppress(Exception):
                target.send_all(range(first, first + count))
            self.world.fence()
            least = min(least, bystander.worst())
        if not affordable(least, STALL) or longest > LONGEST:
            self.report.add(f"the bystander waited for {longest * 1000:.0f} ms", target.name, first, count)

    def _find_slow(self, target: Target, first: int, count: int) -> None:
        """Send each input of a slow batch again, and those that are slow alone several times."""
        for number in range(first, first + count):
            fastest = self._cost(target, number)
            for _ in range(TRIES - 1):
                if fastest <= STALL:
                    break
                fastest = min(fastest, self._cost(target, number))
            if fastest > self.report.slowest[0]:
                self.report.slowest = (fastest, f"{target.name} {number}")
            if not affordable(fastest, STALL):
                self.report.add(f"stops the daemon for {fastest * 1000:.0f} ms", target.name, number)

    def _cost(self, target: Target, number: int) -> float:
        """Return the longest wait for a small request, in processor time, while an input is handled."""
        before = self.world.cpu()
        with waits(self.world) as found, suppress(Exception):
            target.send(number)
            self.world.fence()
        return min(max(found), self.world.cpu() - before)


@contextmanager
def waits(world: World) -> Iterator[list[float]]:
    """Collect how much the event loop works until it answers the smallest request."""
    found, over = [0.0], threading.Event()

    def ask() -> None:
        with suppress(OSError, EOFError), Client(world.daemon.socket) as client:
            while not over.is_set():
                began = world.cpu()
                client.request("mcpd/version")
                found.append(world.cpu() - began)

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    try:
        yield found
    finally:
        over.set()
        asker.join(BOUND)


class Bystander:
    """Created by `bystander`: the process of tests/fuzz/bystander.py."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._last = b""

    def worst(self) -> float:
        """Return the longest wait in seconds of processor time since this was called last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if line.startswith(b"{") or not line:  # it has ended, because a call failed
            self._last = self._last or line
            return 0.0
        return float(line) / 1000

    def end(self) -> dict[str, Any]:
        """Return what it prints at its end."""
        out, _ = self._process.communicate(timeout=3 * BOUND)
        found: dict[str, Any] = json.loads(self._last or out)
        return found


@contextmanager
def bystander(world: World, report: Report) -> Iterator[Bystander]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.bystander", world.daemon.socket, str(world.daemon.pid)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    found = Bystander(process)
    try:
        yield found
    finally:
        seen = found.end()
        report.wrong += [f"the bystander: {each}" for each in seen.pop("wrong")]
        report.bystander = seen


def fuzz(
    home: Path,
    seed: int,
    seconds: float,
    only: str = "",
    first: int = 0,
    count: int = 0,
    *,
    program: Sequence[str] = MCPD,
    most_wrong: int = 10,
    patience: float = BOUND,
) -> Report:
    """Run for so many seconds, or send `count` inputs of one target from `first` on.

    Memory and descriptors may take `patience` seconds to become free.
    """
    with world(home, seed, program) as here:
        fuzzer = Fuzzer(here)
        report = fuzzer.report
        warm_up(fuzzer)
        fuzzer.calm_down()
        settled(here.daemon.pid)
        most_memory = resident(here.daemon.pid)
        held, base = Counter(open_files(here)), most_memory
        dice = random.Random(seed)
        numbers: Counter[type[Target]] = Counter()
        end = time.monotonic() + seconds
        kinds = {kind.name: kind for kind, _ in TARGETS}
        with bystander(here, report) as fuzzer.bystander:
            here.revive()
            while len(report.wrong) < most_wrong and here.daemon.process.poll() is None:
                kind = kinds[only] if only else dice.choices(*zip(*TARGETS, strict=True))[0]
                target = fuzzer.target(kind)
                at = first + numbers[kind]
                size = min(target.batch, first + count - at) if count else target.batch
                fuzzer.run(target, at, size)
                numbers[kind] += size
                with suppress(OSError):  # it has exited
                    most_memory = max(most_memory, resident(here.daemon.pid))
                if (count and numbers[kind] >= count) or (not count and time.monotonic() > end):
                    break
        if here.daemon.process.poll() is None:
            fuzzer.calm_down()
            finish(here, report, held, base, most_memory, patience)
    report.wrong += _limits(report)
    return report


def warm_up(fuzzer: Fuzzer) -> None:
    """Load the modules that the daemon imports when they are needed, and fill its caches a little."""
    for kind, _ in TARGETS:
        if kind is not Files:
            fuzzer.run(fuzzer.target(kind), 1_000_000, 5 if kind.batch > 1 else 1)
    fuzzer.world.settle()


def finish(here: World, report: Report, held: Counter[str], base: int, most: int, patience: float) -> None:
    """Compare with the beginning."""
    pid = here.daemon.pid
    with suppress(AssertionError):
        wait_until(lambda: len(open_files(here)) <= held.total(), lambda: "", patience)
    now = open_files(here)
    report.descriptors = (held.total(), len(now))
    if len(now) > held.total():
        report.wrong.append(f"descriptors: {Counter(now) - held}, children: {describe(children(pid))}")
    with suppress(AssertionError):
        wait_until(lambda: resident(pid) - base < GROWTH, lambda: "", patience)
    last = resident(pid)
    report.memory = (base / 2**20, most / 2**20, last / 2**20)
    if last - base >= GROWTH:
        report.wrong.append(f"memory has grown from {base / 2**20:.1f} to {last / 2**20:.1f} MiB")
    report.wrong += here.leaks()
    if not here.daemon.log.count("Traceback") and here.daemon.stop() != 0:
        report.wrong.append("the daemon did not exit with 0")


def open_files(here: World) -> list[str]:
    """Return the daemon's descriptors, but not those that it keeps once it needs them: the log of each server
    that has written to it, and the lock of the logins."""
    kept = (".log", "/login/lock")
    return [each for each in descriptors(here.daemon.pid) if not each.endswith(kept)]


def _limits(report: Report) -> list[str]:
    p99 = report.bystander.get("p99", 0.0) / 1000
    if not affordable(p99, P99):
        return [f"the bystander's 99th percentile is {p99 * 1000:.0f} ms of processor time"]
    return []


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    read.add_argument("--seconds", type=float, default=300)
    read.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    read.add_argument("--target", default="", choices=["", *(kind.name for kind, _ in TARGETS)])
    read.add_argument("--first", type=int, default=0)
    read.add_argument("--count", type=int, default=0)
    given = read.parse_args()
    if not given.count:  # a fuzzer that hangs says where, and fails
        faulthandler.dump_traceback_later(given.seconds + HANGS, exit=True)
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mcpd-fuzz-") as home:
        report = fuzz(Path(home), given.seed, given.seconds, given.target, given.first, given.count)
    print(report, end="")
    return 1 if report.wrong else 0
