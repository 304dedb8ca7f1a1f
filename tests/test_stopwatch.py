"""The stopwatch that promises are measured with counts what was waited for, and nothing that was taken."""

from __future__ import annotations

import time

import pytest

from tests import stopwatch as module
from tests.stopwatch import Stopwatch, stopwatch, within


def test_what_is_slept_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no promise could ever be broken. The best of several: this machine may be held up."""
    monkeypatch.setattr(module, "lost_to_pressure", lambda: 0.0)
    counted = []
    for _ in range(20):
        with stopwatch() as watch:
            time.sleep(0.1)
            counted.append(watch.seconds)
        if counted[-1] > 0.08:
            break
    assert max(counted) > 0.08, counted


def test_what_the_machine_took_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a hold-up, in which nobody ticks, nor what the kernel says was waited for a processor."""
    watch = Stopwatch()
    began = time.monotonic()
    time.sleep(0.2)
    assert watch.seconds < time.monotonic() - began - 0.15

    with stopwatch() as watch:
        began, lost = time.monotonic(), module.lost_to_pressure()
        monkeypatch.setattr(module, "lost_to_pressure", lambda: lost + 0.2)
        time.sleep(0.2)
        assert watch.seconds <= time.monotonic() - began - 0.15


def test_promise_is_exact_on_an_idle_machine_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A promise that is kept needs no look at the machine."""
    slow = {"is": 1.0}
    monkeypatch.setattr(module, "slowness", lambda: slow["is"])
    assert within(0.99, 1.0)
    assert not within(1.01, 1.0)
    slow["is"] = 2.0
    assert within(3.9, 1.0)
    assert not within(4.1, 1.0)
    monkeypatch.delattr(module, "slowness")
    assert within(1.0, 1.0)
