"""Renewing logins: shared, crash-safe, and never given up for a temporary error (T1 to T11, T14)."""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from trio.testing import MockClock

from mcpd.auth.guarded_fetch import FetchedAnswer
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenRequest
from mcpd.auth.renewal import REJECTED_FOR
from mcpd.auth.renewal_schedule import lead_time
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoredLogins, TokenStore
from mcpd.model.errors import LinkLost, McpdError
from mcpd.model.server_spec import OAuthSettings
from mcpd.privacy.redact import Redactor
from mcpd.transports.credentials import UNSIGNED, Refusal
from mcpd.transports.http_client import client_factory
from tests.auth.authorization_server import (
    ISSUER,
    START,
    URL,
    AuthorizationServer,
    Fault,
    a_login,
    answering,
    cut_answer,
    hang,
    logged_in,
    lose_answer,
    refuse,
    run_inline,
    unsent,
)
from tests.fakes.http import LegacyScript, Request, fake_http
from tests.transports.remote import outcome, talking


async def days(number: int) -> None:
    for _ in range(number):
        await trio.sleep(86_400)


# ── one renewal for all requests ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("lifetime", "rounds"), [(3600.0, 20), (90.0, 10), (None, 10)])
async def test_t1_fifty_calls_with_a_dead_token_need_one_token_request(
    autojump_clock: MockClock, tmp_path: Path, lifetime: float | None, rounds: int
) -> None:
    """In each round all are answered, and none is executed twice."""
    async with logged_in(tmp_path, AuthorizationServer(lifetime=lifetime)) as world:
        for round in range(1, rounds + 1):
            await trio.sleep(120)  # the limit for renewals that the clock does not explain is 6 in 10 minutes
            assert await world.call() == "ok"
            world.authorization.access.clear()
            before = len(world.authorization.requests)
            assert await world.calls(50) == ["ok"] * 50
            assert len(world.authorization.requests) <= before + 1  # one may have been under way
            assert world.executed == 51 * round


async def test_t2_requests_with_the_replaced_token_do_not_renew_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A renewal ends all older tokens at once; half of the requests are refused after it."""
    async with logged_in(tmp_path) as world:
        old = world.credentials.sign("POST", URL)
        assert old is not None
        world.authorization.access.clear()
        assert await world.calls(25) == ["ok"] * 25
        assert len(world.authorization.requests) == 1
        for repeats in range(2):
            refusal = Refusal(401, httpx.Headers(), old, repeats)
            assert [await world.credentials.refused(refusal) for _ in range(25)] == [True] * 25
        assert not await world.credentials.refused(Refusal(401, httpx.Headers(), old, 2))
        assert await world.calls(25) == ["ok"] * 25
        assert len(world.authorization.requests) == 1


async def test_t3_ten_clients_on_a_cold_start_need_one_token_request(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The stored token has expired while no daemon ran."""
    server = AuthorizationServer()
    async with logged_in(tmp_path, server):
        pass
    server.access.clear()
    await trio.sleep(7200)
    async with logged_in(tmp_path, server, login=False) as world:
        world.time.origin -= 7200
        await world.manager.credentials_for("it", URL)
        assert await world.calls(12) == ["ok"] * 12
    assert len(server.requests) == 1


