"""Views, profiles, and which client gets which notification."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.api.control.reports import connected_clients
from mcpd.calls.client_context import ClientIdentity
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.model.events import Event, EventKind
from mcpd.model.policy import Profile
from mcpd.model.status import ServerState, ServerStatus
from mcpd.model.tool_names import ClientStyle
from mcpd.protocol.upstream_session import ServerNotification
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, World, make_server, make_upstream, world

Clock = trio.testing.MockClock
LISTS = [f"notifications/{name}/list_changed" for name in ("tools", "resources", "prompts")]


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world(others=[make_server("other")]) as made:
        yield made


def settings(w: World, **values: object) -> None:
    vars(w.gateway.core.config.loaded.settings).update(values)


def listener(w: World, view: View, *, version: str = LEGACY) -> tuple[ClientSession, list[str]]:
    """Return an initialized session and the methods of the notifications that it gets."""
    heard: list[str] = []
    session = w.gateway.open_session(
        view, ClientIdentity(via="socket"), lambda frame: heard.append(json.loads(frame)["method"]), w.spawn
    )
    session.is_initialized, session.version = True, version
    return session, heard


def status(state: ServerState, name: str = "srv") -> Event:
    report = ServerStatus(name=name, status=state, since="", transport="stdio")
    return Event(kind=EventKind.STATUS, at="", server=name, status=report)


@pytest.mark.parametrize(
    ("directory", "profile"),
    [(None, None), ("work/a", None), ("/work/a", "work"), ("/all", None), ("/elsewhere", None)],
)
async def test_profile_is_chosen_by_absolute_directory(
    w: World, directory: str | None, profile: str | None
) -> None:
    settings(w, profile_by_directory={"/work": "work", "/all": "*", "work": "work"})
    assert w.gateway.profile_for(directory) == profile


async def test_only_clients_that_see_the_server_hear_of_its_lists(w: World) -> None:
    (_, mine), (_, others) = listener(w, w.gateway.view("srv")), listener(w, w.gateway.view("other"))
    _, both = listener(w, w.gateway.view())
    w.gateway.on_notification(w.server, ServerNotification("notifications/prompts/list_changed", Raw(b"")))
    assert (mine, others, both) == ([LISTS[2]], [], [LISTS[2]])


@pytest.mark.parametrize(
    ("states", "notified"),
    [
        ([ServerState.CONNECTED], 0),
        ([ServerState.DISABLED], 0),
        ([ServerState.CONNECTED, ServerState.PENDING], 0),
        ([ServerState.CONNECTED, ServerState.DISABLED], 1),
        ([ServerState.DISABLED, ServerState.DISABLED], 0),
        ([ServerState.DISABLED, ServerState.PENDING], 1),
    ],
)
async def test_enabling_and_disabling_changes_all_lists(
    w: World, states: list[ServerState], notified: int
) -> None:
    (_, mine), (_, others) = listener(w, w.gateway.view("srv")), listener(w, w.gateway.view("other"))
    _, both = listener(w, w.gateway.view())
    for state in states:
        w.gateway._on_event(status(state))
    assert (mine, others, both) == (LISTS * notified, [], LISTS * notified)


@pytest.mark.parametrize(
    ("before", "notified"), [(None, 0), (ServerState.DISABLED, 0), (ServerState.CONNECTED, 1)]
)
async def test_removal_of_an_enabled_server_changes_the_merged_lists(
    w: World, before: ServerState | None, notified: int
) -> None:
    if before is not None:
        w.gateway._on_event(status(before))
    (_, mine), (_, both) = listener(w, w.gateway.view("srv")), listener(w, w.gateway.view())
    removed = Event(kind=EventKind.REMOVED, at="", server="srv")
    for _ in range(2):
        w.gateway._on_event(removed)
    assert (mine, both) == ([], LISTS * notified)


async def test_new_naming_style_is_announced_once_to_its_views(w: World) -> None:
    settings(w, profiles={"mine": Profile(name="mine", style=ClientStyle.PLAIN)})
    (_, all_), (_, fixed) = listener(w, w.gateway.view()), listener(w, w.gateway.view(profile="mine"))
    config = Event(kind=EventKind.CONFIG, at="")
    w.gateway._on_event(config)
    assert all_ == []
    settings(w, client_tool_names=ClientStyle.PLAIN)
    w.gateway._on_event(config)
    w.gateway._on_event(config)
    assert (all_, fixed) == ([LISTS[0], LISTS[2]], [])


async def test_events_are_handled_until_cancelled(
    autojump_clock: Clock, w: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in handling one event and a full buffer do not end it."""
    _, heard = listener(w, w.gateway.view("srv"))
    handled: list[Event] = []
    on_event = w.gateway._on_event

    def handle(event: Event) -> None:
        handled.append(event)
        if len(handled) == 1:
            raise KeyError("a bug")
        on_event(event)

    w.gateway._on_event = handle  # type: ignore[method-assign]
    nursery = w.gateway._nursery
    async with trio.open_nursery() as running:
        running.start_soon(w.gateway.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(200):
            w.gateway.core.events.send(status(ServerState.CONNECTED))
        await trio.testing.wait_all_tasks_blocked()
        assert len(handled) < 200, "the rest did not fit"
        w.gateway.core.events.send(status(ServerState.DISABLED))
        await trio.testing.wait_all_tasks_blocked()
        assert heard == LISTS
        running.cancel_scope.cancel()
    w.gateway._nursery = nursery
    assert "notifying clients of" in caplog.text
    caplog.clear()


async def test_new_server_gets_the_interests_of_clients_that_see_it(w: World) -> None:
    seeing, _ = listener(w, w.gateway.view("srv"))
    elsewhere, _ = listener(w, w.gateway.view("other"))
    listener(w, w.gateway.view())  # without a log level
    for session, level in ((seeing, "error"), (elsewhere, "debug")):
        session.context = type(session.context)(LEGACY, log_level=level)
    replaced: list[object] = []
    w.gateway.subscriptions.on_server_replaced = replaced.append  # type: ignore[method-assign, assignment]
    w.gateway._on_event(status(ServerState.PENDING))
    assert replaced == []
    for _ in range(2):
        w.gateway._on_event(status(ServerState.CONNECTED))
    assert replaced == [w.server]
    assert w.server.interests._levels == {seeing: "error"}
    w.gateway._on_event(Event(kind=EventKind.REMOVED, at="", server="srv"))
    w.gateway._on_event(status(ServerState.CONNECTED))
    assert replaced == [w.server] * 2


def cancelled(key: str) -> ServerNotification:
    return ServerNotification("notifications/cancelled", Raw(b'{"requestId":%b}' % key.encode()))


async def test_cancellation_by_a_server_needs_its_connection(w: World) -> None:
    user = w.user("legacy")
    user.call()
    w.hear()
    (working,) = w.work.values()
    key = json.dumps(w.ask(working))
    w.gateway.on_notification(w.server, ServerNotification("notifications/cancelled", Raw(b"5")))
    w.gateway.on_notification(w.server, ServerNotification("notifications/other", cancelled(key).params))
    assert len(user.questions) == 1
    w.gateway.on_notification(w.server, cancelled(key))
    assert user.questions == []
    w.server.upstream = None
    w.gateway.on_notification(w.server, cancelled(key))


@pytest.mark.parametrize(
    ("level", "modern", "message", "wanted"),
    [
        ("", False, {"level": "debug"}, True),
        ("", True, {"level": "error"}, False),
        ("info", False, {"level": "info"}, True),
        ("info", True, {"level": "info"}, True),
        ("info", True, {"level": "debug"}, False),
        ("info", True, {}, True),
        ("info", True, {"level": "loud"}, False),
        ("", False, 5, False),
    ],
)
async def test_log_message_reaches_the_client_from_its_level_on(
    w: World, level: str, modern: bool, message: object, wanted: bool
) -> None:
    user = w.user("modern" if modern else "legacy")
    heard: list[bytes] = []
    user.take = heard.append  # type: ignore[method-assign, assignment]
    user.call()
    (call,) = user.session.calls.values()
    call.context = type(call.context)(LEGACY, modern, log_level=level)
    params = Raw(json.dumps(message).encode())
    w.gateway.on_notification(w.server, ServerNotification("notifications/message", params))
    assert len(heard) == wanted


async def test_log_message_reaches_every_client_that_it_may_be_for(w: World) -> None:
    """That is, the call that the transport names, or else every client with a call, once."""
    one, two = w.user("legacy", {}), w.user("legacy", {})

    def log(exchange: Any = None) -> list[int]:
        for user in (one, two):
            user.logs.clear()
            user.tag = "u"
        params = Raw(b'{"level":"info","data":"u x"}')
        w.gateway.on_notification(w.server, ServerNotification("notifications/message", params, exchange))
        return [len(one.logs), len(two.logs)]

    assert log() == [0, 0]
    one.call()
    (call,) = one.session.calls.values()
    assert log() == [1, 0]
    one.call()
    assert log() == [1, 0], "both are the same client's"
    two.call()
    assert log() == [1, 1], "a direct client of a shared server would not know either"
    assert log(call) == [1, 0]
    assert log(SimpleNamespace()) == [0, 0]
    call.request = None
    assert log(call) == [0, 0]
    w.server.upstream = None
    assert log() == [0, 0]


async def test_log_message_outside_of_calls_reaches_legacy_clients_that_set_a_level(w: World) -> None:
    """The level applies to their whole session. Clients that do not see the server get nothing."""
    seeing, heard = listener(w, w.gateway.view("srv"))
    _, unset = listener(w, w.gateway.view("srv"))
    blind, others = listener(w, w.gateway.view("other"))
    modern, nothing = listener(w, w.gateway.view("srv"), version="")
    modern.is_initialized = False
    for session, level in ((seeing, "warning"), (blind, "debug"), (modern, "debug")):
        session.context = msgspec.structs.replace(session.context, log_level=level)
    for level in ("info", "error"):
        params = Raw(json.dumps({"level": level, "data": "x"}).encode())
        w.gateway.on_notification(w.server, ServerNotification("notifications/message", params))
    assert heard == ["notifications/message"]
    assert (unset, others, nothing) == ([], [], [])


def roots(w: World, server: Any) -> list[Json]:
    return [json.loads(bytes(root)) for root in w.gateway.roots(server)]


async def test_roots_are_those_of_all_clients_that_see_the_server(w: World) -> None:
    root = Raw(b'{"uri":"file:///a"}')
    for name, found in (("srv", (root,)), ("srv", (root, Raw(b'{"uri":"file:///b"}'))), ("other", ())):
        session, _ = listener(w, w.gateway.view(name))
        session.roots = found
    assert roots(w, w.server) == [{"uri": "file:///a"}, {"uri": "file:///b"}]
    dedicated = make_server("srv~1")
    dedicated.original = w.server
    assert roots(w, dedicated) == []


async def test_shared_server_is_not_given_the_directory_of_a_bridge(w: World) -> None:
    """The client would declare no roots if it were connected directly."""
    client = ClientIdentity(via="socket", cwd="/a")
    session = w.gateway.open_session(w.gateway.view("srv"), client, lambda frame: None, w.spawn)
    assert session.effective_roots() == (Raw(b'{"uri":"file:///a"}'),)
    assert roots(w, w.server) == []
    session.roots = (Raw(b'{"uri":"file:///b"}'),)
    assert session.effective_roots() == session.roots


async def test_servers_hear_when_a_client_with_roots_leaves(w: World) -> None:
    changes: list[int] = []
    w.server.upstream.notify_roots_changed = lambda: changes.append(1)
    (other,) = (server for server in w.gateway.core.supervisor.servers() if server is not w.server)
    assert other.upstream is None
    for found, expected in (((), 0), ((Raw(b"{}"),), 1)):
        session, _ = listener(w, w.gateway.view())
        session.roots = found
        session.close("left")
        assert len(changes) == expected


async def test_session_report_counts_calls_and_names_revisions(w: World) -> None:
    user = w.user("legacy")
    session = user.session
    assert connected_clients([session], [], str).clients[0].servers == {}
    user.call()
    dedicated = make_server("other~1")
    dedicated.original = make_server("other")
    session.call_counts.add(dedicated)
    session.call_counts.ended = {"srv": 2, "gone": 1}
    (report,) = connected_clients([session], [], str).clients
    assert (report.calls, report.in_flight, report.pid, report.name) == (5, 1, None, user.tag)
    used = {name: (each.calls, each.revisions, each.instance) for name, each in report.servers.items()}
    assert used == {
        "srv": (3, LEGACY, None),
        "gone": (1, "", None),
        "other": (1, f"{LEGACY} → ?", "other~1"),
    }
    session.version, session.last_version = "", MODERN
    w.server.upstream = make_upstream()
    assert connected_clients([session], [], str).clients[0].servers["srv"].revisions == f"{MODERN} → {LEGACY}"
    session.last_version = ""
    assert connected_clients([session], [], str).clients[0].servers["srv"].revisions == f"? → {LEGACY}"
    session.client = msgspec.structs.replace(session.client, name="editor", pid=4711)
    (report,) = connected_clients([session], [], str).clients
    assert (report.name, report.pid) == ("editor", 4711)
