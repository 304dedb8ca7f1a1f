"""Compares the outcomes that clients got for their calls with what the servers executed.

Each call contains a token that no other call has. The server appends it to its ledger when it executes the
call; the client notes the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path


class Outcome(StrEnum):
    """What a client knows about a call in the end, and how often the server must have executed it."""

    ANSWERED = "answered"
    """The right answer came: once."""
    UNKNOWN = "unknown"
    """An error that says that the call may have run, or the client has left: at most once."""
    NOT_RUN = "not-run"
    """An error that says that the call did not run: never."""


EXPECTED = {Outcome.ANSWERED: (1,), Outcome.UNKNOWN: (0, 1), Outcome.NOT_RUN: (0,)}


def judge(executed: Mapping[str, int], outcomes: Iterable[tuple[str, Outcome]]) -> list[str]:
    """Return a description of each call that was lost, executed twice, or sent to the wrong server."""
    wrong, known = [], set()
    for token, outcome in outcomes:
        times = executed.get(token, 0)
        if times not in EXPECTED[outcome]:
            wrong.append(f"{token}: executed {times} times, but the client was received: {outcome}")
        if token in known:
            wrong.append(f"{token}: two outcomes")
        known.add(token)
    wrong += [f"{token}: executed, but no client has sent it" for token in executed if token not in known]
    return wrong


def read_ledgers(directory: Path) -> Counter[str]:
    """Return how often each call was executed. A token that is in the ledger of another server than its own
    (the part before the first colon) is counted under that server's name.
    """
    executed: Counter[str] = Counter()
    for file in directory.iterdir():
        server = file.stem
        with file.open() as lines:
            for line in lines:
                token = line.rstrip("\n")
                is_own = token.partition(":")[0] == server
                executed[token if is_own else f"{token} at {server}"] += 1
    return executed


def read_outcomes(directory: Path) -> Iterator[tuple[str, Outcome]]:
    for file in directory.iterdir():
        with file.open() as lines:
            for line in lines:
                token, _, outcome = line.rstrip("\n").rpartition(" ")
                yield token, Outcome(outcome)
