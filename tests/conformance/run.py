"""Run the official conformance suite against our client: every scenario of every revision, in a table.

    make conformance                                # all of them
    make conformance ARGS='--revision 2025-11-25 --scenario sse-retry --keep out'

Exits with 1 when a scenario fails that is not in `expected-failures.txt`, and when one passes that is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
AT_ONCE = 2
"""One scenario measures half a second to within 200 ms: more at once than cores would spoil it."""
TIMEOUT = 60.0
_MODULES = HERE / "npm" / "node_modules"
_BAD = ("FAILURE", "WARNING")


class NotInstalled(Exception):
    """The suite is not where `make conformance` puts it."""


@attrs.frozen
class Outcome:
    """What one run of one scenario showed. Passed: nothing was wrong, and something was right."""

    scenario: str
    revision: str
    succeeded: int
    complaints: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return bool(self.succeeded) and not self.complaints


def suite(*arguments: str) -> list[str]:
    """The suite's command line. It needs a node from 22 on; one is installed with it for x86-64 Linux."""
    index = _MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not index.exists():
        raise NotInstalled(f"{index} is missing: run `make conformance`, which installs it")
    ours = _MODULES / ".bin" / "node"
    return [str(ours) if ours.exists() else "node", str(index), *arguments]


def scenarios(revision: str) -> list[str]:
    """The names of the client's scenarios of a revision."""
    listed = subprocess.run(
        suite("list", "--client", "--spec-version", revision), check=True, capture_output=True, text=True
    )
    return [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("  - ")]


def expected_failures() -> frozenset[str]:
    lines = (HERE / "expected-failures.txt").read_text().splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


async def run_one(scenario: str, revision: str, out: Path) -> Outcome:
    """One scenario in a harness of its own, which is ended with all it has started when it hangs."""
    client = f"{shlex.quote(sys.executable)} -m tests.conformance.client"
    command = suite(
        *("client", "--command", client, "--scenario", scenario, "--spec-version", revision),
        *("--output-dir", str(out), "--timeout", str(int((TIMEOUT - 5) * 1000))),
    )
    process = await trio.lowlevel.open_process(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    hung = False
    try:
        with trio.move_on_after(TIMEOUT) as waiting:
            await process.wait()
        hung = waiting.cancelled_caught
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
    return judged(scenario, revision, out, "it hung" if hung else "", process.returncode or 0)


def judged(scenario: str, revision: str, out: Path, trouble: str, status: int) -> Outcome:
    """A scenario proves nothing by what it skipped, nor by checks that came before its client failed."""
    written = sorted(out.rglob("checks.json"))
    checks = json.loads(written[-1].read_text()) if written else []
    complaints = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in _BAD
    ]
    succeeded = sum(check["status"] == "SUCCESS" for check in checks)
    if trouble:
        complaints.append(trouble)
    elif status and not complaints:
        complaints.append("the client ended with an error")
    elif not succeeded and not complaints:
        complaints.append("nothing was proven")
    return Outcome(scenario, revision, succeeded, tuple(complaints))


async def run_all(wanted: Sequence[tuple[str, str]], out: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    turns = trio.CapacityLimiter(AT_ONCE)

    async def one(scenario: str, revision: str) -> None:
        async with turns:
            outcomes.append(await run_one(scenario, revision, out / revision / scenario.replace("/", "-")))

    async with trio.open_nursery() as nursery:
        for scenario, revision in wanted:
            nursery.start_soon(one, scenario, revision)
    return outcomes


def table(outcomes: Sequence[Outcome], expected: frozenset[str]) -> str:
    """Scenarios by revisions: checks that succeeded, `expected` for a failure that is listed, or `FAILED`."""
    cells = {(outcome.scenario, outcome.revision): cell(outcome, expected) for outcome in outcomes}
    revisions = [revision for revision in REVISIONS if any(o.revision == revision for o in outcomes)]
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--revision", action="append", choices=REVISIONS, help="only this one (repeatable)")
    parser.add_argument("--scenario", action="append", help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, help="keep what the suite wrote in this directory")
    chosen = parser.parse_args()
    try:
        wanted = [
            (scenario, revision)
            for revision in chosen.revision or REVISIONS
            for scenario in scenarios(revision)
            if chosen.scenario is None or scenario in chosen.scenario
        ]
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    expected = expected_failures()
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = trio.run(run_all, wanted, chosen.keep or Path(temporary))
    found = surprises(outcomes, expected)
    if chosen.scenario is None and chosen.revision is None:
        found += [
            f"{name} is expected to fail, but there is no such scenario"
            for name in sorted(expected - {scenario for scenario, _ in wanted})
        ]
    if outcomes:
        print(table(outcomes, expected))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
