"""One log record is one line without secrets, whatever text it contains."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings

import pytest

from mcpd.privacy.logs import (
    BURST,
    FROM_OUTSIDE,
    INTERVAL,
    HumanFormatter,
    JsonFormatter,
    LogRateLimit,
    log_library_warnings,
    log_to_stderr,
)
from mcpd.privacy.redact import Redactor

HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J",
    "12:00:00 info    forged\n12:00:01 error   also forged",
    "a\r\nb\u2028c\x85d\x0be",
    "\u202ereversed\u2066 \u200bwide",
    "\x00\x7f\x9b31m",
    '{"level":"error"}\n{"level":"error"}',
]


def record(text: str, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("mcpd.server", logging.WARNING, __file__, 1, "%s", (text,), info)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_forges_a_json_log_line(text: str) -> None:
    line = JsonFormatter(Redactor()).format(record(text))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_forges_a_plain_log_line(text: str) -> None:
    """Continuation lines are indented, and only printable characters are written."""
    first, *rest = HumanFormatter(Redactor()).format(record(text)).split("\n")
    assert re.match(r"\d\d:\d\d:\d\d(\.\d+)? warning ", first)
    assert all(line.startswith("        ") for line in rest)
    assert all(line.replace("\t", "").isprintable() for line in (first, *rest))


def test_secrets_are_masked_in_messages_and_tracebacks() -> None:
    """Exceptions can contain secrets."""
    redactor = Redactor()
    redactor.add(["hunter2-token"])
    try:
        raise ValueError("refused hunter2-token")
    except ValueError as error:
        failed = record("with hunter2-token", error)
    for formatter in (JsonFormatter(redactor), HumanFormatter(redactor)):
        text = formatter.format(failed)
        assert "hunter2" not in text
        assert "ValueError" in text


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("cannot be printed")


def test_unwritable_record_is_counted_and_reported_later(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A failed record must not end the logging thread."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    level = root.level
    try:
        with log_to_stderr("info", Redactor()):
            logging.getLogger("mcpd").info("of %s", _Unprintable())
            logging.getLogger("mcpd").info("two of %s", "one")
            logging.getLogger("mcpd").info("the next")
    finally:
        root.setLevel(level)
        logging.raiseExceptions = raises
    messages = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert messages[0].startswith("1 log lines were lost")
    assert messages[1:] == ["two of one", "the next"]


def test_lines_in_the_journal_start_with_their_priority(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`journalctl -p warning` shows warnings. Only the stream that systemd names is the journal."""
    stderr = os.fstat(sys.stderr.fileno())
    root, level, raises = logging.getLogger(), logging.getLogger().level, logging.raiseExceptions
    try:
        for stream in (f"{stderr.st_dev}:{stderr.st_ino}", "8:1"):
            monkeypatch.setenv("JOURNAL_STREAM", stream)
            with log_to_stderr("info", Redactor()):
                logging.getLogger("mcpd").info("all is well")
                logging.getLogger("mcpd").warning("it is not")
    finally:
        root.setLevel(level)
        logging.raiseExceptions = raises
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("{")[0] for line in lines] == ["<6>", "<4>", "", ""]


def test_logging_ends_with_its_block(capfd: pytest.CaptureFixture[str]) -> None:
    """All records are written, and the root logger is restored."""
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    raises = logging.raiseExceptions
    assert not sys.stderr.isatty()
    try:
        with log_to_stderr("info", Redactor()):
            for n in range(100):
                logging.getLogger("mcpd").info("line %d", n)
            logging.getLogger("mcpd").debug("not this one")
    finally:
        logging.getLogger().setLevel(level)
        logging.raiseExceptions = raises
    lines = capfd.readouterr().err.splitlines()

    assert [json.loads(line)["message"] for line in lines] == [f"line {n}" for n in range(100)]
    assert logging.getLogger().handlers == handlers


# ── limits ──────────────────────────────────────────────────────────────────────────────────────


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record_of(
    text: str = "an error in %s", error: Exception | None = None, line: int = 1, level: int = logging.ERROR
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("mcpd", level, "x.py", line, text, ("x",), info)


def raised() -> Exception:
    try:
        raise ValueError
    except ValueError as error:
        return error


def test_one_traceback_per_interval_and_the_rest_is_counted() -> None:
    clock = Clock()
    limit = LogRateLimit(clock)
    assert [limit.filter(record_of(error=raised())) for _ in range(5)] == [True] + 4 * [False]
    clock.now += INTERVAL
    later = record_of(error=raised())
    assert limit.filter(later)
    assert later.getMessage() == "an error in x (4 more like this were not logged)"
    clock.now += INTERVAL
    assert limit.filter(quiet := record_of(error=raised()))
    assert quiet.getMessage() == "an error in x"


def test_lines_without_a_traceback_have_a_higher_limit_and_debug_lines_none() -> None:
    limit = LogRateLimit(Clock())
    assert sum(limit.filter(record_of(level=logging.WARNING)) for _ in range(2 * BURST)) == BURST
    assert all(limit.filter(record_of(level=logging.DEBUG)) for _ in range(2 * BURST))


def test_lines_that_anybody_can_cause_are_logged_once_per_interval() -> None:
    clock = Clock()
    limit = LogRateLimit(clock)

    def refused() -> logging.LogRecord:
        made = record_of(level=logging.WARNING)
        made.__dict__.update(FROM_OUTSIDE)
        return made

    assert [limit.filter(refused()) for _ in range(3)] == [True, False, False]
    clock.now += INTERVAL
    assert limit.filter(refused())


# ── warnings of libraries ───────────────────────────────────────────────────────────────────────


def test_only_kind_and_place_of_a_warning_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    log_library_warnings()
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        warnings.showwarning(UserWarning("kanarie"), UserWarning, "/x/lib/file.py", 7)
    assert [record.getMessage() for record in caplog.records] == [
        "a library warned: UserWarning in lib/file.py:7"
    ]
