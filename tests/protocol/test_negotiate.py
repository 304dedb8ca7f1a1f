"""Era negotiation: every row of the probe table, against a scripted peer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import trio

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NoCommonVersion, UpstreamRefused
from mcpd.protocol import legacy
from mcpd.protocol.negotiate import (
    AnsweredProbeLate,
    Hint,
    ServerDiedDuringProbe,
    _suggests_other_era,
    negotiate,
)
from mcpd.protocol.upstream_session import Hooks, Upstream
from tests.transports.peer import Json, Peer, connected

MODERN = "2026-07-28"
NEWEST = legacy.VERSIONS[0]
NAME = "io.modelcontextprotocol/serverInfo"


def discovered(*versions: str, **more: Any) -> Json:
    body = {"supportedVersions": versions, "capabilities": {"tools": {}}, "resultType": "complete"}
    return {"result": {**body, "_meta": {NAME: {"name": "peer", "version": "1"}}, **more}}


def initialized(version: str | None = None) -> Any:
    """Accept the requested version, or always answer `version`."""

    def answer(request: Json) -> Json:
        agreed = version or request["params"]["protocolVersion"]
        return {
            "result": {
                "protocolVersion": agreed,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "peer"},
            }
        }

    return answer


def refused(code: int, data: Any = None) -> Json:
    return {"error": {"code": code, "message": "no", "data": data}}


def quiet() -> Hooks:
    return Hooks(lambda feature: None, lambda line: None)


async def agree(peer: Peer, hint: Hint = "auto", probe_timeout: float = 30.0) -> Upstream:
    steps: list[str] = []
    with trio.fail_after(30):
        upstream = await negotiate(
            peer.link, quiet(), hint, probe_timeout, lambda step, outcome, seconds: steps.append(step)
        )
    assert steps
    assert set(steps) <= set(peer.methods)
    return upstream


async def test_a_modern_server_is_adopted_without_any_handshake() -> None:
    """The DiscoverResult lists a common version."""
    async with connected({"server/discover": discovered(MODERN, "2025-11-25")}) as peer:
        upstream = await agree(peer)

    assert (upstream.era, upstream.version, upstream.info.name) == ("modern", MODERN, "peer")
    assert peer.methods == ["server/discover"]
    assert upstream.has("tools")
    meta = peer.heard[0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_a_discovery_of_legacy_versions_leads_to_initialize_with_the_best() -> None:
    """`supportedVersions` may contain only versions that need a handshake."""
    script = {"server/discover": discovered("2024-11-05", "2025-06-18"), "initialize": initialized()}
    async with connected(script) as peer:
        upstream = await agree(peer)

    assert (upstream.era, upstream.version) == ("legacy", "2025-06-18")
    assert peer.heard[1]["params"]["protocolVersion"] == "2025-06-18"


async def test_a_refused_version_with_another_in_common_is_discovered_again_once() -> None:
    """`initialize` is not tried."""
    answers = [refused(-32022, {"supported": [MODERN]}), discovered(MODERN)]
    async with connected({"server/discover": lambda request: answers.pop(0)}) as peer:
        upstream = await agree(peer)

    assert upstream.version == MODERN
    assert peer.methods == ["server/discover", "server/discover"]


async def test_no_version_in_common_fails_with_both_lists() -> None:
    for answer in (refused(-32022, {"supported": ["2031-01-01"]}), discovered("2031-01-01")):
        async with connected({"server/discover": answer}) as peer:
            with pytest.raises(NoCommonVersion, match=r"2031-01-01.*2026-07-28.*2024-11-05"):
                await agree(peer)


@pytest.mark.parametrize("code", [-32021, -32020])
async def test_modern_error_is_reported_and_not_taken_for_legacy(code: int) -> None:
    async with connected({"server/discover": refused(code), "initialize": initialized()}) as peer:
        with pytest.raises(UpstreamRefused) as error:
            await agree(peer)

        assert error.value.upstream_code == code
        assert peer.methods == ["server/discover"]


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, -32700, -32004, 0, 17, 10**30])
async def test_any_other_error_means_legacy_on_the_same_process(code: int) -> None:
    """The fallback does not depend on one error code."""
    async with connected({"server/discover": refused(code), "initialize": initialized()}) as peer:
        upstream = await agree(peer)
        await peer.hear("notifications/initialized")

    assert (upstream.era, upstream.version) == ("legacy", NEWEST)
    assert peer.methods == ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize(
    ("late", "is_modern"),
    [
        (discovered(MODERN, NEWEST), True),
        (discovered(NEWEST), False),
        (refused(-32601), False),
        ({"result": []}, False),
    ],
)
async def test_unanswered_probe_means_legacy_and_late_response_is_remembered(
    late: Json, is_modern: bool
) -> None:
    """`initialize` determines the era of the process; no cancellation is sent for the probe."""
    learnt: list[str] = []
    hooks = quiet()
    hooks.on_modern_detected = lambda: learnt.append("modern")
    steps: list[str] = []
    async with connected({"initialize": initialized()}) as peer:
        with trio.fail_after(30):
            upstream = await negotiate(
                peer.link, hooks, "auto", 0.05, lambda step, outcome, seconds: steps.append(outcome)
            )
        await peer.say({"jsonrpc": "2.0", "id": peer.heard[0]["id"], **late})
        peer.script["ping"] = {"result": {}}
        await upstream.request("ping")

    assert upstream.era == "legacy"
    assert learnt == ["modern"] * is_modern
    assert ("too late" in steps[-1]) is is_modern
    assert "notifications/cancelled" not in peer.methods


@pytest.mark.parametrize("accepts_initialize", [True, False])
async def test_slow_modern_server_is_not_taken_for_legacy(accepts_initialize: bool) -> None:
    """Something else has read the probe, as `docker run` does, and the server itself answers it late."""
    async with connected() as peer, trio.open_nursery() as nursery:

        async def start_slowly() -> None:
            await peer.hear("initialize")
            peer.script["server/discover"] = discovered(MODERN)
            initialize = initialized()(peer.heard[1]) if accepts_initialize else refused(-32601)
            for heard, answer in zip(peer.heard, (discovered(MODERN), initialize), strict=True):
                await peer.say({"jsonrpc": "2.0", "id": heard["id"], **answer})

        nursery.start_soon(start_slowly)
        with trio.fail_after(30), ExitStack() as stack:
            if accepts_initialize:
                stack.enter_context(pytest.raises(AnsweredProbeLate))
            upstream = await negotiate(peer.link, quiet(), "auto", 0.05, lambda *_: None, may_restart=True)
            assert upstream.era == "modern"


async def test_server_that_exits_on_the_probe_should_be_restarted_as_legacy() -> None:
    """Rust's rmcp exits on any first message except `initialize`."""
    async with connected() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(_close_when_probed, peer)
        with pytest.raises(ServerDiedDuringProbe):
            await agree(peer)


