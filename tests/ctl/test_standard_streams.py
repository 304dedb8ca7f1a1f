"""Everything is written, or the command fails; also with PYTHONUNBUFFERED, as many containers set it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, Fault
from tests.ctl.test_terminal import MCPCTL

TEXT = "x" * 500_000
CALL = [*MCPCTL, "call", "t@s"]


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environ(request: pytest.FixtureRequest, daemon: FakeDaemon, mcpctl: Mcpctl) -> dict[str, str]:
    daemon.answers["mcpd/call"] = {"success": True, "output": TEXT, "warnings": []}
    return {**mcpctl.environ, "PYTHONUNBUFFERED": request.param}


def test_partial_write_is_an_error(environ: dict[str, str], tmp_path: Path) -> None:
    """The file may grow to a few KiB, as on a disk that is nearly full."""
    environ["PYTHONDONTWRITEBYTECODE"] = "1"  # or the limit would truncate the byte code of our modules
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *CALL]
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(limited, env=environ, stdout=out, stderr=subprocess.PIPE, timeout=90, text=True)
    assert 0 < (tmp_path / "out").stat().st_size < len(TEXT)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: I/O error: File too large",
        "note: it may have run: check its effect before you repeat it",
    ]


def test_non_blocking_pipe_receives_everything(environ: dict[str, str]) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    process = subprocess.Popen(CALL, env=environ, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    with open(ours, "rb") as reader:
        assert reader.read() == TEXT.encode() + b"\n"
    _, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, b"")


def test_lost_result_of_a_call_is_an_error_that_says_so(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The tool has run, although nobody can see its result."""
    daemon.answers["mcpd/call"] = {"success": True, "output": "done", "warnings": []}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*CALL, "--json"], env=mcpctl.environ, stdout=full, stderr=subprocess.PIPE, timeout=90
        )
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["exit"], error["may_have_run"]) == (1, 1, True)


def test_exit_code_is_kept_if_the_error_cannot_be_printed(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/call"] = Fault("no such tool", code="unknown_tool", exit=5, suggestions=[])
    with open("/dev/full", "wb") as full:
        done = subprocess.run(CALL, env=mcpctl.environ, stdout=subprocess.PIPE, stderr=full, timeout=90)
    assert (done.returncode, done.stdout) == (5, b"")
