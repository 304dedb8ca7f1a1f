"""Random damage to each file that mcpd and mcpctl read again: no start fails, and no exception is unexpected.

Each kind of file is damaged 10,000 times and read by the code that reads it, without a daemon. Then daemons
start with damage to all of their files at once.
"""

from __future__ import annotations

import subprocess
import sys
import time

import attrs

from tests.fuzz.targets import Files
from tests.interop.peers import ROOT

IN_MEMORY = (
    "tests/supervision/test_random_corruption.py",
    "tests/ctl/editors/test_random_corruption.py",
    "tests/auth/test_token_store.py::test_ten_thousand_corruptions_never_raise_and_never_lose_a_byte",
)
"""Tests that damage one kind of file each, 10,000 times with the Hypothesis profile `thorough`."""


@attrs.frozen
class FilesReport:
    """The outputs of the tests and of the fuzzer."""

    tests: str
    starts: str
    is_right: bool

    def __str__(self) -> str:
        return f"{self.tests}\n{self.starts}"


def files(*, starts: int = 300, seconds: float = float("inf"), seed: int = 1) -> FilesReport:
    """Damage each kind of file, and start this many daemons, or fewer if time runs out."""
    end = time.monotonic() + seconds
    pytest = ("-q", "-n", "auto", "-p", "no:cacheprovider", "--hypothesis-profile=thorough", *IN_MEMORY)
    tested = _run("pytest", *pytest)
    many = ["--count", str(starts)] if seconds == float("inf") else ["--seconds", str(end - time.monotonic())]
    started = _run("tests.fuzz", "--target", Files.name, "--seed", str(seed), *many)
    return FilesReport(
        tested.stdout.strip(), started.stdout.strip(), not tested.returncode and not started.returncode
    )


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
