"""Rules limit how often, and how often at the same time, a client may use an item."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.calls.stages.use_limits import UseLimitStageFactory
from mcpd.model.policy import ClientFacts, RateLimit
from mcpd.wire import message as wire
from tests.calls.test_policies import CATALOG, KINDS, Client, apply, rule
from tests.gateway.model import Json, World, make_upstream, world
from tests.model.test_policy import LOOK_ALIKES

Clock = trio.testing.MockClock
TWICE = RateLimit(2, 60.0, "2/min")


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        made.server.catalog = CATALOG
        made.server.upstream = make_upstream(made.wire, tools={}, resources={"subscribe": True}, prompts={})
        yield made


def limit(**conditions: Any) -> Any:
    return rule("limit", **{"rate": TWICE, **conditions})


def use(client: Client, name: str = "get_issue") -> Json | None:
    return client.ask("tools/call", name=name, arguments={})


def assert_limited(answer: Json | None) -> None:
    assert answer is not None
    assert answer["error"]["data"]["code"] == "limit_reached", answer


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_rate_is_limited_in_any_period(autojump_clock: Clock, w: World, kind: Any) -> None:
    """The error names the rule, its place, and when to try again."""
    name = "get_issue" if kind.get("single", True) else "srv__get_issue"
    apply(w, limit(tools=("get_*",), reason="it costs money"))
    client = Client(w, **kind)
    assert use(client, name) is None
    await trio.sleep(30)
    assert use(client, name) is None
    answer = use(client, name)
    assert_limited(answer)
    assert answer is not None
    assert answer["error"]["message"] == (
        "srv: tool 'get_issue' was not used: the rule at $.settings.policies[0] limits this client to "
        "2/min (`rate`) (it costs money); try again in 30 s"
    )
    data = answer["error"]["data"]
    assert (data["rule"], data["retry_after"]) == ("$.settings.policies[0]", 30)
    assert data["may_have_run"] is False
    assert len(w.wire.frames) == 2
    await trio.sleep(30)
    assert use(client, name) is None
    assert_limited(use(client, name))
    assert use(client, name.replace("get_issue", "delete_repo")) is None, "each item is counted alone"


async def test_calls_at_the_same_time_are_limited_until_they_end(autojump_clock: Clock, w: World) -> None:
    apply(w, limit(rate=None, concurrent=2))
    client = Client(w)
    for key in (1, 2):
        assert client.raw("tools/call", '{"name":"get_issue","arguments":{}}') is None, key
    answer = use(client)
    assert_limited(answer)
    assert answer is not None
    assert (
        "limits this client to 2 calls at the same time (`concurrent`); try again when"
        in (answer["error"]["message"])
    )
    frame = json.loads(w.wire.frames[0])
    w._say({"id": frame["id"], "result": {"content": []}})
    assert use(client) is None
    assert_limited(use(client))
    client.session.receive(cancelled(client.number - 1), client)
    assert use(client) is None, "a call that is cancelled has ended, too"
    client.session.close("it disconnects")
    assert use(Client(w)) is None, "and so has that of a client that is gone"


def cancelled(number: int) -> wire.Message:
    return wire.parse(
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}' % number
    )


async def test_limits_before_the_deciding_rule_apply(autojump_clock: Clock, w: World) -> None:
    """They restrict what another rule allows, and an exact permission before them is an exemption."""
    apply(w, rule("allow", clients=("zed",)), limit(), rule("deny", tools=("delete_*",)))
    exempt, limited = Client(w, name="zed"), Client(w, name="codex")
    for _ in range(5):
        assert use(exempt) is None
    assert use(limited) is None
    assert use(limited) is None
    assert_limited(use(limited))
    denied = use(limited, "delete_repo")
    assert denied is not None
    assert denied["error"]["data"]["code"] == "denied"


async def test_call_that_one_limit_refuses_counts_for_no_other(autojump_clock: Clock, w: World) -> None:
    apply(
        w,
        limit(rate=RateLimit(3, 60.0, "3/min")),
        limit(place="$.settings.policies[1]", rate=None, concurrent=1),
    )
    client = Client(w)
    assert use(client) is None
    for _ in range(5):
        assert_limited(use(client))
    client.session.receive(cancelled(2), client)
    assert use(client) is None
    client.session.receive(cancelled(client.number), client)
    assert use(client) is None, "three of three"
    client.session.receive(cancelled(client.number), client)
    assert_limited(use(client))


# ── evasions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("modern", [False, True])
async def test_client_that_reconnects_or_renames_itself_is_the_same(
    autojump_clock: Clock, w: World, modern: bool
) -> None:
    apply(w, limit(clients=("codex",)))
    assert use(Client(w, modern=modern, name="codex")) is None
    assert use(Client(w, modern=modern, name="codex")) is None
    for name in ("codex", "Codex 2", "\uff43odex"):
        assert_limited(use(Client(w, modern=modern, name=name)))


async def test_other_ways_in_count_the_same(autojump_clock: Clock, w: World) -> None:
    """A client that is not known by its program, over one transport."""
    apply(w, limit(rate=RateLimit(3, 60.0, "3/min")))
    assert use(Client(w)) is None
    assert use(Client(w, single=False), "srv__get_issue") is None
    assert Client(w, single=False).ask("tools/call", name="get_issue@srv", arguments={}) is not None
    assert use(Client(w)) is None
    assert_limited(use(Client(w, single=False), "srv__get_issue"))


@pytest.mark.parametrize("name", [*LOOK_ALIKES, *(f"get_issue{n}" for n in range(3))], ids=ascii)
async def test_invented_names_are_counted_together(autojump_clock: Clock, w: World, name: str) -> None:
    apply(w, limit())
    client = Client(w)
    assert use(client, "another") is None
    assert use(client, "and_another") is None
    assert_limited(use(client, name))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "review"}),
        ("resources/read", {"uri": "file:///public/a"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {}}),
        ("x/delete", {}),
    ],
)
async def test_everything_else_is_limited_too(
    autojump_clock: Clock, w: World, method: str, params: Json
) -> None:
    apply(w, limit())
    client = Client(w)
    for _ in range(2):
        assert client.ask(method, **params) is None
    assert_limited(client.ask(method, **params))


async def test_resources_are_limited_under_any_spelling(autojump_clock: Clock, w: World) -> None:
    apply(w, limit(resources=("file:///secret/*",)))
    client = Client(w)
    assert client.ask("resources/read", uri="file:///public/../secret/x") is None
    assert client.ask("resources/read", uri="file:///%73ecret/key") is None
    assert_limited(client.ask("resources/read", uri="FILE:///secret//key"))


async def test_rules_that_move_keep_their_counts(autojump_clock: Clock, w: World) -> None:
    """A permanent answer inserts a rule before others."""
    client = Client(w)
    apply(w, limit())
    assert use(client) is None
    assert use(client) is None
    apply(w, rule("allow", tools=("delete_*",)), limit(place="$.settings.policies[1]"))
    answer = use(client)
    assert_limited(answer)
    assert answer is not None
    assert answer["error"]["data"]["rule"] == "$.settings.policies[1]"


async def test_calls_that_wait_for_approval_are_limited_first(autojump_clock: Clock, w: World) -> None:
    """Nobody is asked a hundred times."""
    apply(w, limit(rate=None, concurrent=1), rule("ask"))
    client = Client(w)
    assert use(client) is None
    await trio.sleep(1)
    assert_limited(use(client))
    assert len(w.gateway.approvals.list(str)) == 1


# ── memory ──────────────────────────────────────────────────────────────────────────────────────


async def test_counters_are_bounded(autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.calls.stages.use_limits._MAX_COUNTERS", 3)
    apply(w, limit(), rule("allow", tools=("none",)))
    clients = [Client(w) for _ in range(5)]
    for number, client in enumerate(clients):
        name = client.session.peer
        client.session._facts._facts = {(name, ""): ClientFacts(executable=f"/bin/{number}")}
    answers = [use(client) for client in clients]
    assert answers[:3] == [None] * 3
    assert_limited(answers[3])
    await trio.sleep(61)
    for client in clients[:3]:
        client.session.close("it disconnects")
    assert use(clients[4]) is None
    (factory,) = (
        each for each in w.gateway.calls.routes._factories if isinstance(each, UseLimitStageFactory)
    )
    assert len(factory._limits._uses) == 1