async def test_t4_a_second_daemon_uses_the_logins_and_does_not_renew_them(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It uses what the first one has renewed, and says who keeps the logins."""
    async with logged_in(tmp_path) as world:
        second = TokenManager(
            TokenStore(tmp_path),
            world.authorization.send,
            Redactor(),
            clocks=world.time.clocks(),
        )
        second._file._run = run_inline  # type: ignore[method-assign]
        async with second.running():
            other = attrs.evolve(world, manager=second, credentials=await second.credentials_for("it", URL))
            assert await other.call() == "ok"
            world.authorization.access.clear()
            with pytest.raises(LinkLost, match=rf"another mcpd \(process {os.getpid()}\) renews it"):
                await other.call()
            assert world.authorization.requests == []
            assert await world.call() == "ok"
            await trio.sleep(3)
            assert await other.call() == "ok"
            assert len(world.authorization.requests) == 1
            assert f"process {os.getpid()}" in second.problem
            assert world.manager.problem == ""


async def test_t8_cancelling_the_first_request_cancels_nothing_else(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The renewal belongs to nobody; 49 others wait for it."""
    async with logged_in(tmp_path, AuthorizationServer(takes=5)) as world:
        world.authorization.access.clear()
        outcomes: list[str] = []

        async def one() -> None:
            outcomes.append(await world.call())

        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            async def cancelled() -> None:
                with first:
                    await one()

            nursery.start_soon(cancelled)
            await trio.sleep(0.5)
            for _ in range(49):
                nursery.start_soon(one)
            await trio.sleep(1)
            first.cancel()
        assert outcomes == ["ok"] * 49
        assert len(world.authorization.requests) == 1


async def test_t9_a_late_invalid_grant_does_not_touch_a_newer_login(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A person logged in again while the renewal of the old login was under way."""

    async def late(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
        await trio.sleep(10)
        return refuse("invalid_grant")

    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.faults = [late]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.calls, 10)
            await trio.sleep(2)
            login = a_login(world.authorization.issue(), world.time.clocks().wall())
            await world.manager.add_login(login, URL)
            assert await world.call() == "ok"
        await trio.sleep(20)
        stored = world.stored()
        assert stored.ended is None
        assert stored.tokens == login.tokens
        assert await world.call() == "ok"
        assert world.events == ["login_done", "login_done"]


# ── failures that end nothing ───────────────────────────────────────────────────────────────────

TEMPORARY: dict[str, Fault] = {
    "500": answering(500, b"oops"),
    "503": answering(503, b"", retry_after=7.0),
    "429": answering(429, b"slow down"),
    "timeout": hang,
    "unsent": unsent,
    "html": answering(200, b"<html>login</html>"),
    "list": answering(200, b"[]", kind="application/json"),
    "null": answering(200, b"null", kind="application/json"),
    "2 MB": answering(200, b'{"a":"' + b"x" * (2 << 20) + b'"}', kind="application/json"),
    "no code": answering(400, b"{}", kind="application/json"),
    "unknown code": answering(400, b'{"error":"nope"}', kind="application/json"),
    "server_error": answering(400, b'{"error":"server_error"}', kind="application/json"),
    "invalid_grant with 503": answering(503, b'{"error":"invalid_grant"}', kind="application/json"),
    "redirect": answering(302, b""),
}


@pytest.mark.parametrize("fault", TEMPORARY)
async def test_t5_a_temporary_error_keeps_the_login_and_is_not_a_needed_login(
    autojump_clock: MockClock, tmp_path: Path, fault: str
) -> None:
    """The calls fail with another error, which says when it is tried again. The login recovers within two
    seconds after the server, or when the server asked for."""
    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.faults = [TEMPORARY[fault]] * 4
        recovered = fixed_at = 0.0
        failures: list[LinkLost] = []
        with trio.fail_after(600):
            while not recovered:
                try:
                    assert await world.call() == "ok"
                    recovered = trio.current_time()
                except LinkLost as error:
                    failures.append(error)
                    fixed_at = fixed_at or trio.current_time()
                    world.authorization.faults = []
                await trio.sleep(0.1)
        assert failures
        assert not any(error.may_have_run for error in failures)
        assert all("it: the login cannot be renewed: " in error.message for error in failures)
        assert all("tried again in" in error.message for error in failures)
        if fault in ("503", "429"):
            assert recovered - fixed_at <= 8
        else:
            assert recovered - fixed_at <= 2.2
        assert "login_needed" not in world.events
        assert world.stored().ended is None
        assert world.executed == 1


async def test_retries_back_off_and_calls_do_not_flood_the_server(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """At most one attempt in two seconds while calls come, and five minutes apart without."""
    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.faults = [answering(500)] * 10_000
        began = trio.current_time()
        while trio.current_time() - began < 60:
            with pytest.raises(LinkLost):
                await world.call()
            await trio.sleep(0.5)
        assert len(world.authorization.requests) <= 31
        before = len(world.authorization.requests)
        await trio.sleep(3600)
        assert 10 <= len(world.authorization.requests) - before <= 20
        await days(2)  # nobody has used it for a day
        idle = len(world.authorization.requests)
        await days(2)
        assert len(world.authorization.requests) == idle


@pytest.mark.parametrize("code", ["invalid_client", "token_expired"])
async def test_a_renewal_that_is_rejected_for_a_minute_needs_a_person(
    autojump_clock: MockClock, tmp_path: Path, code: str
) -> None:
    """The authorization server has forgotten mcpd's registration, or was only restarted.

    Others have a code of their own for a refresh token that is no longer valid.
    """
    rejected = answering(401, b'{"error":"%b"}' % code.encode(), kind="application/json")
    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.faults = [rejected]
        assert await world.calls(5) == ["ok"] * 5
        assert len(world.authorization.requests) == 2
        world.authorization.access.clear()
        world.authorization.faults = [rejected] * 2
        with pytest.raises(LinkLost, match=code):
            await world.call()
        await trio.sleep(5)
        assert await world.call() == "ok"
        assert "login_needed" not in world.events
        world.authorization.access.clear()
        world.authorization.faults = [rejected] * 1000
        began = trio.current_time()
        while "login_needed" not in world.events:
            with suppress(LinkLost):
                assert await world.call() == "401"
            await trio.sleep(1)
        assert REJECTED_FOR <= trio.current_time() - began < REJECTED_FOR + 5
        assert await world.calls(5) == ["401"] * 5
        assert world.events.count("login_needed") == 1
        assert code in world.credentials.advice()
        assert world.credentials.advice().endswith("run `mcpctl login it` to log in again")
        assert world.stored().ended is None
        world.authorization.faults = []
        await trio.sleep(300)
        assert await world.call() == "ok"


# ── a login that is over ────────────────────────────────────────────────────────────────────────


async def test_invalid_grant_for_the_newest_token_asks_for_a_person(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The token requests stop; the evidence is stored; a new login heals it."""
    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.revoked = True
        assert await world.calls(10) == ["401"] * 10
        assert await world.calls(10) == ["401"] * 10
        assert len(world.authorization.requests) == 1
        assert world.events == ["login_done", "login_needed"]
        ended = world.stored().ended
        assert ended is not None
        assert "invalid_grant" in ended
        assert world.credentials.sign("POST", URL) is UNSIGNED
        ((status, _),) = await world.manager.logins()
        assert status.state == "over"
        assert "does not accept its refresh token" in status.reason
        world.authorization.revoked = False
        login = a_login(world.authorization.issue(), world.time.clocks().wall())
        await world.manager.add_login(login, URL)
        assert await world.calls(10) == ["ok"] * 10
        assert world.stored().ended is None


@pytest.mark.parametrize("fault", [lose_answer, cut_answer, hang])
@pytest.mark.parametrize("grace", [True, False])
async def test_t6_a_lost_answer_is_asked_for_once_more(
    autojump_clock: MockClock, tmp_path: Path, fault: Fault, grace: bool
) -> None:
    """Servers with a grace period answer again. Without one, the evidence says that the answer was lost."""
    server = AuthorizationServer(grace=grace)
    async with logged_in(tmp_path, server) as world:
        server.access.clear()
        server.faults = [fault]
        outcome = await world.call()
        assert len(server.requests) == 2
        assert server.requests[0] == server.requests[1]
        if grace or fault is hang:  # nothing was issued while it hung
            assert outcome == "ok"
            assert world.stored().attempt_at is None
        else:
            assert outcome == "401"
            ended = world.stored().ended
            assert ended is not None
            assert "was lost" in ended
            assert await world.calls(5) == ["401"] * 5
            assert len(server.requests) == 2


async def test_a_login_without_refresh_token_is_used_until_it_is_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Also after its time: only the server decides that."""
    server = AuthorizationServer()
    async with logged_in(tmp_path, server, login=False) as world:
        answer = server.issue()
        del answer["refresh_token"]
        await world.manager.add_login(a_login(answer, world.time.clocks().wall()), URL)
        await trio.sleep(10_000)
        assert await world.call() == "ok"
        server.access.clear()
        assert await world.call() == "401"
        assert world.credentials.advice().startswith("the authorization server issued no refresh token; ")
        assert server.requests == []


async def test_a_fresh_token_that_was_never_accepted_is_not_renewed_again_and_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The server refuses it for another reason: its audience, or what the account may do."""
    async with logged_in(tmp_path) as world:
        await trio.sleep(100)
        for _ in range(5):
            world.authorization.access.clear()
            outcomes = []
            with trio.move_on_after(5):
                signature = world.credentials.sign("POST", URL)
                assert signature is not None
                outcomes.append(await world.credentials.refused(Refusal(401, httpx.Headers(), signature)))
            assert outcomes in ([True], [False])
        assert len(world.authorization.requests) == 1
        assert "refuses a token that was issued 0 s ago" in world.credentials.advice()


async def test_renewals_for_refused_tokens_are_limited(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A server that accepts each token once and then refuses it causes six renewals in ten minutes."""
    async with logged_in(tmp_path) as world:
        for _ in range(60):
            assert world.authorization.access or await world.call()
            with trio.move_on_after(1):
                await world.call()
            world.authorization.access.clear()
            await trio.sleep(1)
        assert 6 <= len(world.authorization.requests) <= 7


# ── time ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lifetime", [5.0, 60.0, 3600.0, None])
@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
async def test_t10_there_is_one_renewal_in_a_lifetime_whatever_the_clock_says(
    autojump_clock: MockClock, tmp_path: Path, lifetime: float | None, skew: float
) -> None:
    """The clock is set while the daemon runs; no call fails."""
    server = AuthorizationServer(lifetime=lifetime, ends_old_tokens=False)
    async with logged_in(tmp_path, server) as world:
        began = trio.current_time()
        world.time.wall_offset = skew
        end = (lifetime or 3600) * 8
        while trio.current_time() - began < end:
            assert await world.call() == "ok"
            await trio.sleep(end / 500)
        most = 0.0 if lifetime is None else end / (lifetime - (lead_time(lifetime) or 0)) + 2
        assert len(server.requests) <= most
        assert world.refused == 0


async def test_t10_tokens_are_renewed_ahead_of_their_end(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A login in use is renewed without a call waiting for it; one that nobody uses is left alone."""
    async with logged_in(tmp_path, AuthorizationServer(ends_old_tokens=False)) as world:
        await trio.sleep(3200)
        assert world.authorization.requests == []
        await world.call()
        await trio.sleep(200)
        assert len(world.authorization.requests) == 1
        await days(2)
        renewed = len(world.authorization.requests)
        assert renewed <= 27  # the day after its last use
        await days(2)
        assert len(world.authorization.requests) == renewed
        world.authorization.access.clear()
        assert await world.call() == "ok"


async def test_t10_after_a_suspend_the_network_gets_a_moment(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Eight hours of suspend end the token. Most lost answers happen right after one."""
    async with logged_in(tmp_path) as world:
        await world.call()
        world.time.suspended += 8 * 3600
        world.authorization.access.clear()
        began = trio.current_time()
        world.manager.on_resume()
        await trio.sleep(0.1)
        assert world.authorization.requests == []
        assert await world.calls(5) == ["ok"] * 5
        assert trio.current_time() - began >= 5
        assert len(world.authorization.requests) == 1
        began = trio.current_time()
        await trio.sleep(100)
        world.authorization.access.clear()
        await world.call()
        assert trio.current_time() - began < 101


async def test_an_early_renewal_that_is_refused_is_tried_again_at_the_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Some servers renew a token only after it has expired."""
    async with logged_in(tmp_path, AuthorizationServer(ends_old_tokens=False)) as world:
        await world.call()
        world.authorization.faults = [answering(400, b'{"error":"too_early"}', kind="application/json")]
        await trio.sleep(3595)
        assert len(world.authorization.requests) == 1
        assert await world.call() == "ok"
        await trio.sleep(60)
        assert len(world.authorization.requests) == 2
        assert world.refused == 0


# ── the file ────────────────────────────────────────────────────────────────────────────────────


async def test_t11_a_full_disk_does_not_stop_the_renewal(
    autojump_clock: MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The tokens are used from memory, the problem is said, and written as soon as there is space."""
    async with logged_in(tmp_path) as world:
        before = world.store.path.read_bytes()

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr("mcpd.files.atomic.os.replace", full)
            world.authorization.access.clear()
            assert await world.calls(10) == ["ok"] * 10
            await trio.sleep(30)
            assert "No space left on device" in world.manager.problem
            assert world.store.path.read_bytes() == before
        assert caplog.text.count("No space left on device") == 1
        await trio.sleep(2)
        assert world.manager.problem == ""
        assert world.stored().generation == 2


async def test_t11_tokens_in_memory_are_written_when_the_daemon_stops(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is space by then."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with logged_in(tmp_path) as world:
        with monkeypatch.context() as patch:
            patch.setattr("mcpd.files.atomic.os.replace", full)
            world.authorization.access.clear()
            assert await world.call() == "ok"
    store = TokenStore(tmp_path)
    (stored,) = store.open().logins.values()
    store.close()
    assert stored.generation == 2


# ── which requests are signed ───────────────────────────────────────────────────────────────────


async def test_t14_a_token_reaches_only_the_server_that_it_is_for(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """10,000 random requests to 20 servers of 5 issuers, with redirects to other paths and hosts."""
    choose = random.Random(14)
    async with logged_in(tmp_path, login=False) as world:
        owners: dict[str, str] = {}
        credentials = []
        for number in range(20):
            host, issuer = number // 2, f"https://as{number % 5}.example"
            url = f"https://host{host}.example/{'ab'[number % 2]}/mcp"
            credentials.append(await world.manager.credentials_for(f"s{number}", url))
            login = a_login(
                {"access_token": f"token-of-{number:02}", "refresh_token": f"r{number}", "expires_in": 9e6},
                START,
                resource=url,
                issuer=issuer,
            )
            await world.manager.add_login(login, url)
            owners[f"token-of-{number:02}"] = url
        places = [
            *owners.values(),
            *(url + "/more" for url in owners.values()),
            *(url + "x" for url in owners.values()),
            *(url.replace("https", "http") for url in owners.values()),
            *(url.replace("/mcp", "/../mcp") for url in owners.values()),
            *(url.replace(".example", ".example.evil") for url in owners.values()),
            *(url.replace(".example", ".example:8443") for url in owners.values()),
        ]
        signed = 0
        for _ in range(10_000):
            where, using = choose.choice(places), choose.choice(credentials)
            signature = using.sign("POST", where)
            assert signature is not None
            for _, value in signature.headers:
                owner = owners[value.removeprefix("Bearer ")]
                assert where in (owner, owner + "/more")
                assert using.url == owner
                signed += 1
        assert signed > 50


@pytest.mark.parametrize("engine", ["loopback", "network"])
async def test_t14_a_redirect_does_not_take_the_token_to_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Neither to another path of the server, nor to another server, on mcpd's own connections and others."""
    if engine == "network":
        monkeypatch.setattr(client_factory, "is_loopback", lambda host: False)
    seen: list[str | None] = []
    script, targets = LegacyScript(), ["/other"]

    async def elsewhere(request: Request) -> None:
        seen.append(request.headers.get("authorization"))
        await request.reply(401)

    async def lure(request: Request) -> None:
        if request.path == "/other":
            await elsewhere(request)
        elif request.rpc == "tools/call":
            await request.reply(307, Location=targets.pop())
        else:
            assert request.headers["authorization"].startswith("Bearer ")
            await script(request)

    authorization = AuthorizationServer()
    manager = TokenManager(TokenStore(tmp_path), authorization.send, Redactor())
    async with fake_http(lure) as server, fake_http(elsewhere) as other, manager.running():
        credentials = await manager.credentials_for("it", server.url)
        login = a_login(authorization.issue(), time.time(), resource=server.url)
        await manager.add_login(login, server.url)
        async with talking(server.url, credentials=credentials) as talk:
            assert isinstance(await outcome(talk.call()), McpdError)
            targets.append(other.url)
            assert isinstance(await outcome(talk.call()), McpdError)
        assert set(seen) == {None}
        assert other.requests == []


async def test_a_request_from_before_the_login_is_sent_once_more(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It was refused while somebody logged in."""
    async with logged_in(tmp_path) as world:
        assert await world.credentials.refused(Refusal(401, httpx.Headers(), UNSIGNED))
        assert not await world.credentials.refused(Refusal(401, httpx.Headers(), UNSIGNED, 1))
        assert not await world.credentials.refused(Refusal(403, httpx.Headers(), UNSIGNED))


async def test_logging_out_forgets_the_tokens(autojump_clock: MockClock, tmp_path: Path) -> None:
    """In memory, in the file, and in what is masked; a renewal under way changes nothing."""
    async with logged_in(tmp_path, AuthorizationServer(takes=5)) as world:
        login = world.credentials.login
        assert login is not None
        assert "***" in world.redactor.mask("access-canary-1")
        login.renew()
        await trio.sleep(1)
        removed = await world.manager.remove_login(login.stored.id)
        assert removed is login.stored or removed is not None
        await trio.sleep(10)
        assert world.credentials.login is None
        assert world.store.read().logins == {}
        assert await world.call() == "401"
        assert await world.manager.remove_login("unknown") is None


async def test_the_secret_of_a_preregistered_client_comes_from_the_definition(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It is not stored; without it, the login is kept."""
    client = ClientRegistration(ISSUER, "own", "pre-registered", "client_secret_post", "own-canary")
    server = AuthorizationServer()
    async with logged_in(tmp_path, server, client=client) as world:
        server.access.clear()
        with pytest.raises(LinkLost, match="client secret"):
            await world.call()
        other = OAuthSettings(client_id="another", client_secret="of-another-client")
        await world.manager.credentials_for("it", URL, other)
        await trio.sleep(5)
        with pytest.raises(LinkLost, match="client secret"):
            await world.call()
        own = OAuthSettings(client_id="own", client_secret="own-canary")
        await world.manager.credentials_for("it", URL, own)
        await trio.sleep(10)
        assert await world.call() == "ok"
        assert server.requests[-1]["client_secret"] == "own-canary"
        assert "own-canary" not in world.store.path.read_text()


# ── stopping ──────────────────────────────────────────────────────────────────


async def test_stopping_waits_for_an_answer_that_is_under_way(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A lost answer may end the login; ten seconds are enough for most."""
    server = AuthorizationServer(takes=3)
    async with logged_in(tmp_path, server) as world:
        login = world.credentials.login
        assert login is not None
        login.renew()
        await trio.sleep(0.5)
    with_store = TokenStore(tmp_path)
    (stored,) = with_store.open().logins.values()
    with_store.close()
    assert stored.generation == 2
    assert stored.tokens.refresh_token == server.refresh


async def test_stopping_does_not_wait_for_ever(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The file says that the renewal was interrupted."""
    server = AuthorizationServer(faults=[hang])
    began = trio.current_time()
    async with logged_in(tmp_path, server) as world:
        login = world.credentials.login
        assert login is not None
        login.renew()
        await trio.sleep(0.5)
    assert trio.current_time() - began < 15
    assert len(server.requests) == 1
    store = TokenStore(tmp_path)
    (stored,) = store.open().logins.values()
    store.close()
    assert stored.attempt_at is not None
    async with logged_in(tmp_path, server, login=False) as world:  # the next daemon repeats it
        await trio.sleep(1)
        assert len(server.requests) == 2
        assert await world.call() == "ok"


async def test_the_end_of_a_login_is_reported_before_a_request_fails(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is reported once, and does not wait for the disk."""
    async with logged_in(tmp_path) as world:
        world.authorization.revoked = True
        world.authorization.access.clear()
        change, saving, stored = world.manager._file.change, trio.Event(), trio.Event()

        async def change_slowly(edit: Callable[[StoredLogins], StoredLogins]) -> None:
            if any(login.ended is not None for login in edit(StoredLogins()).logins.values()):
                saving.set()
                await stored.wait()
            await change(edit)

        world.manager._file.change = change_slowly  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.call)
            await saving.wait()
            assert await world.call() != "ok"
            assert world.events.count("login_needed") == 1
            stored.set()
        assert world.events.count("login_needed") == 1


async def test_a_late_success_does_not_replace_a_newer_login(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Neither in memory nor in the file."""
    async with logged_in(tmp_path, AuthorizationServer(takes=10, ends_old_tokens=False)) as world:
        login = world.credentials.login
        assert login is not None
        login.renew()
        await trio.sleep(1)
        newer = a_login(AuthorizationServer().issue(), world.time.clocks().wall())
        await world.manager.add_login(attrs.evolve(newer, requested_scopes=("new",)), URL)
        await trio.sleep(60)
        assert world.stored().requested_scopes == ("new",)
        assert login.stored.requested_scopes == ("new",)


async def test_retry_after_is_obeyed_also_if_calls_come(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with logged_in(tmp_path) as world:
        world.authorization.access.clear()
        world.authorization.faults = [answering(503, retry_after=100.0)]
        began = trio.current_time()
        while trio.current_time() - began < 95:
            with pytest.raises(LinkLost):
                await world.call()
            await trio.sleep(1)
        assert len(world.authorization.requests) == 1
        await trio.sleep(10)
        assert await world.call() == "ok"
