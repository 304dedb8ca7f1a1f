"""Runs mcpctl on a terminal, with a user who answers."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

BOUND = 60.0
"""Seconds that mcpctl may be silent."""


def on_terminal(home: Path, answers: dict[str, str], *argv: str) -> tuple[int, str]:
    """Run mcpctl on a terminal and answer its questions. Unused answers are a failure."""
    ours, theirs = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "COLUMNS": "200"}
    environ |= {"MCPD_SOCKET": str(home / "no.sock"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ctl", *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    received, seen, asked = b"", "", dict(answers)
    try:
        while select.select([ours], [], [], BOUND)[0]:
            received += os.read(ours, 65536)
            seen = received.decode("utf-8", "ignore")  # the last character may not be complete yet
            for question in [question for question in asked if question in seen]:
                os.write(ours, asked.pop(question).encode() + b"\n")
        process.kill()
        raise AssertionError(f"it waits, having said: {seen}")
    except OSError:
        pass  # the program has ended
    finally:
        os.close(ours)
    assert asked == {}, f"never asked in: {seen}"
    return process.wait(BOUND), seen
