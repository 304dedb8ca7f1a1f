"""Run mcpd's client under every scenario of every revision of the conformance suite, and the client of the
Python SDK with an mcpd in the middle under every scenario that is not about logins.

A scenario that fails is a surprise unless it is in `expected-failures.txt`. One in that file that passes is a
surprise, too.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.conformance import suite
from tests.conformance.references import SDK_CLIENT
from tests.conformance.suite import EXTENSION, HERE, REVISIONS, NotInstalled, Outcome, judged

AT_ONCE = 2
"""One scenario measures half a second to within 200 ms: more at once than cores would spoil it."""
TIMEOUT = 120.0


def expected_failures() -> frozenset[str]:
    lines = (HERE / "expected-failures.txt").read_text().splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


async def run_one(client: str, scenario: str, revision: str, out: Path) -> Outcome:
    """Run one scenario in a harness of its own. `client` is the module that is the client."""
    client = f"{shlex.quote(sys.executable)} -m {client}"
    version = () if revision == EXTENSION else ("--spec-version", revision)
    command = (
        *("client", "--command", client, "--scenario", scenario, *version),
        *("--output-dir", str(out), "--timeout", str(int((TIMEOUT - 5) * 1000))),
    )
    trouble, status = await suite.run(command, TIMEOUT)
    return judged(scenario, revision, out, trouble, status)


async def run_all(client: str, wanted: Sequence[tuple[str, str]], out: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    turns = trio.CapacityLimiter(AT_ONCE)

    async def one(scenario: str, revision: str) -> None:
        async with turns:
            place = out / revision / scenario.replace("/", "-")
            outcomes.append(await run_one(client, scenario, revision, place))

    async with trio.open_nursery() as nursery:
        for scenario, revision in wanted:
            nursery.start_soon(one, scenario, revision)
    return outcomes


def table(outcomes: Sequence[Outcome], expected: frozenset[str]) -> str:
    """Tabulate scenarios by revision: passed checks, `expected` for a listed failure, or `FAILED`."""
    cells = {(outcome.scenario, outcome.revision): cell(outcome, expected) for outcome in outcomes}
    known = (*REVISIONS, EXTENSION)
    revisions = [revision for revision in known if any(o.revision == revision for o in outcomes)]
    names = sorted({outcome.scenario for outcome in outcomes}, key=lambda name: ("/" in name, name))
    width = max(map(len, names))
    lines = [f"{'':{width}}  " + "  ".join(f"{revision:>10}" for revision in revisions)]
    lines += [
        f"{name:{width}}  " + "  ".join(f"{cells.get((name, revision), ''):>10}" for revision in revisions)
        for name in names
    ]
    counts = [
        f"{sum(o.passed for o in outcomes if o.revision == r)}/{sum(o.revision == r for o in outcomes)}"
        for r in revisions
    ]
    return "\n".join([*lines, f"{'passed':{width}}  " + "  ".join(f"{count:>10}" for count in counts)])


def cell(outcome: Outcome, expected: frozenset[str]) -> str:
    if outcome.passed:
        return "PASSED?" if outcome.scenario in expected else f"ok {outcome.succeeded}"
    return "expected" if outcome.scenario in expected else "FAILED"


def surprises(outcomes: Sequence[Outcome], expected: frozenset[str]) -> list[str]:
    found = []
    for outcome in outcomes:
        where = f"{outcome.scenario} ({outcome.revision})"
        if outcome.passed and outcome.scenario in expected:
            found.append(f"{where} passes: take it out of expected-failures.txt")
        elif not outcome.passed and outcome.scenario not in expected:
            found += [f"{where}: {complaint}" for complaint in outcome.complaints]
    return found


def main(revisions: Sequence[str], only: Sequence[str] | None, out: Path, *, full: bool = False) -> list[str]:
    """Run the chosen scenarios, print the table, and return one line for each surprise."""
    wanted = [
        (scenario, revision)
        for revision in revisions
        for scenario in suite.scenarios("client", revision)
        if only is None or scenario in only
    ]
    if not wanted:
        return []
    expected = expected_failures()
    outcomes = trio.run(run_all, "tests.conformance.client", wanted, out)
    found = surprises(outcomes, expected)
    if only is None and tuple(revisions) == (*REVISIONS, EXTENSION):
        found += [
            f"{name} is expected to fail, but there is no such scenario"
            for name in sorted(expected - {scenario for scenario, _ in wanted})
        ]
    print(table(outcomes, expected), end="\n\n")
    return found


def main_through_mcpd(
    revisions: Sequence[str], only: Sequence[str] | None, out: Path, *, full: bool = False
) -> list[str]:
    """Like `main`, for a client that others have written and that is connected to mcpd.

    mcpd logs in by itself, and with its own client: the scenarios about logins are left out.
    """
    if not SDK_CLIENT.exists():
        raise NotInstalled(f"{SDK_CLIENT} is missing: `make interop` makes it")
    wanted = [
        (scenario, revision)
        for revision in revisions
        if revision != EXTENSION
        for scenario in suite.scenarios("client", revision)
        if not scenario.startswith("auth/") and (only is None or scenario in only)
    ]
    if not wanted:
        return []
    outcomes = trio.run(run_all, "tests.conformance.client_through_mcpd", wanted, out / "through-mcpd")
    print("client of the Python SDK through mcpd", table(outcomes, frozenset()), sep="\n", end="\n\n")
    return [f"through mcpd: {line}" for line in surprises(outcomes, frozenset())]
