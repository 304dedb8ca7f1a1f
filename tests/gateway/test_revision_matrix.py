"""Every client revision with every server revision: all features, and every message valid in its revision.

`McpClient` checks what a client receives. What a server receives is recorded by the server and checked here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Daemon, Json, fake, wait_until
from tests.gateway.mcp_client import MODERN, VERSIONS, McpClient
from tests.gateway.valid import complaints_of_server

FORM: Json = {
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
SAMPLING: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Who are you?"}}],
    "maxTokens": 10,
}
ANSWERS: dict[str, Json] = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "Ada"},
        "model": "none",
    },
    "roots/list": {"roots": [{"uri": "file:///ada", "name": "Ada"}]},
}
FIRST_WITH_ELICITATION = "2025-06-18"
FIRST_WITH_PROGRESS_MESSAGE = "2025-03-26"
PAIRS = [*itertools.product(VERSIONS, VERSIONS)]
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions", "--subscribable")
_LEVEL = "io.modelcontextprotocol/logLevel"


def speaking(version: str, record: Path) -> Json:
    era = ("modern",) if version == MODERN else ("legacy", "--versions", version)
    return fake("--era", *era, *EVERYTHING, "--record", str(record))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[Daemon]:
    """One daemon with a server of each revision, named by it; the tests do not disturb each other."""
    servers = {version: speaking(version, home / version) for version in VERSIONS}
    with harness.running(home, servers) as running:
        running.wait_connected(*VERSIONS)
        yield running


@pytest.fixture
def server(request: pytest.FixtureRequest, home: Path) -> Iterator[str]:
    """The name of a server. Whatever it receives during the test must be valid in its revision."""
    version: str = request.param
    known = len(recorded(home, version))
    yield version
    messages = recorded(home, version)
    asked = {
        message["id"]: message.get("method", "")
        for way, message in messages
        if way == "out" and "id" in message
    }
    received = [message for way, message in messages[known:] if way == "in"]
    assert received
    for message in received:
        method = "" if "method" in message else asked[message["id"]]
        assert complaints_of_server(version, message, method) == [], message


def recorded(home: Path, version: str) -> list[tuple[str, Json]]:
    """Return what a server has received (`in`) and sent (`out`) so far, complete lines only."""
    *lines, _ = (home / version).read_text().split("\n")
    return [(line.partition(" ")[0], json.loads(line.partition(" ")[2])) for line in lines]


def answer(method: str, params: Json) -> Json:
    return ANSWERS[method]


def attach(daemon: Daemon, version: str, server: str) -> McpClient:
    return McpClient(daemon, version, server=server, answer=answer)


def ask(client: McpClient, method: str, params: Json | None = None) -> Json:
    """Have the server ask the client during a call, and return the answer that the server got."""
    given = {"method": method} if params is None else {"method": method, "params": params}
    answered: Json = json.loads(client.call("ask", given))
    return answered


every_pair = pytest.mark.parametrize(("client", "server"), PAIRS, indirect=["server"])


@every_pair
def test_lists_and_calls(daemon: Daemon, client: str, server: str) -> None:
    assert daemon.status(server)["protocol_version"] == server
    mcp = attach(daemon, client, server)
    assert "echo" in [tool["name"] for tool in mcp.request("tools/list")["tools"]]
    assert mcp.request("resources/read", uri="fake://one")["contents"][0]["text"] == "one"
    assert mcp.request("resources/list")["resources"]
    assert mcp.request("resources/templates/list")["resourceTemplates"]
    assert mcp.request("prompts/list")["prompts"]
    assert mcp.request("prompts/get", name="hello")["messages"]
    reference = {"type": "ref/prompt", "name": "hello"}
    completed = mcp.request("completion/complete", ref=reference, argument={"name": "x", "value": "o"})
    assert completed["completion"]["values"] == ["one"]
    assert json.loads(mcp.call("echo", {"a": [1, 2.5, "ü"]})) == {"a": [1, 2.5, "ü"]}


@every_pair
def test_progress(daemon: Daemon, client: str, server: str) -> None:
    """With the client's own token. The first revision does not know `message`."""
    mcp = attach(daemon, client, server)
    more = {"message": "a step"} if server >= FIRST_WITH_PROGRESS_MESSAGE else {}
    arguments = {"total": 0.3, "more": more}
    mcp.wait(mcp.send("tools/call", name="progress", arguments=arguments, _meta={"progressToken": "tok-é"}))
    steps = [note["params"] for note in mcp.heard if note["method"] == "notifications/progress"]
    assert {each["progressToken"] for each in steps} == {"tok-é"}
    assert len(steps) >= 3
    assert [each["progress"] for each in steps] == sorted({each["progress"] for each in steps})
    expected = more.get("message") if client >= FIRST_WITH_PROGRESS_MESSAGE else None
    assert {each.get("message") for each in steps} == {expected}


