"""The set of servers: desired state, plans, and changes that affect only the changed servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcpd.model.errors import NotReady
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import ServerState
from mcpd.state.history import acting_for
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor import Supervisor
from tests.supervision.peer import Life, Script, scripted, surroundings


@attrs.define(eq=False)
class Set:
    supervisor: Supervisor
    scripts: dict[str, Script]
    events: list[Event]

    def spec(self, name: str, *args: str) -> StdioSpec:
        self.scripts.setdefault(name, Script([Life()]))
        return StdioSpec(name=name, command="/bin/sh", args=args, era="legacy")

    async def apply(self, *specs: StdioSpec) -> None:
        generation, _ = self.supervisor.set_desired({spec.name: spec for spec in specs})
        await self.supervisor.wait_applied(generation)
        await trio.sleep(1)

    def starts(self) -> dict[str, int]:
        return {name: len(script.starts) for name, script in self.scripts.items()}


@asynccontextmanager
async def supervising(home: Path) -> AsyncIterator[Set]:
    events: list[Event] = []
    scripts: dict[str, Script] = {}
    supervisor = Supervisor(surroundings(home, events.append))
    with scripted(scripts):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            yield Set(supervisor, scripts, events)
            nursery.cancel_scope.cancel()


async def test_only_changed_servers_are_restarted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Unchanged servers keep their process, changed ones get a new one, and removals are announced."""
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("kept"), world.spec("changed"), world.spec("removed"))
        kept = world.supervisor.get("kept")
        plan = world.supervisor.plan(
            {"kept": world.spec("kept"), "changed": world.spec("changed", "-x"), "new": world.spec("new")}
        )
        assert (plan.added, plan.removed, plan.changed, plan.unchanged) == (
            ("new",),
            ("removed",),
            ("changed",),
            ("kept",),
        )
        assert world.starts()["new"] == 0  # a plan changes nothing
        await world.apply(world.spec("new"), world.spec("kept"), world.spec("changed", "-x"))
        assert world.supervisor.get("kept") is kept
        assert world.starts() == {"kept": 1, "changed": 2, "removed": 1, "new": 1}
        assert [server.spec.name for server in world.supervisor.servers()] == ["new", "kept", "changed"]
        assert all(server.state is ServerState.CONNECTED for server in world.supervisor.servers())
        (removal,) = (event for event in world.events if event.kind is EventKind.REMOVED)
        assert (removal.server, removal.message, removal.by) == (
            "removed",
            "no longer in the configuration",
            "",
        )


async def test_removal_says_who_requested_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The server is stopped by another task, later."""
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("kept"), world.spec("removed"))
        with acting_for(lambda: "mcpctl (pid 7)"):
            generation, _ = world.supervisor.set_desired({"kept": world.spec("kept")})
        with acting_for(lambda: "somebody else"):
            world.supervisor.set_desired({"kept": world.spec("kept")})
        await world.supervisor.wait_applied(generation)
        removals = [(event.server, event.by) for event in world.events if event.kind is EventKind.REMOVED]
        assert removals == [("removed", "mcpctl (pid 7)")]


async def test_definition_with_the_same_identity_is_applied_without_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A new timeout does not restart the process."""
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("it"))
        await world.apply(attrs.evolve(world.spec("it"), exclude_tools=("echo",)))
        assert world.starts() == {"it": 1}
        assert world.supervisor.get("it").status().tools == 0
        await world.apply(attrs.evolve(world.spec("it"), enabled=False))
        assert world.supervisor.get("it").state is ServerState.DISABLED


