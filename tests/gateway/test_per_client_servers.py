"""Which clients get a server of their own, and when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.client_context import ClientIdentity, make_client_context
from mcpd.gateway.instances import LINGER_SECONDS, DedicatedServers, declared_directory
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import Overloaded
from mcpd.model.status import ServerState
from tests.gateway.model import LEGACY, Json, World, make_server, world

Clock = trio.testing.MockClock


class Pool:
    """The dedicated servers, and those that run."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.running: list[Any] = []
        self.ended: list[tuple[str, str]] = []
        self.ending: set[Any] = set()
        instances: Any = w.gateway.core.supervisor.instances
        instances.start = self.start
        instances.stop = self.stop
        instances.servers = lambda: list(self.running)
        instances.is_ending = self.ending.__contains__
        self.servers = DedicatedServers(w.gateway.core, w.spawn)

    def start(self, original: Any, spec: Any) -> Any:
        server = make_server()
        server.original, server.spec = original, spec
        self.running.append(server)
        return server

    def stop(self, server: Any, reason: str) -> None:
        self.running.remove(server)
        self.ended.append((server.spec.name, reason))

    def session(
        self, *, via: str = "socket", cwd: str = "", version: str = LEGACY, person: str = ""
    ) -> ClientSession:
        view = self.w.gateway.view("srv")
        client = ClientIdentity(via=via, cwd=cwd, person=person, person_id=person)
        session = self.w.gateway.open_session(view, client, lambda frame: None, self.w.spawn)
        session.version = version
        return session


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with world() as w:
        yield Pool(w)


@pytest.mark.parametrize(
    ("share", "client", "state", "own"),
    [
        ("all", {}, ServerState.CONNECTED, False),
        ("client", {}, ServerState.CONNECTED, True),
        ("client", {"via": "http"}, ServerState.CONNECTED, True),
        ("client", {"via": "http", "version": ""}, ServerState.CONNECTED, False),
        ("client", {"version": ""}, ServerState.CONNECTED, True),
        ("client", {}, ServerState.DISABLED, False),
        ("root", {}, ServerState.CONNECTED, False),
        ("root", {"cwd": "/a"}, ServerState.CONNECTED, True),
    ],
)
async def test_which_clients_get_their_own_server(
    pool: Pool, share: str, client: Json, state: ServerState, own: bool
) -> None:
    """Not a client whose next request may come as another, and none without a root if it counts."""
    server = make_server(share=share)
    server.state = state
    session = pool.session(**client)
    found = pool.servers.server_for(session, server)
    assert (found is not server) is own
    assert pool.servers.server_for(session, server) is found
    assert pool.servers.server_for(session, found) is found, "it has none of its own"
    assert len(pool.running) == own
    if own:
        assert found.spec.name == "srv~1"
        assert found.spec.lazy
        assert pool.servers.used_by(session) == [found]
        assert pool.servers.users(found) == [session]
        assert pool.servers.users(server) == []
        assert pool.servers.used_by(pool.session()) == []


