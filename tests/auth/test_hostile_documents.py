"""Every document of a login may be an attack: it ends at its step, reaches nobody else, and is explained.

T12, T13 and T18 of the table in `test_fault_table`.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import trio
from trio.testing import MockClock

from mcpd.auth.guarded_fetch import MAX_REQUESTS, FetchedAnswer, FetchError, GuardedFetch
from mcpd.auth.oauth.tokens import TokenRequest
from mcpd.auth.oauth.urls import is_usable
from mcpd.auth.token_store import StoredLogin
from mcpd.model.errors import LoginFailed
from tests.auth.attempts import attempting
from tests.auth.authorization_server import ISSUER, URL, a_login
from tests.auth.authorization_server import AuthorizationServer as RotatingServer
from tests.auth.authorization_server import logged_in as renewing_world
from tests.auth.test_guarded_fetch import Names, names
from tests.auth.test_login_attempt import failure
from tests.fakes.authorization_server import METADATA, PRM, AuthorizationServer, authorization_server
from tests.fakes.http import Request, fake_http
from tests.stopwatch import stopwatch, within

__all__ = ["names"]

Spoil = Callable[[AuthorizationServer], None]
HUGE = b'{"x":"' + b"x" * 2_000_000 + b'"}'
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
URLS = (
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,x",
    "http://192.0.2.1/x",
    "https://10.0.0.1/x",
    "https://169.254.169.254/latest",
    "https://[::ffff:10.0.0.1]/x",
    "https://user:password@192.0.2.1/x",
    "https://192.0.2.1:0/x",
    "//192.0.2.1/x",
    "https://",
    "https://a..b/x",
    "https://xn--0/x",
    "https://\u202eevil/\r\nX: y",
    "x" * 20_000,
)
BODIES = (
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"<html>",
    b"{",
    b"\xff\xfe",
    HUGE,
    DEEP,
    b"{}",
    b'{"issuer":{}}',
)


def prm(**members: object) -> Spoil:
    def spoil(server: AuthorizationServer) -> None:
        assert server.prm is not None
        server.prm.update(members)

    return spoil


def metadata(**members: object) -> Spoil:
    def spoil(server: AuthorizationServer) -> None:
        assert server.metadata is not None
        server.metadata.update(members)

    return spoil


def answer(path: str, status: int, body: bytes) -> Spoil:
    return lambda server: server.answers.__setitem__(path, (status, body))


DISCOVERY: dict[str, Spoil] = {
    **{f"issuer {url[:20]}": prm(authorization_servers=[url]) for url in URLS},
    "no issuers": prm(authorization_servers=[]),
    "issuers of another type": prm(authorization_servers={"x": 1}),
    "10,000 issuers": prm(authorization_servers=["javascript:x"] * 10_000),
    "resource of another host": prm(resource="https://other.example/mcp"),
    "resource of a sibling": prm(resource="http://127.0.0.1/mc"),
    "resource of another type": prm(resource=[1]),
    "huge resource metadata": answer(PRM, 200, HUGE),
    "another issuer": metadata(issuer="https://evil.example"),
    "huge server metadata": answer(METADATA, 200, HUGE),
    **{f"authorize {url[:20]}": metadata(authorization_endpoint=url) for url in URLS if not is_usable(url)},
    **{f"token {url[:20]}": metadata(token_endpoint=url) for url in URLS if not is_usable(url)},
    "no S256": metadata(code_challenge_methods_supported=["plain"]),
}
LATER: dict[str, Spoil] = {
    **{f"token {url[:20]}": metadata(token_endpoint=url) for url in URLS if is_usable(url)},
    **{f"register {url[:20]}": metadata(registration_endpoint=url) for url in URLS},
    **{f"client {number}": answer("/register", 201, body) for number, body in enumerate(BODIES)},
    "client ID of another type": answer("/register", 201, b'{"client_id":7}'),
    **{f"tokens {number}": answer("/token", 200, body) for number, body in enumerate(BODIES)},
    "token with a line break": answer("/token", 200, b'{"access_token":"a\\r\\nX: y"}'),
    "token of another type": answer("/token", 200, b'{"access_token":"a","token_type":"mac"}'),
    "redirected token": answer("/token", 307, b""),
}


@pytest.mark.parametrize("name", [*DISCOVERY, *LATER])
async def test_t13_a_hostile_document_ends_the_login_at_its_step(name: str) -> None:
    """Within 10 seconds and 16 requests, and before a person is shown a link if mcpd can know by then."""
    async with authorization_server() as server:
        (DISCOVERY | LATER)[name](server)
        with stopwatch() as watch:
            error = await failure(server)
            assert within(watch.seconds, 10.0)
        assert error.step
        assert len(str(error)) < 1500
        assert str(error).isprintable()
        assert len(server.http.requests) <= MAX_REQUESTS + 3
        if name in DISCOVERY:
            assert server.asked("/authorize") == server.asked("/register") == []


@pytest.mark.parametrize("url", URLS)
async def test_t13_a_hostile_address_in_a_challenge_is_not_used(url: str) -> None:
    async with authorization_server() as server:
        plain = "".join(char for char in url if char.isascii() and char.isprintable())
        server.challenge = f'Bearer resource_metadata="{plain}"'
        async with attempting(server.url) as attempt:
            offer = await attempt.wait_offer()  # the well-known place has the metadata, too
            assert offer.url.startswith(server.origin)


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_t13_redirects_in_a_loop_end(count: int) -> None:
    asked = itertools.count(1)

    async def turn(request: Request) -> None:
        if request.path == "/mcp":
            await request.reply(401, WWW_Authenticate="Bearer")
        else:
            await request.reply(302, location=f"{request.path.rstrip('0123456789')}{next(asked) % count}")

    async with fake_http(turn) as server, attempting(server.url) as attempt:
        with pytest.raises(LoginFailed, match="redirects"):
            await attempt.wait_offer()
        assert len(server.requests) <= MAX_REQUESTS


async def test_t13_ten_thousand_scopes_are_not_requested() -> None:
    async with authorization_server() as server:
        prm(scopes_supported=[f"scope{number}" for number in range(10_000)])(server)
        async with attempting(server.url) as attempt:
            offer = await attempt.wait_offer()
        assert len(offer.scopes or ()) == 200
        assert len(offer.url) < 8192


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1", "0.0.0.0"])
async def test_t13_a_public_server_leads_to_no_private_address(
    names: Names, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither named, nor by a name that resolves to it, nor by one that resolves to it the second time."""
    connected: list[str] = []

    async def connect(self: object, target: tuple[str, int]) -> None:
        connected.append(target[0])
        raise OSError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(trio.socket.SocketType, "connect", connect)
    names.names["as.example"] = [address]
    names.names["rebind.example"] = ["8.8.8.8", address]
    shown = f"[{address}]" if ":" in address else address
    for issuer in (f"https://{shown}", "https://as.example", "https://rebind.example"):
        fetch = GuardedFetch("https://mcp.example/mcp", {})
        for path in ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"):
            with pytest.raises(FetchError):
                await fetch.get(issuer + path)
    assert set(connected) <= {"8.8.8.8"}


