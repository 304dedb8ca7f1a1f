"""A program that answers what servers ask during its calls, and hears of log messages and changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcpd.client import CallTimedOut, Handlers, Mcp, ServerRefused, ToolFailed, Unknown, connect
from mcpd.client.sync import connect as connect_sync
from tests.client.test_client import run
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, fake
from tests.interop.peers import ROOT

__all__ = ["run", "start"]

Start = Any
Json = Mapping[str, Any]
FORM = {
    "message": "which?",
    "requestedSchema": {"type": "object", "properties": {"x": {"type": "string"}}},
}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}


async def ask(mcp: Mcp, method: str, params: Json | None = None, **options: Any) -> Any:
    given = {"method": method} if params is None else {"method": method, "params": params}
    return json.loads((await mcp.call("fs", "ask", given, **options)).output)


async def elicit(mcp: Mcp) -> Any:
    return (await ask(mcp, "elicitation/create", FORM))["result"]


@pytest.mark.parametrize(
    ("flags", "definition"), [((), {}), (("--era", "modern"), {}), ((), {"share": "client"})]
)
def test_program_answers_what_a_server_asks(
    start: Start, run: Any, flags: tuple[str, ...], definition: Json
) -> None:
    """By plain and by async functions, to servers of both eras. The daemon sees the calls of one client. A
    process of its own has the name that the program knows."""
    daemon = start({"fs": fake(*flags, **definition)})
    daemon.wait_connected("fs")
    asked: list[Json] = []
    answers: list[Json | None] = [{"x": "1"}, {"action": "cancel"}, {"action": "accept", "content": {}}, None]

    async def sample(params: Json) -> str:
        asked.append(params)
        await anyio.lowlevel.checkpoint()
        return "hello"

    def fill_in(params: Json) -> Json | None:
        asked.append(params)
        return answers.pop(0)

    handlers = Handlers(elicitation=fill_in, sampling=sample, roots=["/tmp", "file:///x"])

    async def work() -> None:
        async with connect(daemon.socket, client="agent", handlers=handlers) as mcp:
            assert await elicit(mcp) == {"action": "accept", "content": {"x": "1"}}
            assert asked[-1]["message"] == "[fs] which?"
            assert await elicit(mcp) == {"action": "cancel"}
            assert await elicit(mcp) == {"action": "accept", "content": {}}
            assert await elicit(mcp) == {"action": "decline"}
            sampled = (await ask(mcp, "sampling/createMessage", SAMPLE))["result"]
            assert sampled["content"] == {"type": "text", "text": "hello"}
            roots = (await ask(mcp, "roots/list"))["result"]["roots"]
            assert [each["uri"] for each in roots] == ["file:///tmp", "file:///x"]
            (client,) = (await mcp.connection.request("mcpd/clients"))["clients"]
            assert (client["name"], client["calls"]) == ("agent", 6)
            with pytest.raises(Unknown, match=r"^fs has no tool 'nope'; `mcpctl list-tools fs`"):
                await mcp.call("fs", "nope")
            with pytest.raises(ServerRefused, match=r"^fs: refused"):
                await mcp.call("fs", "error")
            with pytest.raises(CallTimedOut) as late:
                await mcp.call("fs", "drop", timeout=0.1)
            assert late.value.data["server"] == "fs"

    run(work)


def test_failing_handler_is_named_to_the_server(start: Start, run: Any) -> None:
    """It looks like no fault of the server, and nothing else fails."""
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")

    def broken(params: Json) -> Json:
        if params["message"] == "[fs] wrong type":
            return "Ada"  # type: ignore[return-value]
        raise KeyError("a bug of the program")

    async def work() -> None:
        async with connect(daemon.socket, handlers=Handlers(elicitation=broken, roots=broken)) as mcp:  # type: ignore[arg-type]
            error = (await ask(mcp, "elicitation/create", FORM))["error"]
            assert "the program's handler of elicitation/create failed: KeyError" in error["message"]
            error = (await ask(mcp, "elicitation/create", {**FORM, "message": "wrong type"}))["error"]
            assert "returned str, and not the content of the form" in error["message"]
            assert (await mcp.call("fs", "echo", {"a": 1})).output == '{"a": 1}'

    run(work)


def test_result_says_that_nobody_could_be_asked(start: Start) -> None:
    """Whoever makes the call without handlers learns that it is not the fault of the server."""
    daemon = start({"fs": fake("--era", "legacy"), "new": fake("--era", "modern")})
    daemon.wait_connected("fs", "new")
    with connect_sync(daemon.socket) as mcp:
        result = mcp.call("fs", "ask", {"method": "elicitation/create", "params": FORM})
        assert "the server asked for elicitation" in result.warnings[0]
        assert "handlers" in result.warnings[0]
        assert mcp.call("fs", "echo").warnings == ()
        with pytest.raises(ServerRefused, match=r"`mcpd\.client` with `handlers`"):
            mcp.call("new", "ask", {"method": "elicitation/create", "params": FORM})
    with connect_sync(daemon.socket, handlers=Handlers(elicitation=lambda params: {"x": "2"})) as mcp:
        answered = mcp.call("fs", "ask", {"method": "elicitation/create", "params": FORM})
        assert json.loads(answered.output)["result"]["content"] == {"x": "2"}


def test_question_ends_with_its_call(start: Start, run: Any) -> None:
    """The handler is cancelled when the call is, and at the end of the block. It may make calls itself."""
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")
    ended: list[str] = []

    async def work() -> None:
        is_asked, has_ended = anyio.Event(), anyio.Event()

        async def wait(params: Json) -> Json:
            try:
                ended.append((await mcp.call("fs", "echo", {})).output)
                is_asked.set()
                await anyio.sleep_forever()
            finally:
                ended.append("ended")
                has_ended.set()
            raise AssertionError

        mcp = await connect(daemon.socket, handlers=Handlers(elicitation=wait)).open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(elicit, mcp)
            await is_asked.wait()
            tasks.cancel_scope.cancel()
        await has_ended.wait()
        is_asked = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(elicit, mcp)
            await is_asked.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await mcp.close()
        assert ended == ["{}", "ended"] * 2

    run(work)


def test_log_messages_and_changes_arrive_in_order(start: Start, run: Any) -> None:
    """To functions of each kind. An async function for progress is awaited."""
    daemon = start({"fs": fake("--capabilities", "tools,logging")})
    daemon.wait_connected("fs")

    async def work() -> None:
        messages: list[Json] = []
        progress: list[float] = []
        changed, complete = anyio.Event(), anyio.Event()

        async def log(params: Json) -> None:
            await anyio.lowlevel.checkpoint()
            messages.append(params)
            if len(messages) == 3:
                complete.set()

        async def report(done: float, total: float | None, words: str) -> None:
            await anyio.lowlevel.checkpoint()
            progress.append(done)

        handlers = Handlers(log=log, log_level="warning", tools_changed=lambda: changed.set())
        async with connect(daemon.socket, handlers=handlers) as mcp:
            for level, data in (("error", 1), ("debug", 2), ("warning", 3), ("error", 4)):
                await mcp.call("fs", "log", {"level": level, "data": data})
            await complete.wait()
            assert [each["data"] for each in messages] == [1, 3, 4]
            await mcp.call("fs", "change")
            await changed.wait()
            await mcp.call("fs", "progress", {"total": 0.3}, progress=report)
            assert progress
            assert progress == sorted(progress)

    run(work)


def test_updates_of_resources_arrive_also_after_a_restart(start: Start, run: Any) -> None:
    """With the server of each, although both have the same URI. A program need not ask for anything."""
    flags = ("--capabilities", "tools,resources", "--subscribable")
    servers = {"one": fake(*flags), "two": fake(*flags)}
    daemon = start(servers)
    daemon.wait_connected("one", "two")
    change = {"method": "notifications/resources/updated", "params": {"uri": "fake://one"}}

    async def work() -> None:
        send, updates = anyio.create_memory_object_stream[tuple[str, str]](9)

        async def expect(*expected: str) -> None:
            assert [await updates.receive() for _ in expected] == [(each, "fake://one") for each in expected]

        handlers = Handlers(resource_updated=lambda server, uri: send.send_nowait((server, uri)))
        async with connect(daemon.socket, handlers=handlers, start=False) as mcp:
            await mcp.subscribe("two", "fake://one")
            for server in servers:
                await mcp.call(server, "notify", change)
            await expect("two")
            await mcp.subscribe("one", "fake://one")
            await anyio.to_thread.run_sync(daemon.stop)
            await anyio.to_thread.run_sync(partial(start, servers))
            await expect("one", "two")
            await mcp.unsubscribe("one", "fake://one")
            for server in servers:
                await mcp.call(server, "notify", change)
            await expect("two")
        async with connect(daemon.socket, handlers=Handlers()) as mcp:
            with pytest.raises(TypeError, match="resource_updated"):
                await mcp.subscribe("one", "fake://one")
        send.close()
        updates.close()

    run(work)


def test_everything_server_asks_the_program(start: Start, run: Any) -> None:
    """The reference server of the protocol's authors, over its own SDK."""
    name = "mcp-server-everything"
    program = shutil.which(name, path=str(ROOT / ".npm/node_modules/.bin"))
    if program is None:
        pytest.skip(f"{name} is not there: `make npm` installs it")
    daemon = start({"every": {"command": program}})
    daemon.wait_connected("every", bound=120)
    handlers = Handlers(
        elicitation=lambda params: {"name": "Ada", "check": True},
        sampling=lambda params: "a completion",
        roots=lambda: ["/tmp"],
        resource_updated=lambda server, uri: send.send_nowait((server, uri)),
    )
    send, updates = anyio.create_memory_object_stream[tuple[str, str]](99)

    async def work() -> None:
        async with connect(daemon.socket, handlers=handlers) as mcp:
            resource = (await mcp.list_resources())[0]
            await mcp.subscribe("every", resource.uri)
            await mcp.call("every", "toggle-subscriber-updates", timeout=BOUND)
            elicited = await mcp.call("every", "trigger-elicitation-request", timeout=BOUND)
            assert "Name: Ada" in elicited.output
            sampled = await mcp.call("every", "trigger-sampling-request", {"prompt": "hi"}, timeout=BOUND)
            assert "a completion" in sampled.output
            assert "file:///tmp" in (await mcp.call("every", "get-roots-list", timeout=BOUND)).output
            assert await updates.receive() == ("every", resource.uri)
        async with connect(daemon.socket) as mcp:
            with pytest.raises(ToolFailed, match="the server asked for sampling"):
                await mcp.call("every", "trigger-sampling-request", {"prompt": "hi"}, timeout=BOUND)
        send.close()
        updates.close()

    run(work)