async def _close_when_probed(peer: Peer) -> None:
    await peer.hear("server/discover")
    await peer.close()


@pytest.mark.parametrize(
    "result",
    [{}, {"supportedVersions": "2026-07-28"}, {"supportedVersions": [1, None]}, [], "text", None, 5],
    ids=repr,
)
async def test_an_answer_that_is_no_discovery_means_legacy(result: object) -> None:
    async with connected({"server/discover": {"result": result}, "initialize": initialized()}) as peer:
        assert (await agree(peer)).era == "legacy"


async def test_a_slow_modern_server_is_probed_again_when_it_refuses_initialize() -> None:
    """Error -32022 for `initialize` is evidence of a modern server."""
    answers: list[Json | None] = [None, discovered(MODERN)]
    script: dict[str, Any] = {
        "server/discover": lambda request: answers.pop(0),
        "initialize": refused(-32022, {"supported": [MODERN]}),
    }
    async with connected(script) as peer:
        upstream = await agree(peer, probe_timeout=0.05)

    assert upstream.era == "modern"
    assert peer.methods == ["server/discover", "initialize", "server/discover"]


async def test_initialize_is_repeated_once_with_a_version_the_server_names() -> None:
    """The error is -32602 with `data.supported`. A server that refuses its own version fails."""
    answers = [
        refused(-32602, {"supported": ["2024-11-05"]}),
        initialized()({"params": {"protocolVersion": "2024-11-05"}}),
    ]
    async with connected({"initialize": lambda request: answers.pop(0)}) as peer:
        assert (await agree(peer, "legacy")).version == "2024-11-05"

    fickle = [["2024-11-05"], ["2025-03-26"]] * 10
    async with connected(
        {"initialize": lambda request: refused(-32602, {"supported": fickle.pop(0)})}
    ) as peer:
        with pytest.raises(UpstreamRefused):
            await agree(peer, "legacy")
        assert peer.methods == ["initialize", "initialize"]


async def test_era_hint_skips_the_probe_or_the_handshake() -> None:
    """The hint is a setting of the server definition."""
    async with connected({"initialize": initialized()}) as peer:
        await agree(peer, "legacy")
        assert peer.methods[0] == "initialize"
    async with connected({"server/discover": refused(-32601), "initialize": initialized()}) as peer:
        with pytest.raises(NoCommonVersion, match="`era`"):
            await agree(peer, "modern")
        assert peer.methods == ["server/discover"]
    async with connected() as peer:
        await peer.close()
        with pytest.raises(LinkLost):
            await agree(peer, "modern")


async def test_requests_of_a_legacy_server_are_answered_during_the_handshake() -> None:
    """Before the handshake is complete, pings get `{}` and other requests are refused immediately."""

    def ask_first(request: Json) -> bytes:
        asked = [("ping", 1), ("roots/list", "r"), ("sampling/createMessage", 3)]
        lines = [f'{{"jsonrpc":"2.0","id":{_json(key)},"method":"{method}"}}\n' for method, key in asked]
        return "".join(lines).encode()

    async with connected({"initialize": ask_first}) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(_ignore_end, peer)
        await peer.hear("initialize")
        await peer.hear("", 3)
        nursery.cancel_scope.cancel()

    answers = {message["id"]: message for message in peer.heard if "method" not in message}
    assert answers[1]["result"] == {}
    assert answers["r"]["error"]["code"] == answers[3]["error"]["code"] == -32601


def _json(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


async def _ignore_end(peer: Peer) -> None:
    await negotiate(peer.link, quiet(), "legacy", 5, lambda step, outcome, seconds: None)


@pytest.mark.parametrize("status", [400, 404, 405, 500, 501])
def test_server_that_does_not_know_the_request_may_know_the_other_era(status: int) -> None:
    assert _suggests_other_era(HttpRefused("x", server="s", status=status))


@pytest.mark.parametrize(
    "error",
    [
        LinkLost("x"),
        *(HttpRefused("x", server="s", status=status) for status in (307, 401, 403, 408, 429, 502, 503)),
    ],
)
def test_server_that_is_busy_or_refuses_access_is_not_asked_in_the_other_era(error: McpdError) -> None:
    assert not _suggests_other_era(error)
