"""A failure in one phrase, for tables."""

from __future__ import annotations

import attrs
import pytest

from mcpd.model.failure_summary import MAX_LENGTH, informative_line
from mcpd.model.status import Failure, FailureKind

PYTHON = [
    "Traceback (most recent call last):",
    '  File "/srv/server.py", line 3, in <module>',
    "    os.environ['MY_API_KEY']",
    "    ~~~~~~~~~~^^^^^^^^^^^^^^",
    "KeyError: 'MY_API_KEY'",
]
NODE = [
    "node:events:497",
    "      throw er; // Unhandled 'error' event",
    "      ^",
    "",
    "Error: listen EADDRINUSE: address already in use 127.0.0.1:8080",
    "    at Server.setupListenHandle [as _listen2] (node:net:1908:16)",
    "    at process.processTicksAndRejections (node:internal/process/task_queues:90:21) {",
    "}",
    "",
    "Node.js v22.11.0",
]
NPM = [
    "npm error code E404",
    "npm error 404 Not Found - GET https://registry.npmjs.org/nonesuch - Not found",
    "npm error 404",
    "npm error A complete log of this run can be found in: /home/me/.npm/_logs/x.log",
]


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (["starting", "MY_API_KEY is required", ""], "MY_API_KEY is required"),
        (PYTHON, "KeyError: 'MY_API_KEY'"),
        (NODE, "Error: listen EADDRINUSE: address already in use 127.0.0.1:8080"),
        (NPM, "404 Not Found - GET https://registry.npmjs.org/nonesuch - Not found"),
        (["2026-11-21T06:30:00.123Z no database"], "no database"),
        (["one", "two"], "two"),
        (["INFO: ready", "{", "}"], ""),
        ([], ""),
    ],
)
def test_line_that_names_the_cause_is_chosen(stderr: list[str], line: str) -> None:
    """Not the end of a trace, a version or a path to a log."""
    assert informative_line(stderr) == line


def failure(kind: FailureKind, message: str, **more: object) -> Failure:
    return Failure(kind=kind, message=message, at="2026-11-21T06:30:00.000Z", **more)  # type: ignore[arg-type]


def test_summary_tells_how_it_ended_and_why() -> None:
    message = "exited with status 1 before initialize was answered; it wrote to stderr"
    said = ("MY_API_KEY is required",)
    exited = failure(FailureKind.EXITED, message, exit_code=1, stderr=said)
    assert exited.summary == "exited (1): MY_API_KEY is required"
    assert failure(FailureKind.EXITED, message, exit_code=1).summary == message.partition(";")[0]
    killed = failure(FailureKind.KILLED, "killed by SIGKILL", signal="SIGKILL", stderr=("out of space",))
    assert killed.summary == "killed (SIGKILL): out of space"


def test_log_of_a_running_process_is_no_cause() -> None:
    """A server that does not answer may have logged that it is ready."""
    slow = failure(FailureKind.TIMEOUT, "no handshake within 30 s", stderr=("listening on stdio",))
    assert slow.summary == "no handshake within 30 s"
    slow = failure(FailureKind.TIMEOUT, "no handshake within 30 s", stderr=("cannot reach db",))
    assert slow.summary == "no handshake within 30 s: cannot reach db"


def test_summary_of_a_copy_is_computed_again() -> None:
    """The message is masked in a copy."""
    masked = attrs.evolve(failure(FailureKind.SPAWN, "no hunter2"), message="no ***")
    assert masked.summary == "no ***"


def test_summary_is_short_and_does_not_repeat_itself() -> None:
    long = failure(FailureKind.EXITED, "exited", exit_code=1, stderr=("x" * 5000,))
    assert len(long.summary) <= MAX_LENGTH + 1
    assert failure(FailureKind.SPAWN, "no such file", stderr=("no such file",)).summary == "no such file"
