"""The HTTP side of the page, without a browser: login, permitted methods, and response headers."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from wsproto.events import TextMessage

from mcpd.api.control.access import PAGE
from mcpd.api.control.methods import METHODS
from mcpd.api.dashboard import page
from tests.dashboard.visitor import KEY, Socket, code_of, log_in, opened, redeem, socket_of
from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, fake, in_flight
from tests.e2e.web import PORT, http_endpoint, over_unix, request


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """Run one server, `one`, that responds."""
    running = start({"one": fake()}, *PORT)
    running.wait_connected("one")
    return running


def test_code_is_exchanged_for_a_cookie_limited_to_the_page(daemon: Daemon) -> None:
    """Scripts, other sites and paths outside the page cannot read the cookie."""
    answer = redeem(http_endpoint(daemon), code_of(daemon))
    name, *facts = re.split("; ?", answer.headers["set-cookie"])
    assert name.startswith(f"mcpd-page-{http_endpoint(daemon).port}=")
    assert sorted(facts) == ["HttpOnly", "Path=/page", "SameSite=Strict"]
    assert answer.headers["cache-control"] == "no-store"
    secrets = [name.partition("=")[2], answer.json()["key"], http_endpoint(daemon).token]
    assert not [secret for secret in secrets if secret in daemon.log]


def test_forms_and_other_pages_cannot_exchange_a_code(daemon: Daemon) -> None:
    attempts: list[tuple[dict[str, str], int]] = [
        ({"Origin": ""}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({KEY: ""}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 200),
    ]
    for headers, status in attempts:
        assert redeem(http_endpoint(daemon), code_of(daemon), **headers).status_code == status, headers


def test_cookie_grants_access_to_the_page_only(daemon: Daemon) -> None:
    """The cookie opens neither /mcp nor /metrics, and the token for those does not open the page."""
    visitor = log_in(daemon)
    base = visitor.endpoint.base
    for path in ("/mcp", "/servers/one/mcp", "/metrics"):
        assert web.post(f"{base}{path}", headers=visitor.headers, json={}).status_code == 401, path
    session = f"{base}/page/session"
    assert web.get(session, headers=visitor.headers).status_code == 204
    assert web.get(session, headers={**visitor.headers, KEY: "guessed"}).status_code == 401
    assert web.get(session, headers={**visitor.headers, "Cookie": ""}).status_code == 401
    assert web.get(session, headers=visitor.endpoint.bearer).status_code == 403
    with opened(visitor, Cookie="", Authorization=f"Bearer {visitor.endpoint.token}") as got:
        assert got == 401


def refusals() -> list[tuple[dict[str, str], int]]:
    hosts = ["evil.example", "localhost.evil.example", "0.0.0.0", "127.0.0.1", "[::ffff:127.0.0.1]", "[::]"]
    origins = ["", "null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1", "file://"]
    return [
        *(({"Host": f"{host}:1"}, 403) for host in hosts),
        *(({"Origin": origin}, 403) for origin in origins),
        *(({"Sec-Fetch-Site": site}, 403) for site in ("cross-site", "same-site")),
        ({"Cookie": ""}, 401),
        ({"Cookie": "mcpd-page-1=x"}, 401),
        ({"Protocols": "mcpd.page,key.x"}, 401),
        ({"Protocols": "mcpd.page"}, 403),
        ({"Protocols": "mcp"}, 426),
    ]


def test_websocket_is_refused_before_the_upgrade(daemon: Daemon) -> None:
    """A wrong host, origin, Sec-Fetch header, cookie or key is each enough for a refusal."""
    visitor = log_in(daemon)
    for headers, status in refusals():
        with opened(visitor, **headers) as got:
            assert got == status, headers
    with opened(visitor) as got:
        assert isinstance(got, Socket)
    plain = web.get(f"{visitor.endpoint.base}/page/socket", headers=visitor.headers)
    assert plain.status_code == 426


def test_methods_that_start_programs_are_refused(daemon: Daemon) -> None:
    """The page can look, reconnect, toggle and call. Only the Unix socket can change the set of servers."""
    assert METHODS.keys() >= PAGE.methods
    attack = {"command": "touch", "args": ["/tmp/owned"]}
    with socket_of(log_in(daemon)) as socket:
        for method in [
            *sorted(METHODS.keys() - PAGE.methods),
            "rpc.discover",
            "tools/call",
            "initialize",
            "mcpd/CALL",
        ]:
            answer = socket.ask(method, server="one", definition=attack, servers={"x": attack})
            assert answer["error"]["code"] == -32601, method
        socket.send(TextMessage(data='{"jsonrpc":"2.0","method":"mcpd/shutdown"}'))
        socket.send(TextMessage(data='{"id":1,\n"method":"mcpd/version"}\n{"id":2,"method":"mcpd/shutdown"}'))
        assert socket.message()["error"]["code"] == -32700
        pretty = '{"jsonrpc":"2.0",\r\n"id":3,\n"method":"mcpd/version"}'
        socket.send(TextMessage(data=pretty))
        assert socket.message()["result"]["pid"] == daemon.pid


def test_closing_the_page_cancels_its_calls(daemon: Daemon) -> None:
    with socket_of(log_in(daemon)) as socket:
        text = (
            '{"jsonrpc":"2.0","id":1,"method":"mcpd/call","params":{"server":"one","tool":"drop",'
            '"arguments":{},"_meta":{}}}'
        )
        socket.send(TextMessage(data=text))
        in_flight(daemon, "one", 1)
    in_flight(daemon, "one", 0)


def test_logout_ends_the_session(daemon: Daemon) -> None:
    """The open socket, the cookie and the key become invalid together."""
    visitor = log_in(daemon)
    session = f"{visitor.endpoint.base}/page/session"
    with socket_of(visitor) as socket:
        gone = web.delete(session, headers=visitor.headers)
        assert gone.status_code == 204
        assert "Max-Age=0" in gone.headers["set-cookie"]
        assert socket.closed().code == 1001
    assert web.get(session, headers=visitor.headers).status_code == 401


def test_files_are_restricted_by_a_policy(daemon: Daemon) -> None:
    """The content security policy allows our own files only, and nothing inline."""
    base = http_endpoint(daemon).base
    index = web.get(f"{base}/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    policy = index.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|https?:|\*", " ".join(policy))
    found = re.findall(r'(?:src|href)="(/[^"]+)"', index.text)
    assert len(found) == 3
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", index.text)
    for path in found:
        file = web.get(f"{base}{path}")
        assert file.status_code == 200, path
        imported = [f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', file.text)]
        found += [name for name in imported if name not in found]
        assert file.headers["x-content-type-options"] == "nosniff"
    scripts = {f"/page/{each.name}" for each in Path(page.__file__).parent.glob("*.js")}
    assert scripts <= set(found), "a script that nobody uses"
    assert web.head(f"{base}/").headers["content-length"] == str(len(index.content))
    assert web.post(f"{base}/").status_code == 405
    assert web.post(f"{base}/", json={}).status_code == 413


def test_page_opens_a_port_for_itself_alone(start: Start) -> None:
    """On the first request, if HTTP is off. The port serves nothing else and is not published."""
    daemon = start({"one": fake()})
    with daemon.client() as client:
        links = [client.answer(key) for key in [client.send("mcpd/page") for _ in range(3)]]
        bases = {link["url"].partition("/#")[0] for link in links}
        assert len(bases) == 1, "one port"
        (base,) = bases
        assert base.startswith("http://127.0.0.1:")
        assert client.request("mcpd/status")["daemon"]["http"] is None
    assert not (Path(daemon.socket).parent / "http.json").exists()
    assert web.get(f"{base}/").status_code == 200
    code = links[0]["url"].rpartition("#")[2]
    headers = {"Origin": base, "X-Mcpd-Page": "a-key-of-the-page-0123456789abcdef"}
    assert web.post(f"{base}/page/session", json={"code": code}, headers=headers).status_code < 300
    assert web.get(f"{base}/metrics").status_code == 401
    assert web.post(f"{base}/mcp", json={}).status_code == 401
    assert daemon.stop() == 0
    with pytest.raises(httpx.ConnectError):
        web.get(f"{base}/")


def test_page_is_not_served_on_the_socket(start: Start) -> None:
    daemon = start({})
    with over_unix(daemon) as http:
        assert http.get("/").status_code == 404
        assert http.get("/page/session").status_code == 404
        assert "mcpd_build_info" in http.get("/metrics").text


def test_metrics_require_the_token(daemon: Daemon) -> None:
    """The response has the name and version of the format that Prometheus requests."""
    where = http_endpoint(daemon)
    assert web.get(f"{where.base}/metrics").status_code == 401
    scraped = web.get(f"{where.base}/metrics", headers=where.bearer)
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'mcpd_server_up{server="one"} 1' in scraped.text
    assert web.post(f"{where.base}/metrics", headers=where.bearer).status_code == 405


def test_page_requires_login_even_without_http_auth(start: Start) -> None:
    """The page toggles servers, which programs at /mcp cannot do."""
    daemon = start({"one": fake()}, *PORT, "--http-auth", "none")
    where = http_endpoint(daemon)
    assert web.get(f"{where.base}/page/session", headers={KEY: "1"}).status_code == 401
    with opened(log_in(daemon)) as got:
        assert isinstance(got, Socket)
    assert web.post(f"{where.base}/rpc", json=request("mcpd/status")).status_code == 404
