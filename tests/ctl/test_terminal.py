"""mcpctl as a process: on a terminal, in a pipe, and interrupted."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Silence, failure, server, status

MCPCTL = [sys.executable, "-m", "ctl"]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal of 80 columns."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def on_terminal(terminal: tuple[int, int], mcpctl: Mcpctl, *argv: str, **environ: str) -> tuple[int, str]:
    """Run mcpctl on the terminal. Returns exit code and output."""
    ours, theirs = terminal
    environment = {**mcpctl.environ, "PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "80", **environ}
    process = subprocess.Popen([*MCPCTL, *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed: the program has ended
            break
    return process.wait(90), seen.decode()


def test_table_on_a_terminal_is_coloured_and_fits(
    daemon: FakeDaemon, mcpctl: Mcpctl, terminal: tuple[int, int]
) -> None:
    """Only the last column is truncated."""
    daemon.answers["mcpd/status"] = status(server("git", "failed", last_error=failure("long " * 50)))
    code, seen = on_terminal(terminal, mcpctl, "status")
    row = seen.splitlines()[1]
    assert code == 0
    assert "\x1b[31mfailed\x1b[0m" in row
    assert row.endswith("…")
    assert len(row.replace("\x1b[31m", "").replace("\x1b[0m", "")) == 80


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_disabled(
    daemon: FakeDaemon, mcpctl: Mcpctl, terminal: tuple[int, int], environ: dict[str, str]
) -> None:
    """The state is also shown as text."""
    daemon.answers["mcpd/status"] = status(server())
    seen = on_terminal(terminal, mcpctl, "status", **environ)[1]
    assert "connected" in seen
    assert "\x1b" not in seen


def test_tool_output_cannot_control_the_terminal(
    daemon: FakeDaemon, mcpctl: Mcpctl, terminal: tuple[int, int]
) -> None:
    """Line breaks are kept, escape sequences removed; with --json they are escaped."""
    daemon.answers["mcpd/call"] = {"success": True, "output": "one\n\x1b[2Jtwo\x9b\u202e", "warnings": []}
    assert on_terminal(terminal, mcpctl, "call", "t@s") == (0, "one\r\ntwo\r\n")


def test_json_on_a_terminal_is_indented_and_escaped(
    daemon: FakeDaemon, mcpctl: Mcpctl, terminal: tuple[int, int]
) -> None:
    """The result is equivalent JSON with unchanged numbers."""
    daemon.answers["mcpd/call"] = {"a": ["x\x7f\x9b\u202e\u20ac"], "b": {}, "n": 1.5}
    code, seen = on_terminal(terminal, mcpctl, "call", "t@s", "--raw")
    assert code == 0
    assert seen.replace("\r\n", "\n") == (
        '{\n  "a": [\n    "x\\u007f\\u009b\\u202e\\u20ac"\n  ],\n  "b": {},\n  "n": 1.5\n}\n'
    )


def test_progress_line_is_cleared(daemon: FakeDaemon, mcpctl: Mcpctl, terminal: tuple[int, int]) -> None:
    """It is redrawn on stderr and cleared before the output."""

    def answer(caller: Caller, _: dict[str, Any]) -> object:
        for step in (1, 2):
            note = {"progressToken": caller.request, "progress": step, "total": 2, "message": "half\x1b[2J"}
            caller.notify("notifications/progress", note)
        return {"success": True, "output": "done", "warnings": []}

    daemon.answers["mcpd/call"] = answer
    code, seen = on_terminal(terminal, mcpctl, "call", "t@s")
    assert code == 0
    assert "\r\x1b[K[##########----------] 1/2 half\r\x1b[K[####################] 2/2 half" in seen
    assert seen.endswith("\r\x1b[Kdone\r\n")


def test_ctrl_c_cancels_the_call_upstream(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Exit code 130, without a traceback."""
    daemon.answers["mcpd/call"] = Silence()
    process = subprocess.Popen(
        [*MCPCTL, "call", "t@s"], env=mcpctl.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    daemon.wait_for("mcpd/call")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert daemon.wait_for("notifications/cancelled") == {"requestId": 1}


def test_closed_pipe_ends_silently(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """As with `mcpctl status | head -1`."""
    daemon.answers["mcpd/status"] = status(*(server(f"s{i}") for i in range(5000)))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*MCPCTL, "status"], env=mcpctl.environ, stdout=write, stderr=subprocess.PIPE, timeout=90, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("closed", "left"), [("<&-", "out"), (">&-", ""), ("2>&-", "out"), ("<&- >&- 2>&-", "")]
)
def test_closed_standard_streams_are_like_dev_null(
    daemon: FakeDaemon, mcpctl: Mcpctl, closed: str, left: str
) -> None:
    """As in cron jobs and hooks. No other file takes their place."""
    daemon.answers["mcpd/call"] = {"success": True, "output": "out", "warnings": []}
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *MCPCTL, "call", "t@s"],
        env=mcpctl.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, left, "")
