"""Run mcpd's MCP endpoint under the conformance suite: what passes directly must also pass through mcpd.

The suite tests the reference servers of `tests/servers/reference` and the everything-server of the Python SDK
three times: directly over HTTP, through an mcpd that connects to them over stdio, and through one that
connects over HTTP. Every check that succeeds directly must succeed through mcpd; there is no list of
exceptions. The suite skips optional protocol features that are not used, such as a stream instead of JSON.
The report mentions those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from tests.conformance import suite
from tests.conformance.suite import REVISIONS, ROOT, NotInstalled, Outcome, judged, left_behind
from tests.e2e import harness
from tests.interop import peers

DIRECT, STDIO, HTTP = "direct", "via stdio", "via http"
WAYS = (DIRECT, STDIO, HTTP)
"""How the suite gets to the reference server: directly, or through an mcpd that reaches it like this."""

SCENARIO = 90.0
"""Seconds that one scenario may take; the longest waits a few on purpose, and the machine may be busy."""


@attrs.frozen
class Reference:
    """A reference server, and the revisions that it supports."""

    name: str
    python: Path
    revisions: tuple[str, ...]
    imports: Path = ROOT
    """The directory that it is imported from."""

    def stdio(self) -> list[str]:
        return [*self._module, "--stdio"]

    def http(self, port: int) -> list[str]:
        return [*self._module, "--http", f"127.0.0.1:{port}"]

    @property
    def _module(self) -> tuple[str, ...]:
        return (str(self.python), "-m", f"tests.servers.reference.{self.name}")


class Everything(Reference):
    """The everything-server of the Python SDK. It speaks both eras, and asks in the way of either."""

    def stdio(self) -> list[str]:
        return [str(self.python), "-c", "from mcp_everything_server.server import mcp; mcp.run()"]

    def http(self, port: int) -> list[str]:
        return [str(self.python), "-m", "mcp_everything_server", "--port", str(port)]


OTHERS = frozenset({"everything"})
"""The servers that we have not written. They may fail the suite themselves, but not through mcpd."""
REFERENCES = (
    Reference("sdk2", Path(sys.executable), REVISIONS),
    Reference("sdk1", ROOT / ".venv-mcp1" / "bin" / "python", REVISIONS[:-1]),
    Everything("everything", Path(sys.executable), REVISIONS, ROOT / ".everything"),
)


@contextmanager
def listening(reference: Reference) -> Iterator[str]:
    """Run a reference server over HTTP and return its URL."""
    port = peers.free_port()
    with peers.listening(reference.http(port), port, {"PYTHONPATH": str(reference.imports)}):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def mcpd(home: Path, servers: Mapping[str, Any]) -> Iterator[tuple[harness.Daemon, str]]:
    """Run an mcpd without authentication on loopback, because the suite sends no token; return its origin."""
    home.mkdir(parents=True)
    with harness.running(home, servers, "--http", "127.0.0.1:0", "--http-auth", "none") as daemon:
        with daemon.client() as client:
            told = urlsplit(client.request("mcpd/status")["daemon"]["http"]["url"])
        yield daemon, f"{told.scheme}://{told.netloc}"


@contextmanager
def behind_mcpd(home: Path, definition: Mapping[str, Any]) -> Iterator[str]:
    """Run an mcpd with this server only, and return the URL of the server's endpoint."""
    with mcpd(home, {"reference": dict(definition)}) as (daemon, origin):
        daemon.wait_connected("reference")
        yield f"{origin}/servers/reference/mcp"


@contextmanager
def reached(reference: Reference, way: str, home: Path) -> Iterator[str]:
    """Run a new reference server, reached in one of `WAYS`, and return the URL for the suite."""
    with ExitStack() as stack:
        if way == STDIO:
            command, *args = reference.stdio()
            environ = {"PYTHONPATH": str(reference.imports)}
            definition = {"command": command, "args": args, "env": environ}
            yield stack.enter_context(behind_mcpd(home, definition))
            return
        url = stack.enter_context(listening(reference))
        yield url if way == DIRECT else stack.enter_context(behind_mcpd(home, {"url": url}))


async def judge(url: str, revision: str, names: Sequence[str], all_of_them: bool, out: Path) -> list[Outcome]:
    """Run all scenarios of a revision in one run of the suite. Scenarios that the suite did not reach because
    it failed, and selected scenarios, get runs of their own.
    """
    common = ("server", "--url", url, "--spec-version", revision, "--timeout", str(int(SCENARIO * 1000)))
    trouble = ""
    if all_of_them:
        whole = (*common, "--suite", "all", "--output-dir", str(out))
        trouble, _ = await suite.run(whole, SCENARIO * len(names) / 4)
    outcomes = []
    for name in names:
        if name not in left_behind(out):
            alone = (*common, "--scenario", name, "--output-dir", str(out))
            trouble, _ = await suite.run(alone, SCENARIO + 5)
            where = left_behind(out).get(name, out / name)
            outcomes.append(judged(name, revision, where, trouble, 0))
        else:
            outcomes.append(judged(name, revision, left_behind(out)[name], "", 0))
    return outcomes


