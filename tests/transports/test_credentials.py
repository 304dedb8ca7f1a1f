"""Signing requests, and sending one that was refused with HTTP 401 once more with a newer token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import attrs
import pytest
import trio
from trio_websocket import WebSocketRequest

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth
from mcpd.transports.credentials import MAX_REPEATS, Refusal, Signature
from mcpd.transports.websocket import open_websocket
from tests.fakes.http import FakeHttp, LegacyScript, ModernScript, Request, Script, fake_http
from tests.transports.remote import BOUND, answer, answer_of_a_list, asked, outcome, talking
from tests.transports.test_legacy_http_sse import SseScript
from tests.transports.test_websocket import a_spec, echoing, serving


@attrs.define(eq=False)
class Tokens:
    """Credentials whose renewal takes a moment, and is shared by all that wait for it."""

    generation: int = 1
    newest: int = 99
    """The last generation that can be had."""
    renewals: int = 0
    refusals: list[Refusal] = attrs.field(factory=list)
    renewing: trio.Event | None = None
    error: McpdError | None = None
    """What a renewal raises."""
    urls: set[str] = attrs.field(factory=set)
    signatures: list[Signature] = attrs.field(factory=list)
    takes: float = 0.01

    def sign(self, method: str, url: str) -> Signature | None:
        self.urls.add(url)
        if self.renewing is not None:
            return None
        self.signatures.append(Signature("Bearer", f"t{self.generation}", self.generation))
        return self.signatures[-1]

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        if self.renewing is not None:
            await self.renewing.wait()
        return self.sign(method, url) or Signature()

    async def refused(self, refusal: Refusal) -> bool:
        self.refusals.append(refusal)
        if refusal.status == 403:
            return False
        if self.error is not None:
            raise self.error
        if refusal.signature.generation < self.generation:
            return True
        if self.renewing is None and self.generation < self.newest:
            self.renewals += 1
            self.renewing = trio.Event()
            await trio.sleep(self.takes)
            self.generation += 1
            self.renewing.set()
            self.renewing = None
        else:
            await self.sign_when_ready("", "")
        return self.generation > refusal.signature.generation

    def advice(self) -> str:
        return "log in with: mcpctl login it"


@attrs.define(eq=False)
class Guard:
    """Serves a script to requests with a valid token, and refuses all others with 401."""

    script: Script
    valid: set[str] = attrs.field(factory=lambda: {"Bearer t2"})
    executed: Counter[str] = attrs.field(factory=Counter)

    async def __call__(self, request: Request) -> None:
        if request.headers.get("authorization") not in self.valid:
            await request.reply(401, b'{"error":"invalid_token"}', WWW_Authenticate="Bearer")
            return
        if request.rpc == "tools/call":
            self.executed[json.dumps(request.message["params"]["arguments"])] += 1
        if request.body and "id" not in request.message:
            await request.reply(202)
        else:
            await self.script(request)


def guarding(server: FakeHttp) -> Guard:
    assert isinstance(server.script, Guard)
    return server.script


@pytest.mark.parametrize("script", [LegacyScript, ModernScript])
async def test_every_request_is_signed_and_repeated_with_a_newer_token(
    engine: str, script: Callable[[], Script]
) -> None:
    """POST, GET streams, notifications and DELETE; the token changes in between, too."""
    tokens = Tokens()
    async with (
        fake_http(Guard(script())) as server,
        talking(server.url, credentials=tokens) as talk,
    ):
        assert tokens.renewals == 1
        await answer(talk.call(n=1))
        guarding(server).valid = {"Bearer t3"}
        await answer(talk.call(n=2))
        talk.link.notify("notifications/roots/list_changed", b"{}")
        await asked(server, "notifications/roots/list_changed")
        guarding(server).valid = {"Bearer t4"}
    assert tokens.urls == {server.url}
    assert all(request.headers.get("authorization", "").startswith("Bearer t") for request in server.requests)
    if script is LegacyScript:
        assert [one.headers["authorization"] for one in server.of("DELETE")] == ["Bearer t3", "Bearer t4"]
    assert guarding(server).executed == {'{"n": 1}': 1, '{"n": 2}': 1}


@pytest.mark.parametrize("script", [LegacyScript, ModernScript])
async def test_fifty_calls_with_an_expired_token_need_one_renewal(
    engine: str, script: Callable[[], Script]
) -> None:
    """All are answered, and none is executed twice."""
    tokens = Tokens()
    async with fake_http(Guard(script())) as server, talking(server.url, credentials=tokens) as talk:
        for generation in range(3, 8):
            before = tokens.renewals
            guarding(server).valid = {f"Bearer t{generation}"}
            exchanges = [talk.call(round=generation, n=n) for n in range(50)]
            for exchange in exchanges:
                await answer(exchange)
            assert tokens.renewals == before + 1
    assert len(guarding(server).executed) == 250
    assert set(guarding(server).executed.values()) == {1}


async def test_a_refusal_that_remains_fails_its_own_request(engine: str) -> None:
    """The error says what a person has to do; the channel stays."""
    tokens = Tokens(newest=2)
    async with fake_http(Guard(LegacyScript())) as server, talking(server.url, credentials=tokens) as talk:
        guarding(server).valid = set()
        before = len(server.of("tools/call"))
        error = await outcome(talk.call())
        assert isinstance(error, NeedsAuth)
        assert error.message == "it: HTTP 401 No: log in with: mcpctl login it"
        assert len(server.of("tools/call")) == before + 1
        guarding(server).valid = {"Bearer t2"}
        await answer_of_a_list(talk)


async def test_a_request_is_repeated_a_few_times_at_most(engine: str) -> None:
    """Whatever the credentials say."""
    tokens = Tokens()
    async with fake_http(Guard(LegacyScript())) as server, talking(server.url, credentials=tokens) as talk:
        guarding(server).valid = set()
        assert isinstance(await outcome(talk.call()), NeedsAuth)
        assert len(server.of("tools/call")) == 1 + MAX_REPEATS
        repeats = [refusal.repeats for refusal in tokens.refusals[-MAX_REPEATS:]]
        assert repeats == list(range(MAX_REPEATS))


async def test_an_error_of_the_renewal_fails_the_request_with_it(engine: str) -> None:
    """An unreachable authorization server is no reason to ask for a login; nothing was executed."""
    tokens = Tokens()
    async with fake_http(Guard(LegacyScript())) as server, talking(server.url, credentials=tokens) as talk:
        guarding(server).valid = set()
        tokens.error = LinkLost("it: the login cannot be renewed now", server="it", may_have_run=False)
        error = await outcome(talk.call())
        assert isinstance(error, LinkLost)
        assert not error.may_have_run
        tokens.error = None
        guarding(server).valid = {"Bearer t3"}
        await answer(talk.call())


@pytest.mark.parametrize(
    ("challenge", "kind"),
    [
        (None, HttpRefused),
        ('Bearer error="invalid_token"', HttpRefused),
        ('Bearer error="insufficient_scope", scope="a b"', NeedsAuth),
        ("Bearer scope=a, ERROR=insufficient_scope", NeedsAuth),
    ],
)
async def test_forbidden_concerns_the_login_only_if_scopes_are_missing(
    engine: str, challenge: str | None, kind: type[McpdError]
) -> None:
    """Any other 403 is an ordinary refusal. Neither ends the channel."""

    async def forbid(request: Request) -> None:
        if challenge is None:
            await request.reply(403)
        else:
            await request.reply(403, WWW_Authenticate=challenge)

    script = Guard(LegacyScript(on={"tools/call": forbid}))
    tokens = Tokens()
    async with fake_http(script) as server, talking(server.url, credentials=tokens) as talk:
        error = await outcome(talk.call())
        assert isinstance(error, kind)
        assert tokens.refusals[-1].needs_scopes is (kind is NeedsAuth)
        assert len(server.of("tools/call")) == 1
        await answer_of_a_list(talk)


async def test_an_authorization_header_in_the_definition_switches_credentials_off(engine: str) -> None:
    """The header is sent as it is."""
    tokens = Tokens()
    async with (
        fake_http(LegacyScript()) as server,
        talking(server.url, credentials=tokens, headers={"authorization": "Bearer own"}) as talk,
    ):
        await answer(talk.call())
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer own"}
    assert not tokens.urls


async def test_http_sse_signs_its_stream_and_its_messages(engine: str) -> None:
    """The stream, and each message, is repeated with the newer token."""
    guard = Guard(SseScript())
    tokens = Tokens()
    async with (
        fake_http(guard) as server,
        talking(server.url, kind="sse", hint="legacy", credentials=tokens) as talk,
    ):
        guard.valid = {"Bearer t3"}
        await answer(talk.call(n=1))
        assert tokens.renewals == 2
        guard.valid = set()
        tokens.newest = tokens.generation
        assert isinstance(await outcome(talk.call(n=2)), NeedsAuth)
    assert guard.executed == {'{"n": 1}': 1}


async def test_a_websocket_upgrade_is_signed_and_repeated_once() -> None:
    """A refused upgrade is a request like any other."""
    seen: list[str] = []

    async def guard(request: WebSocketRequest) -> None:
        token = dict(request.headers)[b"authorization"].decode()
        seen.append(token)
        if token != "Bearer t2":
            await request.reject(401, extra_headers=[(b"WWW-Authenticate", b'Bearer realm="x"')])
        else:
            await echoing(request)

    tokens = Tokens()
    async with serving(guard) as port:
        with trio.fail_after(BOUND):
            async with open_websocket(a_spec(port), tokens):
                pass
            assert seen == ["Bearer t1", "Bearer t2"]
            assert [signature.token.was_accepted for signature in tokens.signatures] == [False, True]
            assert tokens.urls == {f"http://127.0.0.1:{port}/mcp?x=1"}
            assert tokens.refusals[0].headers["www-authenticate"] == 'Bearer realm="x"'
            tokens.generation = tokens.newest = 5
            with pytest.raises(
                NeedsAuth, match="HTTP 401 instead of a WebSocket: log in with: mcpctl login it"
            ):
                async with open_websocket(a_spec(port), tokens):
                    pass
            tokens.error = LinkLost("ws: not now", server="ws", may_have_run=False)
            with pytest.raises(LinkLost, match="not now"):
                async with open_websocket(a_spec(port), tokens):
                    pass
            with pytest.raises(NeedsAuth, match="`Authorization` header in its definition was rejected"):
                async with open_websocket(a_spec(port, headers={"Authorization": "Bearer own"}), tokens):
                    pass
    assert seen[2:] == ["Bearer t5", "Bearer t5", "Bearer own"]


def test_a_signature_hides_its_token_and_refuses_line_breaks() -> None:
    """A token with a line break would add a header."""
    signature = Signature("Bearer", "secret", 3)
    assert "secret" not in repr(signature)
    assert signature.lines == b"Authorization: Bearer secret\r\n"
    for bad in ("a\r\nX: y", "a\nb", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a\0b"):
        with pytest.raises(ValueError, match="characters") as caught:
            Signature("Bearer", bad)
        assert bad not in str(caught.value)
