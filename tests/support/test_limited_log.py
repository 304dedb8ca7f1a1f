"""At most one line per second for each cause, and none is forgotten."""

from __future__ import annotations

import logging

import pytest

from mcpd.support import limited_log
from mcpd.support.limited_log import log_limited

LOG = logging.getLogger("mcpd.test_limited_log")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in the first element."""
    now = [100.0]
    monkeypatch.setattr(limited_log, "_last", {})
    monkeypatch.setattr("mcpd.support.limited_log.time.monotonic", lambda: now[0])
    return now


def test_lines_of_one_cause_are_limited_and_counted(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(1000):
        log_limited(LOG, logging.WARNING, "refused", "refused %d", n)
    log_limited(LOG, logging.WARNING, "another", "another cause")
    clock[0] += 1
    log_limited(LOG, logging.WARNING, "refused", "refused %d", 1000)
    clock[0] += 1
    log_limited(LOG, logging.WARNING, "refused", "refused %d", 1001)
    assert caplog.messages == [
        "refused 0",
        "another cause",
        "refused 1000 (and 999 more like it)",
        "refused 1001",
    ]


def test_level_that_is_off_does_not_count(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOG.name):
        log_limited(LOG, logging.DEBUG, "refused", "for developers")
        log_limited(LOG, logging.WARNING, "refused", "for users")
    assert caplog.messages == ["for users"]


def test_traceback_is_logged_once(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        log_limited(LOG, logging.ERROR, "internal", "an error", error=ZeroDivisionError("x"))
    assert caplog.text.count("ZeroDivisionError") == 1
