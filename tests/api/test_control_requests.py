"""The control API on one connection: a failing request gets its error, and the others continue."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.api.control import requests as control_requests
from mcpd.api.control.methods import METHODS, Method, decode_params
from mcpd.api.control.requests import MAX_RUNNING
from mcpd.model import api
from mcpd.model.errors import InvalidArguments
from mcpd.wire import message as wire

CORE = SimpleNamespace(is_stopping=False)


def broken(*_: object) -> object:
    raise KeyError("a bug")


async def broken_later(*_: object) -> object:
    await trio.lowlevel.checkpoint()
    return broken()


def connection(sent: list[bytes], nursery: trio.Nursery) -> control_requests.ControlRequests:
    engine = SimpleNamespace(cancel_all=lambda calls, reason: None)
    around: Any = SimpleNamespace(core=CORE, calls=engine, finish=sent.append, describe=lambda: "a test")
    return control_requests.ControlRequests(
        around,
        around,
        around,
        7,
        lambda work, name: nursery.start_soon(work, name=name),
        lambda view, client: None,
    )


@pytest.mark.parametrize("where", ["at once", "later", "call"])
async def test_bug_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The connection and the client's other requests are not affected."""
    later = broken_later if where == "later" else None
    method = Method("", api.NoParams, "", handler=later or broken)
    monkeypatch.setattr(control_requests, "METHODS", {**METHODS, "mcpd/broken": method})
    monkeypatch.setattr(control_requests, "read_call", broken)
    sent: list[bytes] = []
    async with trio.open_nursery() as nursery:
        asked = connection(sent, nursery)
        if where == "call":
            asked.receive(wire.parse(b'{"jsonrpc":"2.0","id":"x","method":"mcpd/call"}'))
        else:
            asked.receive(wire.parse(b'{"jsonrpc":"2.0","id":"x","method":"mcpd/broken"}'))
        await trio.testing.wait_all_tasks_blocked()
    (answer,) = map(json.loads, sent)
    assert (answer["id"], answer["error"]["code"]) == ("x", -32603)
    assert "see its log" in answer["error"]["message"]
    assert answer["error"]["data"].get("may_have_run") == (True if where == "call" else None)
    assert "a bug" in caplog.text
    assert not asked.is_busy
    caplog.clear()


async def test_malformed_call_has_not_run() -> None:
    """As every error of a call says."""
    sent: list[bytes] = []
    async with trio.open_nursery() as nursery:
        connection(sent, nursery).receive(
            wire.parse(b'{"id":1,"method":"mcpd/call","params":{"server":"s"}}')
        )
    (answer,) = map(json.loads, sent)
    assert answer["error"]["data"]["may_have_run"] is False


async def test_streams_and_requests_in_progress_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error that names the limit; a cancelled one makes room."""

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    waits = Method("", api.NoParams, "", handler=never)
    monkeypatch.setattr(control_requests, "METHODS", {**METHODS, "mcpd/waits": waits})
    monkeypatch.setitem(control_requests._STREAMS, "mcpd/events", never)  # type: ignore[index, unused-ignore]
    sent: list[bytes] = []
    async with trio.open_nursery() as nursery:
        asked = connection(sent, nursery)

        def ask(number: int, method: str) -> None:
            asked.receive(wire.parse(b'{"id":%d,"method":"%b"}' % (number, method.encode())))

        def refusals() -> list[str]:
            texts = [json.loads(each)["error"]["message"] for each in sent]
            sent.clear()
            return texts

        for number in range(MAX_RUNNING):
            ask(number, "mcpd/events" if number % 2 else "mcpd/waits")
        assert refusals() == []
        ask(9000, "mcpd/waits")
        (text,) = refusals()
        assert f"at most {MAX_RUNNING} requests" in text
        asked.handle_cancelled(wire.parse(b'{"method":"x","params":{"requestId":3}}'))
        ask(9001, "mcpd/events")
        assert refusals() == []
        asked.cancel_all("over")
        await trio.testing.wait_all_tasks_blocked()
        assert not asked.is_busy


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("/home/größe", True),
        ("/a\udcff", True),
        ("", False),
        ("a/b", False),
        ("/a\0", False),
        ("/\ud800", False),
        ("/" * 5000, False),
    ],
)
def test_directory_of_a_client_is_used_only_if_it_can_exist(text: str, usable: bool) -> None:
    """A relative one made every `roots/list` of a shared server fail."""
    assert control_requests._usable_directory(text) == (text if usable else "")


@pytest.mark.parametrize("method", METHODS)
def test_unknown_parameters_are_rejected_with_their_path(method: str) -> None:
    """Ignoring a misspelt option would silently use its default."""
    with pytest.raises(InvalidArguments) as refused:
        decode_params(method, {"no_such_thing": 1}, METHODS[method].params)
    assert any("no_such_thing" in problem.message for problem in refused.value.problems)
