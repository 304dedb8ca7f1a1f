"""Which connection a client's calls use if a server speaks both eras, and how long the second one lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock

from mcpd.calls import connections
from mcpd.calls.client_context import ClientContext, make_client_context
from mcpd.calls.connections import LegacyCompanions
from mcpd.model.errors import NotReady
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import RestartPolicy, StdioSpec
from mcpd.model.status import ServerState
from mcpd.state.state_file import StateFile
from mcpd.supervision.legacy_companion import LegacyCompanion
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor import Supervisor
from tests.supervision.peer import Life, Script, scripted, surroundings

LINGER_SECONDS = 60.0
LEGACY, MODERN = "2025-11-25", "2026-07-28"
ASKABLE = make_client_context(LEGACY, {"elicitation": {}}, log_level="warning")
DUAL = Life(dual=True)
SPEC = StdioSpec(name="it", command="/bin/sh", restart=RestartPolicy(base=20, cap=20))


@attrs.define(eq=False)
class World:
    supervisor: Supervisor
    script: Script
    events: list[Event]
    nursery: trio.Nursery
    companions: LegacyCompanions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        operations: Any = SimpleNamespace(supervisor=self.supervisor, wait_ready=self._wait_ready)
        self.companions = LegacyCompanions(operations, self.nursery.start_soon)

    async def _wait_ready(self, server: ManagedServer) -> object:
        with trio.move_on_after(30):
            return await server.wait_ready()
        raise server.not_ready()

    @property
    def server(self) -> ManagedServer:
        return self.supervisor.get("it")

    @property
    def running(self) -> list[LegacyCompanion]:
        return [each for each in self.supervisor.instances.servers() if isinstance(each, LegacyCompanion)]

    async def apply(self, *specs: StdioSpec) -> None:
        generation, _ = self.supervisor.set_desired({spec.name: spec for spec in specs})
        await self.supervisor.wait_applied(generation)

    async def use(self, client: object, context: ClientContext = ASKABLE, **how: bool) -> ManagedServer:
        """Return the connection that the client gets."""
        return await self.companions.wait_connected(client, context, self.server, **how)

    async def companion(self, client: object = "client") -> LegacyCompanion:
        used = await self.use(client)
        assert isinstance(used, LegacyCompanion)
        return used


@asynccontextmanager
async def living(
    home: Path, *lives: Life | Exception, spec: StdioSpec = SPEC, store: StateFile | None = None
) -> AsyncIterator[World]:
    events: list[Event] = []
    context = surroundings(home, events.append)
    supervisor = Supervisor(context if store is None else msgspec.structs.replace(context, store=store))
    script = Script(list(lives) or [DUAL])
    with scripted({"it": script}):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            world = World(supervisor, script, events, nursery)
            await world.apply(spec)
            yield world
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("version", "capabilities", "second"),
    [
        (LEGACY, {"elicitation": {}}, True),
        (LEGACY, {"sampling": {}}, True),
        (LEGACY, {"roots": {"listChanged": True}}, True),
        ("2024-11-05", {"sampling": {}}, True),
        (LEGACY, {}, False),
        (LEGACY, {"experimental": {}}, False),
        (MODERN, {"elicitation": {}, "sampling": {}, "roots": {}}, False),
    ],
)
async def test_which_clients_use_the_second_connection(
    autojump_clock: MockClock, tmp_path: Path, version: str, capabilities: dict[str, object], second: bool
) -> None:
    """Those of the legacy era that a server can ask something. Nothing is opened for the others."""
    context = make_client_context(version, capabilities, modern=version == MODERN)
    async with living(tmp_path) as world:
        used = await world.use("client", context)
        assert isinstance(used, LegacyCompanion) is second
        assert len(world.script.starts) == 1 + second
        assert used.upstream is not None
        assert used.upstream.era == ("legacy" if second else "modern")


async def test_both_connections_are_one_server(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Clients of the legacy era share one companion, which is reported only as a connection of the server."""
    async with living(tmp_path) as world:
        companion = await world.companion("one")
        assert await world.use("two") is companion
        assert world.companions.choose("two", ASKABLE, world.server) is companion
        assert len(world.script.starts) == 2
        assert len(set(world.script.marks)) == 2
        first, second = world.server.status().connections
        assert (first.revision, first.era, second.revision, second.era) == (
            MODERN,
            "modern",
            LEGACY,
            "legacy",
        )
        assert (first.pid, second.pid) == (1001, 1002)
        assert companion.interests.log_level == "warning"
        companion.log.feed(b"from the second\n")
        assert world.server.log.tail(1)[0].endswith("from the second")
        assert world.server.log.path.read_text().count("from the second") == 1
        assert companion.log.last_lines() == ("from the second",)
        last = [event for event in world.events if event.kind is EventKind.STATUS][-1]
        assert last.status is not None
        assert len(last.status.connections) == 2
        assert {event.server for event in world.events} == {"it"}
        assert {event.status.pid for event in world.events if event.status} <= {None, 1001}


