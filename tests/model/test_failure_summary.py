"""A failure in one phrase, for tables."""

from __future__ import annotations

import pytest

from mcpd.model.status import MAX_LENGTH, Failure, FailureKind, informative_line, lines_with_cause

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
PATHS = [f"/srv/node_modules/better-sqlite3/build/{name}/better_sqlite3.node" for name in "abcdefghijklmn"]
"""Where the package `bindings` looks for a file."""
BINDINGS = [
    "Fatal error: Error: Could not locate the bindings file. Tried:",
    *(f" \N{RIGHTWARDS ARROW} {path}" for path in PATHS),
    *(f"    at frame{number} (/srv/node_modules/bindings/bindings.js:{number}:9)" for number in range(9)),
    "    at async SQLiteConnector.connect (file:///srv/node_modules/dbhub/dist/index.js:1012:17) {",
    "  tries: [",
    *(f"    '{path}'," for path in PATHS),
    "  ]",
    "}",
]
POSTGRES = [
    'error: password authentication failed for user "me"',
    "    at Parser.parseErrorMessage (/srv/node_modules/pg-protocol/dist/parser.js:285:98) {",
    "  length: 104,",
    "  severity: 'FATAL',",
    "  code: '28P01',",
    "  detail: undefined,",
    "  where: undefined,",
    "  routine: 'auth_failed'",
    "}",
]
WITH_CAUSE = [
    "Fatal: Error: cannot start",
    "    at file:///srv/index.js:3:9 {",
    "  [cause]: Error: connect ECONNREFUSED 127.0.0.1:5432",
    "      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {",
    "    errno: -111,",
    "    code: 'ECONNREFUSED',",
    "    syscall: 'connect'",
    "  }",
    "}",
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
        (BINDINGS, "Fatal error: Error: Could not locate the bindings file. Tried:"),
        (
            [*BINDINGS, "", "Node.js v22.11.0"],
            "Fatal error: Error: Could not locate the bindings file. Tried:",
        ),
        (POSTGRES, 'error: password authentication failed for user "me"'),
        (WITH_CAUSE, "[cause]: Error: connect ECONNREFUSED 127.0.0.1:5432"),
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


def test_long_trace_does_not_hide_the_line_that_names_the_cause() -> None:
    """The lines that are shown begin with it."""
    assert lines_with_cause(["starting", *BINDINGS], 3) == tuple(BINDINGS[:3])
    assert lines_with_cause(PYTHON, 3) == tuple(PYTHON[-3:])
    assert lines_with_cause(PYTHON, 20) == tuple(PYTHON)
    assert lines_with_cause([f"line {number}" for number in range(9)], 2) == ("line 7", "line 8")
    assert lines_with_cause((), 2) == ()


def failure(kind: FailureKind, message: str, **more: object) -> Failure:
    return Failure(kind=kind, message=message, at="2026-11-21T06:30:00.000Z", **more)  # type: ignore[arg-type]


def test_summary_tells_how_it_ended_and_why() -> None:
    message = "exited with status 1 before initialize was answered; it wrote to stderr"
    said = ("MY_API_KEY is required",)
    exited = failure(FailureKind.EXITED, message, exit_code=1, stderr=said)
    assert exited.summary == "exited (1): MY_API_KEY is required"
    assert failure(FailureKind.EXITED, message, exit_code=1).summary == message.partition(";")[0]


def test_signal_is_explained_only_by_a_line_that_names_a_cause() -> None:
    """Whoever sent SIGKILL, what the server logged before is no explanation."""
    message = "was killed by SIGKILL before tool 'echo' was answered; it may have run"
    for stderr, summary in (
        (("ready on stdio", "handled 3 requests"), "was killed by SIGKILL before tool 'echo' was answered"),
        (
            ("ready on stdio", "fatal: cannot allocate memory"),
            "killed (SIGKILL): fatal: cannot allocate memory",
        ),
    ):
        killed = failure(FailureKind.KILLED, message, signal="SIGKILL", stderr=stderr)
        assert killed.summary == summary


def test_log_of_a_running_process_is_no_cause() -> None:
    """A server that does not answer may have logged that it is ready."""
    slow = failure(FailureKind.TIMEOUT, "no handshake within 30 s", stderr=("listening on stdio",))
    assert slow.summary == "no handshake within 30 s"
    slow = failure(FailureKind.TIMEOUT, "no handshake within 30 s", stderr=("cannot reach db",))
    assert slow.summary == "no handshake within 30 s: cannot reach db"


def test_summary_is_short_and_does_not_repeat_itself() -> None:
    long = failure(FailureKind.EXITED, "exited", exit_code=1, stderr=("x" * 5000,))
    assert len(long.summary) <= MAX_LENGTH + 1
    assert failure(FailureKind.SPAWN, "no such file", stderr=("no such file",)).summary == "no such file"
