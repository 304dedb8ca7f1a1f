"""Run mcpd's MCP endpoints under the conformance suite: what passes directly must also pass through mcpd.

Every check that succeeds directly must succeed through mcpd in each of the ways of `tests.conformance.ways`,
and none may warn; there is no list of exceptions. The suite skips optional protocol features that are not
used, such as a stream instead of JSON. The report mentions those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from tests.conformance import suite
from tests.conformance.references import OTHERS, REFERENCES
from tests.conformance.suite import NotInstalled, Outcome, judged, left_behind
from tests.conformance.ways import BASELINES, DIRECT, EVERY_WAY, WITHOUT_MCPD, Url, reached, usual_ways

SCENARIO = 90.0
"""Seconds that one scenario may take; the longest waits a few on purpose, and the machine may be busy."""


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
    """Return the problems: checks that fail through mcpd, and checks that succeed without mcpd but are
    missing through it. Checks that also fail without mcpd are problems only with servers of our own.
    """
    where = f"{row.reference} {row.scenario} ({row.revision})"
    found = []
    for way, outcome in row.outcomes.items():
        excused = without_mcpd(row, way).complaints if way in BASELINES or row.reference in OTHERS else ()
        names = {_check(complaint) for complaint in excused}
        found += [f"{where}, {way}: {each}" for each in outcome.complaints if _check(each) not in names]
        if lost := missing(row, way) - outcome.unused - {_check(each) for each in outcome.complaints}:
            found.append(f"{where}, {way}: no longer proven: {', '.join(sorted(lost))}")
    return found


def _check(complaint: str) -> str:
    return complaint.partition(":")[0]


def without_mcpd(row: Row, way: str) -> Outcome:
    """Return the outcome that is reached in the same way without mcpd."""
    return row.outcomes[way if way in WITHOUT_MCPD else BASELINES.get(way, DIRECT)]


def missing(row: Row, way: str) -> frozenset[str]:
    return without_mcpd(row, way).proven - row.outcomes[way].proven


def notes(row: Row) -> list[str]:
    """Return the optional protocol features that the reference server uses and mcpd does not, and what fails
    without mcpd.
    """
    where = f"{row.reference} {row.scenario} ({row.revision})"
    failed = [
        f"{where}, {way}: fails without mcpd: {complaint}"
        for way, outcome in row.outcomes.items()
        for complaint in outcome.complaints
        if way in WITHOUT_MCPD and (way in BASELINES or row.reference in OTHERS)
    ]
    return failed + [
        f"{where}, {way}: optional, and not used: {', '.join(sorted(unused))}"
        for way, outcome in row.outcomes.items()
        if (unused := missing(row, way) & outcome.unused)
    ]


def cell(outcome: Outcome) -> str:
    return f"ok {outcome.succeeded}" if outcome.passed else "FAIL"


def table(rows: Sequence[Row]) -> str:
    """Tabulate the number of successful checks by scenario and way, for each revision."""
    return "\n\n".join(
        _table_of_revision(revision, [row for row in rows if row.revision == revision])
        for revision in dict.fromkeys(row.revision for row in rows)
    )


def _table_of_revision(revision: str, rows: Sequence[Row]) -> str:
    width = max(len(f"{rows[0].reference} {revision}"), *(len(row.scenario) for row in rows))

    def line(first: str, others: Iterable[str]) -> str:
        return f"{first:{width}}  " + "  ".join(
            f"{other:>{max(5, len(way))}}" for way, other in zip(ways, others, strict=True)
        )

    ways = list(rows[0].outcomes)
    passed = [sum(row.outcomes[way].passed for row in rows) for way in ways]
    return "\n".join(
        [
            line(f"{rows[0].reference} {revision}", ways),
            *(line(row.scenario, (cell(row.outcomes[way]) for way in ways)) for row in rows),
            line("passed", (f"{count}/{len(rows)}" for count in passed)),
        ]
    )


async def judge_all(
    name: str, urls: Mapping[str, Url], wanted: Mapping[str, Sequence[str]], all_of_them: bool, out: Path
) -> list[Row]:
    """Test one way after the other: scenarios measure time, and parallel ways would share the processor."""
    rows = []
    for revision, names in wanted.items():
        ways = {
            way: await judge(url(revision), revision, names, all_of_them, out / revision / way)
            for way, url in urls.items()
        }
        for index, scenario in enumerate(names):
            rows.append(Row(name, scenario, revision, {way: found[index] for way, found in ways.items()}))
    return rows


def main(revisions: Sequence[str], only: Sequence[str] | None, out: Path, *, full: bool = False) -> list[str]:
    """Run the chosen scenarios, print a table for each reference server, and return one line for each
    problem. `full`: in every way, instead of the usual ones.
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
        with reached(reference, EVERY_WAY if full else usual_ways(reference), place / "mcpd") as urls:
            rows = trio.run(judge_all, reference.name, urls, wanted, only is None, place)
        print("\n".join([table(rows), *(line for row in rows for line in notes(row))]), end="\n\n")
        found += [line for row in rows for line in surprises(row)]
    return found
