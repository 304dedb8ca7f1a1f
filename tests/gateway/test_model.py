"""In any order of questions, answers, cancellations and lost connections, every request gets one response,
and no queue stays blocked."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mcpd.calls.questions.router import AMBIGUITY_TIMEOUT
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Script, User, World, world
from tests.sampling import scaled

Step = tuple[str, int, int]

STEPS = (
    *("open legacy", "open modern", "open stateless"),
    *(["call"] * 4),
    *(["ask"] * 4),
    *(["sample", "roots"]),
    *(["answer"] * 3),
    *(["come back"] * 3),
    *(["end"] * 3),
    *("come back empty", "refuse", "withdraw", "progress", "log", "fail", "give up asking"),
    *("cancel", "leave", "lose", "down", "up", "choke", "wait a bit", "wait"),
    *("open script", "script call", "script call", "script cancel", "script leave"),
    *("need input", "need nothing", "need input"),
)
PLAYS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.integers(0, 5)), max_size=60)


def step(w: World, what: str, a: int, b: int) -> None:
    """Do that with the `a`th of those with which it can be done, if there is any."""
    if w.version == MODERN and what in ("ask", "sample", "roots", "withdraw", "give up asking"):
        return  # a modern server sends no requests
    w.hear()
    here = [user for user in w.users if user.here]
    scripts = [script for script in w.scripts if script.here]
    if what == "open script":
        if len(scripts) < 3:
            Script(w)
    elif what.startswith("script"):
        if scripts:
            play_script(scripts[a % len(scripts)], what, b)
    elif what.startswith("open"):
        if len(here) < 5:
            w.user(what.partition(" ")[2])
    elif what == "call" and here:
        here[a % len(here)].call()
    elif what in ("answer", "refuse") and here:
        here[a % len(here)].answer(refuse=what == "refuse")
    elif what == "leave" and here:
        here[a % len(here)].leave()
    elif what in ("lose", "down", "up"):
        if what != "up":
            w.lose()
        if what != "down" and w.server.upstream is None:
            w.connect()
    elif what == "choke":
        w.wire.choke(bool(a % 2))
    elif what == "cancel":
        under_way = [
            (user, each)
            for user in here
            for each in user.requests
            if each.done is None and each.needs is None and not each.cancelled
        ]
        if under_way:
            user, asked = under_way[a % len(under_way)]
            user.cancel(asked)
    elif what.startswith("come back"):
        asked_of = [(u, each) for u in here for each in u.requests if each.needs is not None]
        if asked_of:
            user, asked = asked_of[a % len(asked_of)]
            user.come_back(asked, empty=what.endswith("empty"))
    elif what == "withdraw" and w.whose:
        w.withdraw(sorted(w.whose)[a % len(w.whose)])
    elif w.work:
        call = list(w.work.values())[a % len(w.work)]
        if what == "ask":
            w.ask(call)
        elif what == "sample":
            w.ask(call, "sampling/createMessage")
        elif what == "roots":
            w.ask(call, "roots/list")
        elif what == "progress":
            w.progress(call)
        elif what == "log":
            w.log(call)
        elif what.startswith("need") and w.version == MODERN:
            w.need_input(call, asks=what == "need input")
        elif what in ("fail", "give up asking"):
            w.withdraw_unassigned(call)  # or they would be asked of the client whose call remains
            w.end(call, {"code": -32603, "message": "broken"} if what == "fail" else None)
        elif what == "end" and not call.waits_for:
            w.end(call)
    w.hear()


def play_script(script: Script, what: str, number: int) -> None:
    """Have a client of the control API call, cancel one of its calls, or leave."""
    if what == "script call":
        script.call("converse", {"tag": script.tag}, raw=True, _meta={"progressToken": script.tag})
    elif what == "script leave":
        script.leave()
    elif script.pending:
        script.cancel(sorted(script.pending)[number % len(script.pending)])


def open_requests(users: Sequence[User]) -> list[str]:
    return [
        f"{user.tag} ({user.kind}) waits with {asked.key}"
        for user in users
        for asked in user.requests
        if asked.done is None and not asked.cancelled
    ]


async def finish(w: World) -> None:
    """Everybody answers whatever they are asked, and the server ends whatever it can end.

    A question that may be for several clients delays the end of its call by AMBIGUITY_TIMEOUT.
    """
    if w.server.upstream is None:
        w.connect()
    w.wire.choke(on=False)
    until = trio.current_time() + AMBIGUITY_TIMEOUT + 5
    while trio.current_time() < until:
        w.hear()
        for user in w.users:
            if user.here:
                while user.questions:
                    user.answer()
                for asked in user.requests:
                    if asked.needs is not None:
                        user.come_back(asked)
        w.hear()
        for call in list(w.work.values()):
            if not call.waits_for and call.key in w.work:
                w.end(call)
        await trio.sleep(0.05)
        if not open_requests(w.users) and not any(script.pending for script in w.scripts):
            break


class Bugs(logging.Handler):
    """Collects what mcpd logs as errors of its own. Assertions of the model may be among them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def collected_bugs() -> Iterator[list[str]]:
    bugs, logger = Bugs(), logging.getLogger("mcpd")
    logger.addHandler(bugs)
    try:
        yield bugs.found
    finally:
        logger.removeHandler(bugs)


async def play(steps: Sequence[Step], concurrency: str, version: str) -> None:
    with collected_bugs() as bugs:
        await play_out(steps, concurrency, version)
        assert bugs == []


async def play_out(steps: Sequence[Step], concurrency: str, version: str) -> None:
    async with world(concurrency=concurrency, version=version) as w:
        for what, a, b in steps:
            if what == "wait":
                await trio.sleep(1)
            elif what == "wait a bit":
                await trio.sleep(0.04)
            else:
                step(w, what, a, b)
        await finish(w)
        if any(not user.here or any(each.cancelled for each in user.requests) for user in w.users):
            await trio.sleep(901)  # one who does not come back with what was asked is waited for
            await finish(w)
        assert open_requests(w.users) == []
        for script in w.scripts:
            assert script.pending == set()
            assert script.caller.calls == {}
        assert {call.tag: call.waits_for for call in w.work.values()} == {}
        assert w.empty() == []


BOTH_ASK = [
    *[("open script", 0, 0), ("open legacy", 0, 0), ("call", 0, 0), ("script call", 0, 0)],
    *[("wait", 0, 0), ("ask", 0, 0), ("ask", 1, 0)],
]
"""Neither of two questions can be assigned to a client before AMBIGUITY_TIMEOUT."""


@example(BOTH_ASK, "auto", LEGACY)
@settings(max_examples=scaled(500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAYS, st.sampled_from(["auto", "auto", "free", "writes"]), st.sampled_from([LEGACY, LEGACY, MODERN]))
def test_every_request_has_one_response_and_no_queue_stays(
    steps: list[Step], concurrency: str, version: str
) -> None:
    """And no client is asked, or received, what belongs to another."""
    trio.run(play, steps, concurrency, version, clock=trio.testing.MockClock(autojump_threshold=0))