# ── T12: the answer ──────────────────────────────────────────────────────────────────────────────────────

INJECTED = "injected-by-an-attacker"


def forged(address: str, **changes: str | None) -> str:
    """Return the address of the redirect with other parameters; None removes one."""
    parts = urlsplit(address)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    kept = {name: value for name, value in {**query, **changes}.items() if value is not None}
    return parts._replace(query=urlencode(kept)).geturl()


ERROR = {"code": None, "error": "access_denied", "error_description": INJECTED, "error_uri": INJECTED}


@pytest.mark.parametrize(
    ("advertised", "changes"),
    [
        (False, {"iss": "https://evil.example"}),
        (True, {}),
        (True, ERROR),
        (True, {"iss": "ORIGIN", "code": None}),
    ],
    ids=str,
)
async def test_t12_a_forged_answer_reaches_no_token_endpoint(
    advertised: bool, changes: dict[str, str | None]
) -> None:
    """And its texts are not shown."""
    async with authorization_server() as server:
        metadata(authorization_response_iss_parameter_supported=advertised)(server)
        changes = {name: value and value.replace("ORIGIN", server.origin) for name, value in changes.items()}
        async with attempting(server.url) as attempt:
            offer = await attempt.wait_offer()
            page = await server.return_to(forged(await server.visit(offer.url), **changes))
            with pytest.raises(LoginFailed) as caught:
                await attempt.wait()
        assert server.token_requests == []
        assert INJECTED not in page.text + str(caught.value)


