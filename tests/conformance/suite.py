"""The official conformance suite as a program: its location, how a run ends, and the result of its checks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
MODERN = REVISIONS[-1]
EXTENSION = "extension"
"""Stands for the scenarios of extensions in tables. The suite runs them without a revision."""
_MODULES = HERE / "npm" / "node_modules"
_BAD = ("FAILURE", "WARNING")


class NotInstalled(Exception):
    """A file is missing that `make conformance` installs."""


@attrs.frozen
class Outcome:
    """The outcome of one scenario. It passed if no check failed and at least one succeeded."""

    scenario: str
    revision: str
    succeeded: int
    complaints: tuple[str, ...]
    proven: frozenset[str] = frozenset()
    """The ids of the checks that succeeded."""
    unused: frozenset[str] = frozenset()
    """The ids of those that found nothing to look at, because what they look at is optional."""

    @property
    def passed(self) -> bool:
        return bool(self.succeeded) and not self.complaints


def program(name: str, *arguments: str) -> list[str]:
    """Return the command line of a program that `make conformance` installs from npm. The suite needs node 22
    or later; on x86-64 Linux it is installed, too.
    """
    installed = _MODULES / ".bin" / name
    if not installed.exists():
        raise NotInstalled(f"{installed} is missing: run `make conformance`, which installs it")
    ours = _MODULES / ".bin" / "node"
    return [str(ours) if ours.exists() else "node", str(installed.resolve()), *arguments]


def suite(*arguments: str) -> list[str]:
    """Return the command line of the suite."""
    return program("conformance", *arguments)


def scenarios(side: str, revision: str) -> list[str]:
    """Return the names of the scenarios of a revision; `side` is client or server.

    Of the extensions, those about logins are listed, for the client only.
    """
    version = [] if revision == EXTENSION else ["--spec-version", revision]
    listed = subprocess.run(suite("list", f"--{side}", *version), check=True, capture_output=True, text=True)
    found = [line.split() for line in listed.stdout.splitlines() if line.startswith("  - ")]
    if revision != EXTENSION:
        return [words[1] for words in found]
    ours = side == "client"
    return [
        words[1] for words in found if ours and words[1].startswith("auth/") and words[2:] == ["[extension]"]
    ]


async def run(arguments: Sequence[str], bound: float) -> tuple[str, int]:
    """Run the suite, and kill all its processes if it hangs. Return the problem and the exit status."""
    process = await trio.lowlevel.open_process(
        suite(*arguments),
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    hung = False
    try:
        with trio.move_on_after(bound) as waiting:
            await process.wait()
        hung = waiting.cancelled_caught
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
    return "it hung" if hung else "", process.returncode or 0


def judged(scenario: str, revision: str, out: Path, trouble: str, status: int) -> Outcome:
    """Read the outcome of a run from `out`. Skipped checks, and checks before a failure of the client, prove
    nothing. `status` is the exit status of the harness, or 0 if it does not belong to one scenario.
    """
    written = sorted(out.rglob("checks.json"))
    checks = json.loads(written[-1].read_text()) if written else []
    complaints = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in _BAD
    ]
    right = [check["id"] for check in checks if check["status"] == "SUCCESS"]
    unused = frozenset(check["id"] for check in checks if check["status"] == "INFO") - frozenset(right)
    if trouble:
        complaints.append(trouble)
    elif status and not complaints:
        complaints.append("the client ended with an error")
    elif not right and not complaints:
        complaints.append("nothing was proven")
    return Outcome(scenario, revision, len(right), tuple(complaints), frozenset(right), unused)


def left_behind(out: Path) -> dict[str, Path]:
    """Return the scenarios in server mode that wrote checks below `out`, with their directories."""
    found = {}
    for written in out.glob("server-*/checks.json"):
        if named := re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", written.parent.name):
            found[named[1]] = written.parent
    return found