@attrs.frozen
class Row:
    """The outcomes of one scenario of one revision, one for each way."""

    reference: str
    scenario: str
    revision: str
    outcomes: Mapping[str, Outcome]


def surprises(row: Row) -> list[str]:
    """Return the problems: failures, and checks that succeed directly but are missing through mcpd."""
    where = f"{row.reference} {row.scenario} ({row.revision})"
    found = []
    for way, outcome in row.outcomes.items():
        if way != DIRECT or row.reference not in OTHERS:
            found += [f"{where}, {way}: {complaint}" for complaint in outcome.complaints]
        if outcome.passed and (lost := missing(row, outcome) - outcome.unused):
            found.append(f"{where}, {way}: no longer proven: {', '.join(sorted(lost))}")
    return found


def missing(row: Row, outcome: Outcome) -> frozenset[str]:
    return row.outcomes[DIRECT].proven - outcome.proven


def notes(row: Row) -> list[str]:
    """Return the optional protocol features that the reference server uses and mcpd does not, and what it
    fails without mcpd."""
    where = f"{row.reference} {row.scenario} ({row.revision})"
    failed = [
        f"{where}, {DIRECT}: fails by itself: {complaint}"
        for complaint in row.outcomes[DIRECT].complaints
        if row.reference in OTHERS
    ]
    return failed + [
        f"{where}, {way}: optional, and not used: {', '.join(sorted(unused))}"
        for way, outcome in row.outcomes.items()
        if (unused := missing(row, outcome) & outcome.unused)
    ]


def cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    return f"ok {outcome.succeeded}" if outcome.passed else "FAILED"


def table(rows: Sequence[Row]) -> str:
    """Tabulate the number of successful checks by scenario, revision and way."""
    cells = {(row.scenario, row.revision): row.outcomes for row in rows}
    columns = [
        (revision, way) for revision in sorted({row.revision for row in rows}) for way in rows[0].outcomes
    ]
    names = list(dict.fromkeys(row.scenario for row in rows))
    width = max(map(len, (*names, "passed")))

    def line(first: str, others: Sequence[str]) -> str:
        return f"{first:{width}}  " + "  ".join(f"{other:>10}" for other in others)

    def passed(revision: str, way: str) -> str:
        judged_here = [o[way] for (_, r), o in cells.items() if r == revision]
        return f"{sum(outcome.passed for outcome in judged_here)}/{len(judged_here)}"

    return "\n".join(
        [
            line(rows[0].reference, [revision for revision, _ in columns]),
            line("", [way for _, way in columns]),
            *(line(name, [cell(cells.get((name, r), {}).get(way)) for r, way in columns]) for name in names),
            line("passed", [passed(r, way) for r, way in columns]),
        ]
    )


async def judge_all(
    name: str, urls: Mapping[str, str], wanted: Mapping[str, Sequence[str]], all_of_them: bool, out: Path
) -> list[Row]:
    """Test one way after the other: scenarios measure time, and parallel ways would share the processor."""
    rows = []
    for revision, names in wanted.items():
        ways = {
            way: await judge(url, revision, names, all_of_them, out / revision / way)
            for way, url in urls.items()
        }
        for index, scenario in enumerate(names):
            rows.append(Row(name, scenario, revision, {way: found[index] for way, found in ways.items()}))
    return rows


def main(revisions: Sequence[str], only: Sequence[str] | None, out: Path) -> list[str]:
    """Run the chosen scenarios, print a table for each reference server, and return one line for each
    problem.

    One mcpd for each way serves all revisions, as it does for a user with clients of different ages.
    """
    for reference in REFERENCES:
        for needed in (reference.python, reference.imports):
            if not needed.exists():
                raise NotInstalled(f"{needed} is missing: `make interop` makes it")
    found: list[str] = []
    for reference in REFERENCES:
        listed = {r: suite.scenarios("server", r) for r in reference.revisions if r in revisions}
        chosen = {r: [name for name in names if only is None or name in only] for r, names in listed.items()}
        wanted = {revision: names for revision, names in chosen.items() if names}
        if not wanted:
            continue
        place = out / "server" / reference.name
        with ExitStack() as stack:
            urls = {way: stack.enter_context(reached(reference, way, place / "mcpd" / way)) for way in WAYS}
            rows = trio.run(judge_all, reference.name, urls, wanted, only is None, place)
        print("\n".join([table(rows), *(line for row in rows for line in notes(row))]), end="\n\n")
        found += [line for row in rows for line in surprises(row)]
    return found