async def test_t12_an_answer_of_another_login_is_not_taken() -> None:
    """A code that somebody obtained at another authorization server, with its state or with ours missing."""
    async with authorization_server() as server, authorization_server() as other:
        async with attempting(server.url) as attempt, attempting(other.url) as second:
            ours = await server.visit((await attempt.wait_offer()).url)
            theirs = await other.visit((await second.wait_offer()).url)
            injected = {name: values[0] for name, values in parse_qs(urlsplit(theirs).query).items()}
            for changes in (injected, {"code": injected["code"], "state": None}, {"state": "x" * 43}):
                page = await server.return_to(forged(ours, **changes))
                assert page.status_code == 400
            assert server.token_requests == other.token_requests == []
            await server.return_to(ours)
            await attempt.wait()
        assert [form["code"] for form in server.token_requests] == [parse_qs(urlsplit(ours).query)["code"][0]]


async def test_t12_two_tabs_lead_to_one_login() -> None:
    async with authorization_server() as server, attempting(server.url) as attempt:
        offer = await attempt.wait_offer()
        tabs = [await server.visit(offer.url) for _ in range(2)]
        pages = []

        async def finish(address: str) -> None:
            pages.append(await server.return_to(address))

        async with trio.open_nursery() as nursery:
            for address in tabs:
                nursery.start_soon(finish, address)
        await attempt.wait()
        assert sorted(page.status_code for page in pages) == [200, 400]
        assert len(server.token_requests) == 1


# ── T18: another authorization server ────────────────────────────────────────────────────────────────────


class _TwoServers(RotatingServer):
    """Two authorization servers: what is sent to the second one is its `requests`."""

    def __init__(self) -> None:
        super().__init__()
        self.second = RotatingServer()
        self.second._numbers = itertools.count(1000)

    async def send(self, login: StoredLogin, request: TokenRequest) -> FetchedAnswer:
        if login.issuer == ISSUER:
            return await super().send(login, request)
        return await self.second.send(login, request)


async def test_t18_fifty_calls_survive_the_move_to_another_authorization_server(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Those under way continue with the new login, and the next renewal is the second server's alone."""
    both, other = _TwoServers(), "https://other.example"
    async with renewing_world(tmp_path, both) as world:
        world.latency = 0.5
        outcomes: list[str] = []

        async def call() -> None:
            outcomes.append(await world.call())

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(call)
            await trio.sleep(0.1)
            both.access = both.second.access
            answer = both.second.issue()
            login = a_login(answer, world.time.clocks().wall(), issuer=other, token_endpoint=f"{other}/token")
            await world.manager.add_login(login, URL)
        assert outcomes == ["ok"] * 50
        assert world.executed == 50
        assert both.requests == both.second.requests == []
        both.second.access.clear()
        assert await world.calls(50) == ["ok"] * 50
        assert both.requests == []
        assert [each["refresh_token"] for each in both.second.requests] == ["refresh-canary-1000"]
