"""Clients of both eras use the replicas while one after the other is killed, and every error is judged.

A client may fail only because of a replica that was killed during its work: its session was there, or a
request of it. The log of the balancer says where they were.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from tests.interop import everything, sharing
from tests.interop.clients.drivers import ClientFailed, http
from tests.interop.clients.job import Report
from tests.team.replicas import TOKEN, Passed, Replica, Team

SERVER = "everything"
LIBRARIES = ("python-sdk-1", "python-sdk-2", "typescript-sdk-1", "typescript-sdk-2")
MODERN = ("python-sdk-2", "typescript-sdk-2")
_CLOSED = re.compile(
    r"Server disconnected|peer closed connection|ReadError|fetch failed|other side closed|ECONNRESET"
    r"|SSE stream ended without a response|ClosedResourceError"
)
"""What the SDKs say of a connection that was closed within an answer, which is an event stream."""
_TOLD = re.compile(r"may have run|Session terminated|session has ended|not found|\b40[04]\b|\b502\b")
"""What they say of a call that has lost its replica, and of a session that has ended."""
_NOTIFICATIONS = ("its progress", "its log lines")
RIGHT, LOST, QUIET, WAITS = "right", "lost with its replica", "a notification lost", "waited until its limit"


@attrs.frozen
class Job:
    """One use of a client: connect, list the tools, make all calls at once, leave."""

    name: str
    library: str
    began: float
    ended: float
    wrong: tuple[str, ...]
    """Checks that were not right."""
    error: str = ""


@attrs.frozen
class Kill:
    at: float
    replica: str
    again_after: float
    """Seconds until the replica served again."""


@attrs.frozen
class Outcome:
    jobs: Sequence[Job]
    kills: Sequence[Kill]
    passed: Sequence[Passed]
    seconds: float

    def verdicts(self) -> Iterator[tuple[Job, str]]:
        """Yield each job with what became of it. What is none of the constants is against the rules."""
        requests: dict[str, list[Passed]] = {}
        for request in self.passed:
            requests.setdefault(request.job, []).append(request)
        for job in self.jobs:
            yield job, self._verdict(job, requests.get(job.name, []))

    def _verdict(self, job: Job, requests: Sequence[Passed]) -> str:
        if not job.wrong and not job.error:
            return RIGHT
        killed = {kill.replica for kill in self.kills if job.began <= kill.at <= job.ended}
        lost = {request.replica for request in requests if request.is_broken} | {
            request.replica
            for request in requests
            if job.library in MODERN or request.session != "-"  # suspended calls, and the session
        }
        if not killed & lost:
            return f"wrong, and was not on a killed replica: {job.wrong or job.error}"
        if job.wrong:
            missing = all(what in _NOTIFICATIONS for what in job.wrong)
            return QUIET if missing else f"wrong answers: {job.wrong}"
        if "TimeoutError" in job.error or "Request timed out" in job.error:
            return WAITS
        is_lost = _CLOSED.search(job.error) or _TOLD.search(job.error)
        return LOST if is_lost else f"an unexpected error: {job.error}"

    def faults(self) -> list[str]:
        """Return what is against the rules."""
        allowed = (RIGHT, LOST, QUIET)
        found = [f"{job.name}: {verdict}" for job, verdict in self.verdicts() if verdict not in allowed]
        idle = set(LIBRARIES) - {job.library for job, verdict in self.verdicts() if verdict == RIGHT}
        return found + [f"no job of {library} was right" for library in sorted(idle)]

    def table(self) -> str:
        counts = Counter(
            (job.library, verdict if verdict in (RIGHT, LOST, QUIET, WAITS) else "against the rules")
            for job, verdict in self.verdicts()
        )
        columns = (RIGHT, LOST, QUIET, WAITS, "against the rules")
        lines = [f"{'jobs of':20}" + "".join(f"{column:>24}" for column in columns)]
        lines += [
            f"{library:20}" + "".join(f"{counts[library, column]:24}" for column in columns)
            for library in LIBRARIES
        ]
        said = Counter(
            f"{job.library}: {(_TOLD.search(job.error) or _CLOSED.search(job.error) or ['?'])[0]}"
            for job in self.jobs
            if job.error
        )
        by_replica = Counter(request.replica for request in self.passed)
        broken = sum(request.is_broken for request in self.passed)
        again = ", ".join(f"{kill.replica} after {kill.again_after:.1f} s" for kill in self.kills)
        lines += [f"{count:4} times {what}" for what, count in sorted(said.items())]
        return "\n".join(
            [
                *lines,
                f"{self.seconds:.0f} s, {len(self.kills)} kills; back: {again or '-'}",
                f"{len(self.passed)} requests through the balancer ({dict(sorted(by_replica.items()))}), "
                f"{broken} broken",
            ]
        )


def run(team: Team, home: Path, seconds: float, every: float, clients: int = 8) -> Outcome:
    """Let the clients work for so long, and kill a replica every so many seconds."""
    began = time.monotonic()
    stopping = threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        work = [pool.submit(_repeat, team, home, number, stopping) for number in range(clients)]
        try:
            kills = list(_killing(team.replicas, began, seconds, every))
        finally:
            stopping.set()
        jobs = [job for each in work for job in each.result()]
    return Outcome(jobs, kills, team.passed(), time.monotonic() - began)


def _killing(replicas: Sequence[Replica], began: float, seconds: float, every: float) -> Iterator[Kill]:
    end = began + seconds
    for number in itertools.count(1):
        time.sleep(max(0.0, min(began + number * every, end) - time.monotonic()))
        if time.monotonic() >= end:
            return
        replica = replicas[number % len(replicas)]
        at = replica.kill()
        replica.start()
        yield Kill(at, replica.name, time.monotonic() - at)


def _repeat(team: Team, home: Path, number: int, stopping: threading.Event) -> list[Job]:
    library = LIBRARIES[number % len(LIBRARIES)]
    jobs: list[Job] = []
    while True:
        jobs.append(_work(team, home, library, f"client{number}job{len(jobs)}"))
        if stopping.is_set():
            return jobs


def _work(team: Team, home: Path, library: str, name: str) -> Job:
    modern = library in MODERN
    server = http(team.url(f"/servers/{SERVER}/mcp?job={name}"), TOKEN)
    place = home / name
    place.mkdir()
    calls = everything.calls(name, modern=modern)
    began = time.monotonic()
    try:
        report: Report = sharing.library(library).use(server, calls, place, name)
    except ClientFailed as error:
        return Job(name, library, began, time.monotonic(), (), str(error))
    ended = time.monotonic()
    may_miss = library.startswith("typescript")
    found = everything.checks(name, report, modern=modern, certain_logs=False, may_miss=may_miss)
    wrong = tuple(what for what, is_right in found.items() if not is_right)
    return Job(name, library, began, ended, wrong)
