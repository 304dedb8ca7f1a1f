"""Long computations in steps, between which the caller can let others have their turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields between two parts of the work, each of which takes at most some milliseconds per MiB; returns the
result."""


def run_steps(steps: Steps[T]) -> T:
    """Do all of the work at once. `io.turns.in_turns` lets other tasks run between the steps instead."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
