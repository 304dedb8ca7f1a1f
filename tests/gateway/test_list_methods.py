"""Lists in pages, and how long they wait for starting servers: no longer than clients do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest, make_client_context
from mcpd.gateway import lists as list_methods
from mcpd.gateway.client_facts import VisibleEntries
from mcpd.gateway.lists import FIRST_START_TIMEOUT
from mcpd.model.policy import ClientFacts, Decision
from mcpd.wire.message import BadFrame
from tests.gateway.model import LEGACY, Json

NOBODY_HAS_OWN: Any = SimpleNamespace(sources=lambda session, servers: servers)
NO_POLICIES: Any = SimpleNamespace(apply_to=lambda server: False)
NOBODY: Any = {
    "scope": SimpleNamespace(profile=None),
    "client": SimpleNamespace(surface=None, name=""),
    "peer": "",
}


@pytest.mark.parametrize(
    ("known_after", "answered_after"),
    [([], 0), ([2, 3, 1], 3), ([1, 600], FIRST_START_TIMEOUT)],
    ids=["nobody-new", "all-in-time", "one-hangs"],
)
async def test_merged_list_waits_for_servers_that_start_for_the_first_time(
    autojump_clock: trio.testing.MockClock, known_after: list[float], answered_after: float
) -> None:
    """An editor that starts right after `mcpctl import` asks once, and must not see an empty list."""
    began = trio.current_time()
    answered: list[tuple[float, bytes]] = []

    def starting(seconds: float) -> Any:
        async def wait_settled() -> None:
            await trio.sleep_until(began + seconds)

        return SimpleNamespace(is_first_start=True, lists_expired=False, wait_settled=wait_settled)

    async def nothing(servers: object) -> None: ...

    async with trio.open_nursery() as nursery:
        servers = [starting(seconds) for seconds in known_after]
        session: Any = SimpleNamespace(
            view=SimpleNamespace(
                single=None,
                must_prepare=False,
                servers=lambda: servers,
                capabilities=lambda version: {"tools": {}},
                entries=lambda member: (b'{"name":"echo"}',),
            ),
            gateway=SimpleNamespace(
                core=SimpleNamespace(refresh_catalogs=nothing), dedicated_servers=NOBODY_HAS_OWN
            ),
            visible=VisibleEntries(NO_POLICIES),
            request_tasks={},
            spawn_request=lambda request, work: nursery.start_soon(work),
            respond=lambda request, body: answered.append((trio.current_time() - began, body)),
            **NOBODY,
        )
        nowhere: Any = None
        list_methods.answer_list(
            session,
            ClientRequest(b"1", "tools/list", Raw(b""), nowhere, make_client_context("2025-11-25", {})),
        )
    ((after, body),) = answered
    assert after == pytest.approx(answered_after)
    assert body == b'{"tools":[{"name":"echo"}]}'


def a_session(
    entries: Sequence[bytes], *, single: object = None, servers: Sequence[object] = ()
) -> tuple[Any, list[Json], list[object]]:
    """Return a session, its answers, and the tasks it starts."""
    answers: list[Json] = []
    tasks: list[object] = []
    session = SimpleNamespace(
        view=SimpleNamespace(
            single=single,
            title="x",
            servers=lambda: servers,
            capabilities=lambda version: {"tools": {}},
            entries=lambda member: entries,
            freshness=lambda member: (5, "public"),
        ),
        gateway=SimpleNamespace(core=None, dedicated_servers=NOBODY_HAS_OWN),
        visible=VisibleEntries(NO_POLICIES),
        request_tasks={},
        spawn_request=lambda request, work: tasks.append(work),
        respond=lambda request, body: answers.append(json.loads(body)),
        respond_error=lambda request, code, text: answers.append({"code": code, "text": text}),
        **NOBODY,
    )
    return session, answers, tasks


def a_request(params: bytes = b"", method: str = "tools/list", *, modern: bool = False) -> ClientRequest:
    nowhere: Any = None
    return ClientRequest(b"1", method, params, nowhere, make_client_context(LEGACY, {}, modern=modern))


ENTRIES = tuple(b'{"name":"t%d"}' % number for number in range(5))


@pytest.mark.parametrize(
    ("page_size", "page_bytes", "pages"),
    [
        (5, 1000, [5]),
        (6, 1000, [5]),
        (4, 1000, [4, 1]),
        (2, 1000, [2, 2, 1]),
        (9, 2 * len(ENTRIES[0]), [2, 2, 1]),
        (9, 2 * len(ENTRIES[0]) + 1, [2, 2, 1]),
        (9, 1, [1] * 5),
    ],
)
def test_pages_end_at_a_size(
    monkeypatch: pytest.MonkeyPatch, page_size: int, page_bytes: int, pages: list[int]
) -> None:
    """A page holds at least one entry; the last one has no cursor."""
    monkeypatch.setattr(list_methods, "PAGE_SIZE", page_size)
    monkeypatch.setattr(list_methods, "MAX_PAGE_BYTES", page_bytes)
    session, answers, _ = a_session(ENTRIES)
    params = b""
    while len(answers) < len(pages):
        list_methods.answer_list(session, a_request(params))
        assert ("nextCursor" in answers[-1]) is (len(answers) < len(pages))
        params = json.dumps({"cursor": answers[-1].get("nextCursor")}).encode()
    assert [len(answer["tools"]) for answer in answers] == pages
    assert [tool["name"] for answer in answers for tool in answer["tools"]] == [f"t{n}" for n in range(5)]


@pytest.mark.parametrize("start", [-1, 0, 5, 6])
def test_cursor_outside_of_the_list_is_refused(start: int) -> None:
    session, _, _ = a_session(ENTRIES)
    for cursor in (list_methods._cursor(ENTRIES, start), "x", 5, "", list_methods._cursor(ENTRIES[1:], 2)):
        with pytest.raises(BadFrame, match="cursor"):
            list_methods.answer_list(session, a_request(json.dumps({"cursor": cursor}).encode()))


@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list"])
def test_list_that_the_server_does_not_have_is_refused(method: str) -> None:
    session, answers, _ = a_session(())
    list_methods.answer_list(session, a_request(method=method))
    feature = method.split("/")[0]
    assert answers == [{"code": -32601, "text": f"x does not support {feature}"}]


@pytest.mark.parametrize(
    ("single", "catalog", "expired", "first", "immediate"),
    [
        (True, ENTRIES, False, False, True),
        (True, ENTRIES, False, True, True),
        (True, ENTRIES, True, False, False),
        (True, None, False, False, False),
        (False, None, False, False, True),
        (False, ENTRIES, True, False, False),
        (False, ENTRIES, False, True, False),
    ],
)
def test_list_is_answered_immediately_if_it_is_known(
    single: bool, catalog: object, expired: bool, first: bool, immediate: bool
) -> None:
    server = SimpleNamespace(lists_expired=expired, is_first_start=first, catalog=catalog)
    session, answers, tasks = a_session(ENTRIES, single=server if single else None, servers=[server])
    list_methods.answer_list(session, a_request())
    assert (len(answers), len(tasks)) == ((1, 0) if immediate else (0, 1))


async def test_unknown_list_of_a_single_server_is_loaded(autojump_clock: trio.testing.MockClock) -> None:
    loaded: list[object] = []

    async def load(server: object) -> None:
        await trio.lowlevel.checkpoint()
        loaded.append(server)

    server = SimpleNamespace(lists_expired=False, is_first_start=True, catalog=None)
    session, answers, tasks = a_session(ENTRIES, single=server, servers=[server])
    session.gateway.core = SimpleNamespace(load_catalog=load)
    session.is_closed = False
    list_methods.answer_list(session, a_request())
    (task,) = tasks
    await task()  # type: ignore[operator]
    assert loaded == [server]
    assert len(answers) == 1


def test_visible_part_of_a_list_follows_the_rules() -> None:
    """It is computed again when they change, and only then."""
    denied = ["a"]
    policies: Any = SimpleNamespace(
        apply_to=lambda server: True,
        of=lambda server: SimpleNamespace(rules=tuple(denied)),
        verdict=lambda client, server, kind, name: SimpleNamespace(
            decision=Decision.DENY if name in denied else Decision.ALLOW
        ),
    )
    view: Any = SimpleNamespace(
        entries=lambda member: (b"A", b"B"),
        owners=lambda member: (("it", "a"), ("it", "b")),
        servers=lambda: (SimpleNamespace(spec=SimpleNamespace(name="it")),),
        source=lambda server: server,
    )
    visible, facts = VisibleEntries(policies), ClientFacts()
    first = visible.entries(view, "tools", lambda: facts)
    assert first == (b"B",)
    assert visible.entries(view, "tools", lambda: facts) is first
    denied[:] = ["b"]
    assert visible.entries(view, "tools", lambda: facts) == (b"A",)
