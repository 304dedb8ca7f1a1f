"""What is noted of one server's connecting, step by step, and of its frames while somebody debugs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mcpd.model.api import Step
from mcpd.model.status import rfc3339

log = logging.getLogger("mcpd.server")


class Trace:
    """`mask` takes the secrets out of all of it."""

    def __init__(self, name: str, mask: Callable[[str], str]) -> None:
        self.steps: list[Step] = []
        """Of the attempt under way, or the last one."""
        self._name = name
        self._mask = mask

    def afresh(self) -> None:
        self.steps = []

    def step(self, step: str, outcome: str, seconds: float) -> None:
        told = Step(
            at=rfc3339(time.time()),
            step=step,
            outcome=self._mask(outcome)[:500],
            ms=round(seconds * 1000, 1),
        )
        self.steps.append(told)
        log.debug("%s: %s: %s (%.1f ms)", self._name, step, told.outcome, told.ms)

    def frame(self, direction: str, frame: bytes) -> None:
        log.debug("%s %s %s", self._name, direction, self._mask(frame[:2000].decode("utf-8", "replace")))
