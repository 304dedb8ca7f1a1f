"""The call log: what is recorded of a call, and that it stays small and delays nobody."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcpd.calls.stages.call_log import (
    MAX_PER_SECOND,
    MAX_WAITING_BYTES,
    CallLog,
    CallLogStageFactory,
    server_label,
)
from mcpd.files.rotated import older
from mcpd.model.advice import temporary_name
from mcpd.model.errors import InvalidArguments
from mcpd.model.events import CallLogLevel, CallOutcome, CallsParams
from mcpd.model.server_spec import RemoteSpec, StdioSpec
from mcpd.privacy.redact import Redactor
from mcpd.state.clients import program_name
from tests.calls.test_cache_stage import answer, read
from tests.calls.test_engine import put, sent
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import NAME, Script, World, world

SECRET = "sk-123456789"


class AlwaysOn(CallLogStageFactory):
    """Leaves the level as a test has set it."""

    def is_enabled(self, *_: object) -> bool:
        return True


def knowing(secret: str) -> Redactor:
    redactor = Redactor()
    redactor.add([secret])
    return redactor


@asynccontextmanager
async def logged(
    path: Path, level: CallLogLevel = CallLogLevel.CALLS, **spec: Any
) -> AsyncIterator[tuple[World, CallLog]]:
    log = CallLog(path, knowing(SECRET))
    async with world(**spec) as w:
        log.level = level
        routes = w.gateway.calls.routes
        routes._factories = [*routes._factories, AlwaysOn(log)]
        w.gateway.call_log = log
        yield w, log


async def outcomes(log: CallLog, **params: Any) -> list[str]:
    return [record.outcome.value for record in await log.read(CallsParams(**params))]


async def test_each_end_of_a_call_is_recorded(tmp_path: Path) -> None:
    async with logged(tmp_path / "calls") as (w, log):
        user, script = w.user("legacy", {}), Script(w)
        calls = [put(user, name=f"tool-{n}") for n in range(3)]
        ids = [int(call.key) for call in user.session.calls.values()]
        w._say({"id": ids[0], "result": {"content": []}})
        w._say({"id": ids[1], "result": {"content": [], "isError": True}})
        w._say({"id": ids[2], "error": {"code": -32603, "message": f"no {SECRET}"}})
        cancelled = script.call("gone")
        script.cancel(cancelled)
        put(user, "resources/read", uri="file:///x")
        w.lose()
        records = await log.read(CallsParams())
    assert all(call.answers for call in calls)
    assert [(record.outcome.value, record.method, record.name) for record in records] == [
        ("ok", "tools/call", "tool-0"),
        ("tool-error", "tools/call", "tool-1"),
        ("error", "tools/call", "tool-2"),
        ("cancelled", "tools/call", "gone"),
        ("failed", "resources/read", "file:///x"),
    ]
    assert {record.server for record in records} == {NAME}
    assert records[2].message == "no ***"
    assert records[4].code == "link_lost"
    assert (records[3].via, records[3].pid) == ("control", 4711)
    assert all(record.digest and record.request_bytes for record in records)
    assert records[0].response_bytes > 0
    assert {record.arguments for record in records} == {""}


async def test_answer_from_the_cache_is_recorded_as_such(tmp_path: Path) -> None:
    """Also that to a request which has waited for an equal one."""
    async with logged(tmp_path / "calls", version=MODERN) as (w, log):
        first, other = w.user("modern"), w.user("modern")
        read(first)
        read(other)
        answer(w, sent(w)[0])
        await trio.testing.wait_all_tasks_blocked()
        read(other)
        records = await log.read(CallsParams())
    assert [(record.cached, record.response_bytes > 0) for record in records] == [
        (False, True),
        (True, False),
        (True, False),
    ]


async def test_names_are_masked(tmp_path: Path) -> None:
    """Of the tool, the resource, the method and the client, also where they are cut."""
    long = f"{SECRET} " * 1364 + SECRET
    async with logged(tmp_path / "calls", CallLogLevel.CONTENTS) as (w, log):
        user = w.user("legacy", {})
        user.session.client = msgspec.structs.replace(user.session.client, name=f"my {SECRET}")
        for name in (SECRET, long):
            put(user, name=name)
        for uri in (f"db://x?key={SECRET}", f"db://x/%73{SECRET[1:]}", f"db://{long}"):
            put(user, "resources/read", uri=uri)
        put(user, f"x/{SECRET}")
        put(user, name="t", arguments={"key": SECRET * 1364})
        w.lose()
        records = await log.read(CallsParams())
    assert len(records) == 7
    written = (tmp_path / "calls").read_text()
    assert SECRET[:4] not in written, [line for line in written.splitlines() if SECRET[:4] in line]
    assert SECRET[1:] not in written
    assert {record.client for record in records} == {"my ***"}


async def test_contents_are_masked_and_cut(tmp_path: Path) -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    async with logged(tmp_path / "calls", CallLogLevel.CONTENTS) as (w, log):
        user = w.user("legacy", {})
        put(user, name="t", arguments={"key": SECRET, "long": "x" * 10_000}, _meta=trace)
        (call,) = user.session.calls.values()
        w._say({"id": int(call.key), "result": {"content": [{"type": "text", "text": SECRET}]}})
        (record,) = await log.read(CallsParams())
    assert record.trace == "ab" * 16
    assert '"key": "***"' in record.arguments
    assert "***" in record.result
    assert len(record.arguments) == 4096
    assert SECRET not in (tmp_path / "calls").read_text()


async def test_records_are_selected_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    async with logged(path) as (w, log):
        script = Script(w)
        for name in "a", "b", "a":
            w._say({"id": script.call(name) and w.wire.last_id, "result": {"content": []}})
        await log.read(CallsParams())
    with path.open("ab") as file:
        file.write(
            b"\x00garbage\n[]\n" + b'{"at":"2999-01-01T00:00:00.000Z","outcome":"ok","name":"z"}\n{"at"'
        )
    again = CallLog(path, Redactor())
    assert [record.name for record in await again.read(CallsParams())] == ["a", "b", "a", "z"]
    assert [record.name for record in await again.read(CallsParams(limit=2))] == ["a", "z"]
    assert await outcomes(again, name="a") == ["ok", "ok"]
    assert await outcomes(again, server="other") == []
    assert await outcomes(again, failed=True) == []
    assert await outcomes(again, since="2998-01-01T00:00:00Z") == ["ok"]
    with pytest.raises(InvalidArguments, match="since"):
        await again.read(CallsParams(since="yesterday"))


async def test_client_in_a_loop_does_not_push_out_the_others(
    mock_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with logged(tmp_path / "calls") as (w, log):
        user = w.user("legacy", {})
        put(user, name="t")
        (call,) = user.session.calls.values()
        log._make_room()
        for _ in range(MAX_PER_SECOND + 5):
            log.ended(call, CallOutcome.OK, b"")
        await log.read(CallsParams())  # makes no more room than the time that has passed
        log.ended(call, CallOutcome.FAILED, b"")
        for seconds, outcome in (0.5, CallOutcome.CANCELLED), (2, CallOutcome.TOOL_ERROR):
            mock_clock.jump(seconds)
            await log.flush()
            for _ in range(MAX_PER_SECOND):
                log.ended(call, outcome, b"")
        records = await log.read(CallsParams(limit=5000))
    kept = Counter(record.outcome.value for record in records)
    assert kept["ok"] == kept["tool-error"] == MAX_PER_SECOND
    assert (kept["failed"], kept["cancelled"]) == (0, MAX_PER_SECOND / 2)
    assert sum(record.count for record in records) == 3 * MAX_PER_SECOND + 6


async def test_stalled_disk_delays_no_call_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr("mcpd.calls.stages.call_log.append_lines", lambda *_: hang.wait(60))
    async with logged(tmp_path / "calls") as (w, log), trio.open_nursery() as nursery:
        user = w.user("legacy", {})
        put(user, name="t", arguments={"long": "x" * 20_000})
        (call,) = user.session.calls.values()
        log.ended(call, CallOutcome.OK, b"")
        nursery.start_soon(log.flush)
        await trio.testing.wait_all_tasks_blocked()
        log.room = 2000  # as if they came in two seconds
        for _ in range(2000):
            log.ended(call, CallOutcome.OK, b"")
        assert log._waiting_bytes < MAX_WAITING_BYTES + 20_000
        assert log.omitted > 1000
        hang.set()


async def test_full_disk_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with logged(tmp_path / "file" / "calls") as (w, log):
        put(w.user("legacy", {}), name="t")
        w.lose()
        assert await outcomes(log) == []
        assert log.dropped == 1


async def test_files_are_rotated_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.calls.stages.call_log.MAX_FILE_SIZE", 1000)
    path = tmp_path / "calls"
    async with logged(path) as (w, log):
        user = w.user("legacy", {})
        put(user, name="t")
        (call,) = user.session.calls.values()
        for _ in range(20):
            log.ended(call, CallOutcome.OK, b"")
            await log.read(CallsParams())
        records = await log.read(CallsParams())
    assert 3 < len(records) < 20
    for file in path, older(path):
        assert file.stat().st_size <= 1000
        assert file.stat().st_mode & 0o777 == 0o600
        assert all(json.loads(line)["name"] == "t" for line in file.read_text().splitlines())
    assert not older(path, 2).exists()
    async with logged(path) as (w, log):  # `callLogSize` keeps more files
        log.older_files = 30
        user = w.user("legacy", {})
        put(user, name="t")
        (call,) = user.session.calls.values()
        for _ in range(20):
            log.ended(call, CallOutcome.OK, b"")
            await log.read(CallsParams())
        assert len(await log.read(CallsParams(limit=30))) >= 20


async def test_switched_off_log_records_nothing(tmp_path: Path) -> None:
    async with logged(tmp_path / "calls", CallLogLevel.OFF) as (w, log):
        routes = w.gateway.calls.routes
        routes._factories = [*routes._factories[:-1], CallLogStageFactory(log)]
        loaded: Any = w.gateway.core.config.loaded
        others = {**vars(loaded.settings), "otlp_endpoint": "", "call_log_size": 8}
        loaded.settings = SimpleNamespace(**others, call_log=CallLogLevel.OFF)
        put(w.user("legacy", {}), name="t")
        w.lose()
        assert await outcomes(log) == []
        loaded.settings = SimpleNamespace(**others, call_log=CallLogLevel.CALLS)
        w.connect()
        put(w.user("legacy", {}), name="t")
        w.lose()
        assert await outcomes(log) == ["failed"]


async def test_name_of_a_client_that_has_exited_is_known(tmp_path: Path) -> None:
    """`mcpctl call` exits as soon as it has the result, before the record is made."""
    async with logged(tmp_path / "calls") as (w, log):
        program = await trio.lowlevel.open_process(["sleep", "1000"])
        try:
            with trio.fail_after(30):
                while program_name(program.pid) != "sleep":  # its exec may not be complete yet
                    await trio.lowlevel.checkpoint()
            script = Script(w, program.pid)
            script.call("t")
        finally:
            program.kill()
            await program.wait()
        (key,) = script.caller.calls
        w._say({"id": int(script.caller.calls[key].key), "result": {"content": []}})
        (record,) = await log.read(CallsParams())
    assert (record.client, record.pid) == ("sleep", program.pid)


def test_server_of_try_is_recorded_by_its_url_or_command_without_secrets() -> None:
    """It is gone when somebody reads the log, and its name says nothing."""
    name = temporary_name(7)
    command = StdioSpec(name=name, command="uvx", args=("mcp server", "--token", "hunter22", "-v"))
    assert server_label(command) == "uvx 'mcp server' --token '***' -v"
    remote = RemoteSpec(name=name, kind="http", url="https://me:hunter22@a.example/mcp?api_key=hunter22&x=1")
    assert server_label(remote) == "https://me:***@a.example/mcp?api_key=***&x=1"
    assert server_label(attrs.evolve(remote, name="try-it")) == "try-it"