async def test_each_person_has_an_own_server_up_to_a_limit(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody uses makes room. The person who runs mcpd uses that of the definition."""
    monkeypatch.setattr("mcpd.gateway.instances.MAX_OF_PEOPLE", 2)
    server = make_server(share="person")
    of_ada = pool.servers.server_for(pool.session(person="ada"), server)
    assert pool.servers.server_for(pool.session(person="ada", version="", via="http"), server) is of_ada
    assert pool.servers.source("ada", server) is of_ada
    bob = pool.session(person="bob")
    of_bob = pool.servers.server_for(bob, server)
    assert (of_ada.spec.person, of_bob.spec.person) == ("ada", "bob")
    with pytest.raises(Overloaded):
        pool.servers.server_for(pool.session(person="eve"), server)
    pool.servers.on_session_closed(bob)
    assert pool.servers.server_for(pool.session(person="eve"), server).spec.person == "eve"
    assert pool.servers.source("bob", server) is None
    assert pool.servers.server_for(pool.session(), server) is server


@pytest.mark.parametrize(
    ("share", "cwd", "seen"),
    [("root", None, "/a"), ("root", "/b", "/b"), ("client", None, None)],
)
async def test_server_of_a_root_runs_there_unless_defined_otherwise(
    pool: Pool, share: str, cwd: str | None, seen: str | None
) -> None:
    server = make_server(share=share, cwd=cwd)
    assert pool.servers.server_for(pool.session(cwd="/a"), server).spec.cwd == seen  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("share", "capabilities", "modern", "defined", "era"),
    [
        ("client", {"elicitation": {}}, False, "auto", "legacy-first"),
        ("client", {"roots": {}}, False, "auto", "legacy-first"),
        ("client", {}, False, "auto", "auto"),
        ("client", {"elicitation": {}}, True, "auto", "auto"),
        ("client", {"elicitation": {}}, False, "modern", "modern"),
        ("root", {"elicitation": {}}, False, "auto", "auto"),
    ],
)
async def test_server_of_one_client_uses_the_era_of_its_client(
    pool: Pool, share: str, capabilities: Json, modern: bool, defined: str, era: str
) -> None:
    """As the client would directly: a server can ask it only so."""
    session = pool.session(cwd="/a")
    session.context = make_client_context(LEGACY, capabilities, modern=modern)
    found = pool.servers.server_for(session, make_server(share=share, era=defined))
    assert found.spec.era == era


async def test_clients_that_can_be_asked_are_separated_if_a_question_was_unclear(pool: Pool) -> None:
    server, plain, asked = make_server(), pool.session(), pool.session()
    asked.context = make_client_context(LEGACY, {"elicitation": {}})
    assert pool.servers.server_for(asked, server) is server
    server.elicitation_history.separate_clients()
    assert pool.servers.server_for(plain, server) is server
    assert pool.servers.users(pool.servers.server_for(asked, server)) == [asked]


async def test_clients_of_one_root_share_a_server(pool: Pool) -> None:
    server = make_server(share="root")
    one, two, other = (pool.session(cwd=cwd) for cwd in ("/a", "/a", "/b"))
    first, second, third = (pool.servers.server_for(each, server) for each in (one, two, other))
    assert first is second is not third
    assert [each.spec.name for each in pool.running] == ["srv~1", "srv~2"]
    assert pool.servers.users(first) == [one, two]


async def test_ending_server_is_replaced(pool: Pool) -> None:
    server, session = make_server(share="client"), pool.session()
    first = pool.servers.server_for(session, server)
    pool.ending.add(first)
    assert pool.servers.server_for(session, server) is not first


async def test_only_clients_that_declare_a_root_leave_the_shared_server(pool: Pool) -> None:
    server = make_server(share="declared-root")
    plain, one, two = (pool.session(cwd="/a") for _ in range(3))
    for session in (one, two):
        session.roots = (Raw(b'{"uri":"file:///a"}'),)
    assert pool.servers.server_for(plain, server) is server
    assert pool.servers.server_for(one, server) is pool.servers.server_for(two, server) is not server


async def test_server_of_a_root_lingers(autojump_clock: Clock, pool: Pool) -> None:
    """It ends a while after its last client has left, unless another has come meanwhile."""
    server = make_server(share="root")
    one, two, three = (pool.session(cwd="/a") for _ in range(3))
    found = pool.servers.server_for(one, server)
    pool.servers.server_for(two, server)
    tasks = len(pool.w.nursery.child_tasks)
    pool.servers.on_session_closed(one)
    assert len(pool.w.nursery.child_tasks) == tasks, "another client still uses it"
    await trio.sleep(LINGER_SECONDS * 2)
    assert pool.ended == []
    pool.servers.on_session_closed(two)
    await trio.sleep(LINGER_SECONDS - 1)
    assert pool.servers.server_for(three, server) is found
    await trio.sleep(LINGER_SECONDS)
    assert pool.ended == []
    pool.servers.on_session_closed(three)
    pool.servers.on_disabled(make_server())
    assert pool.ended == []
    pool.servers.on_disabled(server)
    assert pool.ended == [("srv~1", "it was disabled")]
    await trio.sleep(LINGER_SECONDS * 2)
    assert len(pool.ended) == 1
    four = pool.session(cwd="/a")
    pool.servers.server_for(four, server)
    pool.servers.on_session_closed(four)
    await trio.sleep(LINGER_SECONDS + 1)
    assert pool.ended[1:] == [("srv~1", "its last client left")]


@pytest.mark.parametrize(
    ("roots", "directory"),
    [
        ([], ""),
        (["file:///a%20b"], "/a b"),
        (["https://x/y", "file:///b"], "/b"),
        (["file://"], ""),
        (["/a"], ""),
    ],
)
async def test_first_directory_that_a_client_declares(pool: Pool, roots: list[str], directory: str) -> None:
    session = pool.session(cwd="/cwd")
    session.roots = (Raw(b"5"), *(Raw(b'{"uri":"%b"}' % root.encode()) for root in roots))
    assert declared_directory(session) == directory
