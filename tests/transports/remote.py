"""Helpers for the tests of the HTTP transports: a running channel with a negotiated era."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcpd.model.errors import McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.protocol.negotiate import Hint, negotiate
from mcpd.protocol.upstream_session import Hooks, Upstream
from mcpd.transports.base import Channel
from mcpd.transports.credentials import Credentials
from mcpd.transports.legacy_http_sse import open_http_sse
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.transports.streamable_http import HttpChannel, open_http
from tests.fakes.http import FakeHttp, Request

BOUND = 60


@attrs.define(eq=False)
class Talk:
    """A connected server, as the client sees it."""

    link: Channel
    upstream: Upstream
    changes: list[str]
    steps: list[tuple[str, str]]
    ended: list[McpdError]

    @property
    def http(self) -> HttpChannel:
        assert isinstance(self.link, HttpChannel)
        return self.link

    def call(self, **arguments: Any) -> AwaitedExchange:
        """Submit a `tools/call`."""
        exchange = AwaitedExchange(label="tool 'echo'", idle_timeout=30, total_timeout=30)
        params = json.dumps({"name": "echo", "arguments": arguments}).encode()
        self.link.submit(exchange, "tools/call", params)
        return exchange


@asynccontextmanager
async def talking(
    url: str,
    *,
    kind: str = "http",
    hint: Hint = "auto",
    follow: bool = True,
    credentials: Credentials | None = None,
    **spec: Any,
) -> AsyncIterator[Talk]:
    """Connect, negotiate an era, and run the channel. `ended` gets the reason for its end."""
    definition = RemoteSpec(name="it", kind=kind, url=url, **spec)  # type: ignore[arg-type]
    changes: list[str] = []
    steps: list[tuple[str, str]] = []
    ended: list[McpdError] = []
    open_it = open_http if kind == "http" else open_http_sse

    async def run(link: Channel) -> None:
        try:
            await link.run()
        except McpdError as error:
            ended.append(error)

    async with open_it(definition, {}, None, credentials) as link, trio.open_nursery() as nursery:
        nursery.start_soon(run, link)
        try:
            with trio.fail_after(30):
                upstream = await negotiate(
                    link,
                    Hooks(changes.append, lambda line: None),
                    hint,
                    10,
                    lambda step, outcome, seconds: steps.append((step, outcome)),
                )
            if follow and upstream.run_subscriptions is not None:
                nursery.start_soon(upstream.run_subscriptions)
            yield Talk(link, upstream, changes, steps, ended)
        finally:
            nursery.cancel_scope.cancel()


async def outcome(exchange: AwaitedExchange) -> McpdError:
    """Wait for an exchange to fail, and return its error."""
    with trio.fail_after(BOUND):
        await exchange.done.wait()
    assert exchange.error is not None, exchange.message
    return exchange.error


async def answer(exchange: AwaitedExchange) -> dict[str, object]:
    with trio.fail_after(BOUND):
        message = await exchange.wait_response()
    return dict(json.loads(bytes(message.result)))


async def until(talk: Talk) -> McpdError:
    """Wait for the end of the channel, and return its reason."""
    with trio.fail_after(BOUND):
        while not talk.ended:  # noqa: ASYNC110 - a test's wait
            await trio.sleep(0.01)
    return talk.ended[0]


async def answer_of_a_list(talk: Talk) -> None:
    """Check that the channel still works."""
    with trio.fail_after(BOUND):
        await talk.upstream.request("tools/list")
    assert not talk.ended


async def asked(server: FakeHttp, rpc: str, count: int = 1) -> list[Request]:
    """Wait for `count` requests of that method, and return them."""
    with trio.fail_after(BOUND):
        while len(server.of(rpc)) < count:  # noqa: ASYNC110 - a test's wait
            await trio.sleep(0.005)
    return server.of(rpc)