async def test_superseded_set_is_skipped(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Only the last of ten thousand desired sets is applied."""
    async with supervising(tmp_path) as world:
        for n in range(10_000):
            world.supervisor.set_desired({f"server-{n % 7}": world.spec(f"server-{n % 7}", str(n))})
        generation, _ = world.supervisor.set_desired({"last": world.spec("last")})
        await world.supervisor.wait_applied(generation)
        assert generation == 10_001
        assert [server.spec.name for server in world.supervisor.servers()] == ["last"]
        assert sum(world.starts().values()) <= 1


async def test_bug_in_one_server_task_does_not_affect_others(
    autojump_clock: MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each bug is logged with its traceback, and the server's task restarts after a second."""
    sound, broken = ManagedServer.run, [True, True]

    async def run(self: ManagedServer) -> None:
        if self.spec.name == "buggy" and broken:
            broken.pop()
            raise ZeroDivisionError("injected")
        await sound(self)

    monkeypatch.setattr(ManagedServer, "run", run)
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("buggy"), world.spec("calm"))
        assert world.supervisor.get("calm").state is ServerState.CONNECTED
        assert world.supervisor.get("buggy").state is ServerState.PENDING
        await trio.sleep(2)
        assert world.supervisor.get("buggy").state is ServerState.CONNECTED
    reports = [record for record in caplog.records if record.exc_info]
    assert len(reports) == 2
    assert "buggy: an error in mcpd itself" in reports[0].message


async def test_waiter_for_a_removed_server_gets_an_error(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The error is immediate; the waiter does not wait for the handshake timeout."""
    refused: list[NotReady] = []

    async def wait(server: ManagedServer) -> None:
        with pytest.raises(NotReady, match="removed or its definition changed") as caught:
            await server.wait_ready()
        refused.append(caught.value)

    async with supervising(tmp_path) as world:
        world.scripts["mute"] = Script([Life(mute=True)])
        world.supervisor.set_desired({"mute": world.spec("mute")})
        await trio.sleep(1)
        server = world.supervisor.get("mute")
        assert server.state is ServerState.PENDING
        began = trio.current_time()
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, server)
                nursery.start_soon(server.wait_settled)
                await trio.sleep(1)
                await world.apply()
        assert trio.current_time() - began < 5
        assert len(refused) == 1
        announced = len(world.events)
        await wait(server)
        assert len(world.events) == announced, "a removed server announces nothing"


async def test_enabled_setting_survives_a_daemon_restart(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A server disabled by the user stays disabled, even if the definition enables it."""
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("it"))
        server = world.supervisor.get("it")
        server.set_enabled(False)
        await trio.sleep(1)
        assert server.state.value == "disabled"
        assert world.supervisor._context.store.is_enabled("it") is False
        again = ManagedServer(world.spec("it"), world.supervisor._context)
        assert not again._desired.enabled
        server.set_enabled(True)
        await trio.sleep(1)
        assert server.state.value == "connected"


async def test_bug_in_one_servers_construction_does_not_affect_others(
    autojump_clock: MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server is left out, which its history says, and is started when a set is applied again."""
    sound, broken = ManagedServer.__init__, ["buggy"]

    def init(self: ManagedServer, spec: StdioSpec, *more: Any, **named: Any) -> None:
        if spec.name in broken:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "injected")
        sound(self, spec, *more, **named)

    monkeypatch.setattr(ManagedServer, "__init__", init)
    async with supervising(tmp_path) as world:
        await world.apply(world.spec("first"), world.spec("buggy"), world.spec("last"))
        assert [server.spec.name for server in world.supervisor.servers()] == ["first", "last"]
        assert world.starts() == {"first": 1, "buggy": 0, "last": 1}
        (announced,) = (event for event in world.events if event.kind is EventKind.CONFIG)
        assert announced.server == "buggy"
        assert [
            record.exc_info is not None for record in caplog.records if "buggy" in record.getMessage()
        ] == [True]
        await world.apply(world.spec("first"), world.spec("last"))  # it was never there
        broken.clear()
        await world.apply(world.spec("first"), world.spec("buggy"))
        assert world.starts() == {"first": 1, "buggy": 1, "last": 1}
        assert world.supervisor.get("buggy").state is ServerState.CONNECTED
