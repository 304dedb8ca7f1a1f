"""Exceptions that were handled keep nothing alive."""

from __future__ import annotations

import gc
import weakref

from mcpd.support.tracebacks import forget_tracebacks


class Thing:
    """Something that a function uses while it raises."""


def fail(things: list[weakref.ref[Thing]], *, cause: bool) -> None:
    thing = Thing()
    things.append(weakref.ref(thing))
    try:
        raise ValueError("first")
    except ValueError as error:
        kept = error
        if cause:
            raise KeyError("second") from kept
        raise ExceptionGroup("both", [kept, KeyError("second")]) from None


def test_handled_exception_keeps_no_variables() -> None:
    """Also those that the exception contains or came from. `kept` and its traceback are in a cycle."""
    things: list[weakref.ref[Thing]] = []
    gc.disable()
    try:
        for cause in (True, False):
            try:
                fail(things, cause=cause)
            except (KeyError, ExceptionGroup) as error:
                forget_tracebacks(error)
        assert [thing() for thing in things] == [None, None]
    finally:
        gc.enable()
