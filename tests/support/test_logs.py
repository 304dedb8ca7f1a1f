"""One log record is one line without secrets, whatever text it contains."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from mcpd.support.logs import HumanFormatter, JsonFormatter, log_to_stderr
from mcpd.support.redact import Redactor

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