@every_pair
def test_sampling(daemon: Daemon, client: str, server: str) -> None:
    mcp = attach(daemon, client, server)
    assert ask(mcp, "sampling/createMessage", SAMPLING)["result"] == ANSWERS["sampling/createMessage"]
    (params,) = [params for method, params in mcp.asked if method == "sampling/createMessage"]
    assert params["messages"][0]["content"]["text"] == "Who are you?"


@every_pair
def test_elicitation(daemon: Daemon, client: str, server: str) -> None:
    """Where the client's revision has no elicitation, the server gets an answer without content."""
    mcp = attach(daemon, client, server)
    if server < FIRST_WITH_ELICITATION:
        assert mcp.call("echo")  # it cannot ask
    elif client >= FIRST_WITH_ELICITATION:
        assert ask(mcp, "elicitation/create", FORM)["result"] == ANSWERS["elicitation/create"]
        (params,) = [params for method, params in mcp.asked if method == "elicitation/create"]
        assert params["message"].endswith("Your name?")
        assert params["requestedSchema"] == FORM["requestedSchema"]
    else:
        answered = ask(mcp, "elicitation/create", FORM)["result"]
        assert answered == {"action": "cancel" if server == MODERN else "decline"}


@every_pair
def test_roots(daemon: Daemon, client: str, server: str) -> None:
    mcp = attach(daemon, client, server)
    assert ask(mcp, "roots/list")["result"]["roots"][0]["uri"] == "file:///ada"


@every_pair
def test_cancellation(daemon: Daemon, client: str, server: str) -> None:
    """The server learns of it, and the client does not get an answer that was sent meanwhile."""
    mcp = attach(daemon, client, server)
    before = len(json.loads(mcp.call("counts"))["cancelled"])
    key = mcp.send("tools/call", name="too_late", arguments={})
    wait_until(lambda: daemon.status(server)["in_flight"] == 1, lambda: "it was not sent")
    mcp.line.notify("notifications/cancelled", requestId=key, reason="changed my mind")
    wait_until(lambda: daemon.status(server)["in_flight"] == 0, lambda: "it was not cancelled")
    assert len(json.loads(mcp.call("counts"))["cancelled"]) == before + 1
    assert key not in mcp.line._answers


@every_pair
def test_logging(daemon: Daemon, client: str, server: str) -> None:
    """From the level on that the client has set."""
    mcp = attach(daemon, client, server)
    wanted = {"_meta": {_LEVEL: "info"}} if mcp.modern else {}
    if not mcp.modern:
        mcp.request("logging/setLevel", level="info")
    for level in ("debug", "warning"):
        arguments = {"level": level, "data": f"a {level}"}
        mcp.wait(mcp.send("tools/call", name="log", arguments=arguments, **wanted))
    lines = [note["params"] for note in mcp.heard if note["method"] == "notifications/message"]
    assert [(line["level"], line["data"]) for line in lines] == [("warning", "a warning")]


@every_pair
def test_subscriptions(daemon: Daemon, home: Path, client: str, server: str) -> None:
    """To a resource, and to the list of tools."""
    mcp, uri = attach(daemon, client, server), f"fake://{client}"
    if mcp.modern:
        wanted = {"resourceSubscriptions": [uri], "toolsListChanged": True}
        mcp.send("subscriptions/listen", notifications=wanted)
        received = mcp.wait_heard("notifications/subscriptions/acknowledged")
        assert received["params"]["notifications"] == wanted
    else:
        assert mcp.request("resources/subscribe", uri=uri) == {}
    wait_until(lambda: is_subscribed(home, server, uri), lambda: "the server was not asked")
    method = "notifications/resources/updated"
    mcp.call("notify", {"method": method, "params": {"uri": uri}})
    assert mcp.wait_heard(method)["params"]["uri"] == uri
    mcp.call("change")
    mcp.wait_heard("notifications/tools/list_changed")


def is_subscribed(home: Path, server: str, uri: str) -> bool:
    methods = ("subscriptions/listen", "resources/subscribe")
    return any(
        message.get("method") in methods and uri in json.dumps(message["params"])
        for way, message in recorded(home, server)
        if way == "in"
    )
