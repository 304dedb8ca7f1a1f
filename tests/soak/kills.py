"""Daemons that are killed with SIGKILL at random moments: no process of their servers is left after 2 s.

The servers start processes that do everything to outlive them (`tests/faults/hostile.py`), and the daemon is
starting, stopping, or restarting its servers when it is killed.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs

from tests.e2e.harness import BOUND, Client, Daemon, Refused, fake, running
from tests.faults.hostile import Hostile

FAMILIES = 2
"""Servers with hostile processes, for each daemon."""
LIMIT = 2.0
"""Seconds."""


@attrs.define
class KillsReport:
    """The results of a run."""

    daemons: Counter[str] = attrs.field(factory=Counter)
    """The number of kills by the activity of the daemon at that moment."""
    processes: int = 0
    """Hostile processes that ran when their daemon was killed."""
    slowest: float = 0.0
    """Seconds from a kill until the last process was gone, at most, on the wall clock."""
    wrong: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.daemons.total()} daemons killed {dict(self.daemons)}, {self.processes} hostile "
                f"processes, all gone after {self.slowest:.2f} s at most",
                *(f"WRONG: {each}" for each in self.wrong[:30]),
            ]
        )


def _each(method: str) -> Callable[[Daemon, list[str]], None]:
    def act(daemon: Daemon, names: list[str]) -> None:
        with Client(daemon.socket) as client:
            for name in names:
                client.send(method, server=name)
            client.request("mcpd/version")

    return act


DEEDS: dict[str, Callable[[Daemon, list[str]], None]] = {
    "starting": lambda daemon, names: None,
    "running": lambda daemon, names: daemon.wait_connected(*names),
    "reconnecting": _each("mcpd/reconnect"),
    "disconnecting": _each("mcpd/disconnect"),
    "disabling": _each("mcpd/disable"),
    "stopping": lambda daemon, names: daemon.process.terminate(),
}


def kills(
    home: Path, *, daemons: int = 40, seconds: float = float("inf"), seed: int | None = None
) -> KillsReport:
    """Kill this many daemons, or fewer if time runs out."""
    report, dice, end = KillsReport(), random.Random(seed), time.monotonic() + seconds
    for number in range(daemons):
        if time.monotonic() >= end:
            break
        place = home / str(number)
        place.mkdir()
        with _families() as families:
            _kill_one(place, families, list(DEEDS)[number % len(DEEDS)], dice, report)
    return report


def _kill_one(
    home: Path, families: list[Hostile], doing: str, dice: random.Random, report: KillsReport
) -> None:
    servers = {f"s-{number}": family.definition for number, family in enumerate(families)}
    with running(home, {**servers, "calm": fake()}) as daemon:
        if doing not in ("starting", "running"):
            daemon.wait_connected(*servers)
        with suppress(Refused, OSError, EOFError):
            DEEDS[doing](daemon, list(servers))
        threading.Event().wait(dice.uniform(0, 0.3))
        report.processes += sum(len(family.processes()) for family in families)
        daemon.process.kill()
        killed_at = time.monotonic()
        daemon.process.wait(BOUND)
        report.daemons[doing] += 1
        for family in families:
            try:
                family.assert_gone(LIMIT)
                report.slowest = max(report.slowest, time.monotonic() - killed_at)
            except AssertionError as error:
                report.wrong.append(f"daemon {report.daemons.total()}, {doing}: {error}")
        report.wrong += [line for line in daemon.log.splitlines() if "Traceback" in line]


@contextmanager
def _families() -> Iterator[list[Hostile]]:
    with ExitStack() as stack:
        families = [Hostile() for _ in range(FAMILIES)]
        for family in families:
            stack.callback(family.clean_up)
        yield families
