"""Frees what exceptions refer to, without the garbage collector."""

from __future__ import annotations


def forget_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an exception that was handled, and of those that it contains or came from.

    A traceback refers to the variables of each function that the exception has passed, and one of them often
    refers to the exception. Without it, all of them are freed as soon as nobody needs them.
    """
    waiting, seen = [error], {id(error)}
    while waiting:
        each = waiting.pop()
        each.__traceback__ = None
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        for other in (each.__cause__, each.__context__, *inner):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
