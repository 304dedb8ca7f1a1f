"""A daemon that is kept busy: does it stay as it was for an hour?

Twenty servers, every feature in each round, and between rounds a remote server that has forgotten its
sessions, killed children and clients that hang up in the middle of a call. Wrong is any unexpected result, a
descriptor or a child that is left over, and memory that grows by more than 1 MB an hour. What is bounded, but
would take hours to fill, is full from the start: the history of each server, and the sessions that HTTP
clients have left behind. The first rounds are the warming up, and of a run shorter than half an hour the
growth says nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs

from mcpd.api.mcp.kept_sessions import MAX_SESSIONS
from mcpd.config.secret_store import change_secrets
from mcpd.files.paths import state_dir
from mcpd.state.history import MAX_ENTRIES
from tests.e2e import web
from tests.e2e.harness import Daemon, Json, fake, private_environment, running, wait_until
from tests.faults import bystander
from tests.faults.bystander import Footprint, descriptors, resident, settled
from tests.faults.tour import LONG, SERVERS, SETTINGS, Tour
from tests.interop import peers

WARM = 120
"""Rounds after which memory is looked at: by then the history of servers that change in each round has its
full length too, and the collector has come several times."""
ROUND = 5.0
"""Seconds that a round takes at least."""
GROWTH = 1e6
"""Bytes an hour."""


@attrs.define
class FeaturesReport:
    """The observations of a run."""

    rounds: int = 0
    wrong: list[str] = attrs.field(factory=list)
    before: Footprint | None = None
    after: Footprint | None = None
    memory: list[tuple[float, int]] = attrs.field(factory=list)
    """Seconds and bytes, after each round since it was warm."""
    held: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    """What the descriptors are, at first and at last."""
    exit_code: int = -1

    @property
    def is_back(self) -> bool:
        """Return whether no resource is held at the end that was not held after the first round."""
        return (
            self.before is not None and self.after is not None and bystander.is_back(self.after, self.before)
        )

    def growth(self) -> float:
        """Return the memory growth in bytes per hour, from the minimum of the first quarter to that of the
        last.
        """
        part = max(1, len(self.memory) // 4)
        first = min(self.memory[:part], key=lambda seen: seen[1], default=(0.0, 0))
        last = min(self.memory[-part:], key=lambda seen: seen[1], default=(0.0, 0))
        return (last[1] - first[1]) / max(last[0] - first[0], 1.0) * 3600

    def __str__(self) -> str:
        lines = [f"{times} x {wrong}" for wrong, times in Counter(self.wrong).items()]
        if not self.is_back:
            lines.append(
                f"more descriptors: {self.held[1] - self.held[0]}; fewer: {self.held[0] - self.held[1]}"
            )
        lines.append(
            f"{self.rounds} rounds, {len(self.wrong)} errors; {self.before} at first, {self.after} at last; "
            f"{self.growth() / 1e6:+.2f} MB an hour; exit {self.exit_code}"
        )
        return "\n".join(lines)


def use_features(
    home: Path, seconds: float, *, more: int = 0, pace: float = 0.0, seed: int = 11
) -> FeaturesReport:
    """Run for `seconds`, at least two rounds, with `more` servers in addition to those of the tour."""
    report, chance = FeaturesReport(), random.Random(seed)
    change_secrets(private_environment(home), {"STORED": "a stored secret"})
    others: Json = {f"server-{n}": fake(*LONG, "--wrapper" if n % 3 else "--ignore-eof") for n in range(more)}
    port = peers.free_port()
    far: Json = {"far": {"url": f"http://127.0.0.1:{port}/mcp"}}
    if seconds:
        _remember(home, [*SERVERS, *others, *far])
    with running(
        home,
        {**SERVERS, **others, **far},
        "--http",
        "127.0.0.1:0",
        settings=SETTINGS,
    ) as daemon:
        daemon.wait_connected("old", "new", *others)
        if seconds:
            _leave_sessions(daemon)
        began = time.monotonic()
        while report.rounds < 2 or time.monotonic() < began + seconds:
            round_began = time.monotonic()
            with peers.bundled(port):  # a new one each time, which knows no earlier sessions
                tour = Tour(daemon, far["far"]["url"], others=tuple(others))
                tour.round()
                report.wrong += tour.wrong
            _hurt(daemon, chance, list(others))
            report.rounds += 1
            report.after = settled(daemon.pid)
            held = Counter(descriptors(daemon.pid))
            if report.before is None:
                report.before, report.held = report.after, (held, held)
            report.held = (report.held[0], held)
            if report.rounds > WARM:
                report.memory.append((time.monotonic() - began, resident(daemon.pid)))
            time.sleep(max(0.0, round_began + pace - time.monotonic()))
        with suppress(AssertionError):  # dead stray processes are reaped every two seconds only
            wait_until(lambda: _is_back(daemon, report), lambda: "it is not")
        report.exit_code = daemon.stop()
    return report


def _is_back(daemon: Daemon, report: FeaturesReport) -> bool:
    report.after = settled(daemon.pid)
    return report.is_back


def _remember(home: Path, servers: list[str]) -> None:
    """Write the history of an earlier daemon, as long as it can be for servers with few events per hour."""
    history = Path(state_dir(private_environment(home))) / "history.jsonl"
    history.parent.mkdir(parents=True, exist_ok=True)
    words = "was killed by SIGKILL"
    entry = {"at": "2026-01-01T00:00:00.000Z", "what": "state", "state": "failed", "message": words}
    older, newer = servers[::2], servers[1::2]  # the daemon reads the last 512 KiB of each file
    for file, names in (history.with_name(f"{history.name}.1"), older), (history, newer):
        lines = [json.dumps({**entry, "server": name}) for name in names] * MAX_ENTRIES
        file.write_text("".join(f"{line}\n" for line in lines))


def _leave_sessions(daemon: Daemon) -> None:
    """Fill the table of sessions that HTTP clients abandon without a DELETE."""
    with web.http_endpoint(daemon).client() as http:
        for _ in range(MAX_SESSIONS):
            web.Session(http, "/servers/old/mcp")


def _hurt(daemon: Daemon, chance: random.Random, servers: list[str]) -> None:
    """Kill a child, and disconnect a client before its response."""
    if servers:
        with suppress(ProcessLookupError, TypeError):  # the process has just ended without the test
            os.kill(daemon.status(chance.choice(servers))["pid"], signal.SIGKILL)
    client = daemon.client()
    client.send("mcpd/call", server="old", tool="drop", arguments={})
    client.close()
    for server in servers:
        daemon.wait_connected(server)