async def test_request_that_asks_nothing_opens_no_connection(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """But it uses the one that its client has."""
    async with living(tmp_path) as world:
        assert await world.use("client", may_open=False) is world.server
        companion = await world.companion("client")
        assert await world.use("client", may_open=False) is companion
        assert await world.use("other", may_open=False) is world.server


@pytest.mark.parametrize(
    "definition", [{"era": "modern"}, {"era": "legacy"}, {"is_single_process": True}], ids=str
)
async def test_definition_may_rule_out_the_second_connection(
    autojump_clock: MockClock, tmp_path: Path, definition: dict[str, Any]
) -> None:
    async with living(tmp_path, spec=attrs.evolve(SPEC, **definition)) as world:
        assert await world.use("client") is world.server
        assert len(world.script.starts) == 1


@pytest.mark.parametrize(
    "second",
    [Life(modern=True), Life(exits_at="initialize"), Life(lasts=0), OSError("it runs already")],
    ids=["modern only", "exits when asked", "exits", "cannot be started"],
)
async def test_failed_handshake_is_remembered_for_the_process(
    autojump_clock: MockClock, tmp_path: Path, second: Life | Exception
) -> None:
    """Clients are served over the server's own connection, and only its next process is tried again."""
    async with living(tmp_path, DUAL, second, DUAL) as world:
        found: list[ManagedServer] = []

        async def use(client: int) -> None:
            found.append(await world.use(client))

        async with trio.open_nursery() as nursery:
            for client in range(3):
                nursery.start_soon(use, client)
        assert found == [world.server] * 3
        assert len(world.script.starts) == 2
        assert trio.current_time() - world.script.starts[1] < 10
        assert await world.use("later") is world.server
        assert world.server.companion_refusal
        assert world.server.trace.steps[-1].step == "connection 2"
        await trio.testing.wait_all_tasks_blocked()
        assert world.running == []
        assert len(world.server.status().connections) == 1
        world.server.reconnect()
        assert isinstance(await world.use("later"), LegacyCompanion)


@pytest.mark.parametrize("modern_client", [False, True])
async def test_next_daemon_starts_one_process_if_all_clients_are_legacy(
    autojump_clock: MockClock, tmp_path: Path, modern_client: bool
) -> None:
    """The legacy process serves them all. A modern client gets what it would get directly, from then on."""
    store = StateFile(tmp_path / "state", tmp_path / "cache")
    async with living(tmp_path, store=store) as world:
        await world.server.wait_settled()
        world.companions.open_for("client", ASKABLE, [world.server])
        assert world.server.companion is not None, "no call is needed"
        await world.companion()
        if modern_client:
            world.server.note_modern_client()
    async with living(tmp_path, store=store) as world:
        used = await world.use("client")
        assert used.upstream is not None
        assert (used is world.server, used.upstream.era) == (not modern_client, "legacy")
        assert len(world.script.starts) == 1 + modern_client
        world.server.note_modern_client()
        world.server.reconnect()
        assert await world.use("client") is used, "what the process knows is kept while the daemon runs"
    async with living(tmp_path, store=store) as world:
        assert await world.use("client") is not world.server


async def test_second_connection_ends_hours_after_its_last_client(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless another has come meanwhile."""
    monkeypatch.setattr(connections, "LINGER_SECONDS", LINGER_SECONDS)  # hours of health checks take long
    async with living(tmp_path) as world:
        companion = await world.companion("one")
        await world.companion("two")
        world.companions.on_client_left("one")
        world.companions.on_client_left("stranger")
        await trio.sleep(LINGER_SECONDS * 2)
        assert world.companions.used_by("two") == [companion]
        world.companions.on_client_left("two")
        await trio.sleep(LINGER_SECONDS - 1)
        assert await world.companion("three") is companion
        await trio.sleep(LINGER_SECONDS)
        tasks = len(world.nursery.child_tasks)
        for number in range(100):  # as by a script that calls mcpd in a loop
            await world.companion(number)
            world.companions.on_client_left(number)
        world.companions.on_client_left("three")
        assert len(world.nursery.child_tasks) <= tasks + 1
        await trio.sleep(LINGER_SECONDS - 1)
        assert world.running == [companion]
        await trio.sleep(2)
        assert world.running == []
        assert world.server.companion is None
        assert world.server.state is ServerState.CONNECTED
        assert len(world.server.status().connections) == 1
        assert await world.companion("four") is not companion
        assert len(world.script.starts) == 3


async def test_second_connection_follows_the_server(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It ends when the server is disconnected, disabled or removed, and is restarted with it."""
    async with living(tmp_path) as world:
        companion = await world.companion()
        for off, on in (
            (ManagedServer.disconnect, ManagedServer.connect),
            (partial(ManagedServer.set_enabled, on=False), partial(ManagedServer.set_enabled, on=True)),
        ):
            off(world.server)
            await world.server.wait_settled()
            assert (companion.child, companion.state) == (None, ServerState.DISABLED)
            with pytest.raises(NotReady, match="it is disabled"):
                await world.use("client")
            on(world.server)
            assert await world.companion() is companion
        starts = len(world.script.starts)
        world.server.reconnect()
        assert await world.companion() is companion
        await world.server.wait_settled()
        assert len(world.script.starts) == starts + 2
        await world.apply()
        await trio.testing.wait_all_tasks_blocked()
        assert companion.is_closed
        assert companion.child is None


async def test_second_process_is_restarted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """While it is down, its clients use the first one."""
    async with living(tmp_path, DUAL, attrs.evolve(DUAL, lasts=100), DUAL) as world:
        companion = await world.companion()
        await trio.sleep(101)
        assert companion.state is ServerState.FAILED
        second = world.server.status().connections[1]
        assert second.last_error is not None
        assert world.server.status().warnings == (
            "the second connection failed: exited with status 1; until it is back, all clients use the first",
        )
        assert await world.use("client") is world.server
        assert world.companions.used_by("client") == [companion]
        await trio.sleep(40)
        assert await world.use("client") is companion
        assert world.server.status().connections[1].restarts == 1
        assert world.server.status().restarts == 0
        assert world.server.status().warnings == ()


async def test_announced_change_of_a_list_reaches_the_clients(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The lists that a new connection starts with are no change."""
    names = ["echo"]
    life = Life(dual=True, lists=lambda: names, capabilities={"tools": {"listChanged": True}})
    async with living(tmp_path, life) as world:
        heard: list[str] = []
        world.nursery.start_soon(world.use, "client")
        while world.server.companion is None:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)
        companion = world.server.companion
        companion.notifications.add(lambda notification: heard.append(notification.method))
        assert await world.use("client") is companion
        assert heard == []
        names.append("another")
        world.script.talk({"method": "notifications/tools/list_changed"})
        await trio.sleep(1)
        assert heard == ["notifications/tools/list_changed"]
        assert not [event for event in world.events if event.kind is EventKind.TOOLS and ":" in event.message]
