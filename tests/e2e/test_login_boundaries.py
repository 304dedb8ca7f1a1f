"""What may not cross mcpd: tokens of either side, and addresses that are no web pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, wait_until
from tests.e2e.login_people import logged_in_remote, needs_login, open_page, served, visit
from tests.e2e.test_login import start_mcpctl
from tests.e2e.web import BOTH, MODERN, PORT, P, http_endpoint


def test_no_token_passes_from_one_side_to_the_other(start: Start) -> None:
    """What a client presents at the HTTP port is not sent to servers, and their tokens are not sent to it."""
    with logged_in_remote(start, *PORT) as (server, daemon):
        entrance = http_endpoint(daemon)
        own = {
            "Cookie": "session=client-canary",
            "X-Api-Key": "client-canary",
            "Proxy-Authorization": "Basic client-canary",
        }
        meta = {
            f"{P}protocolVersion": MODERN,
            f"{P}clientCapabilities": {},
            f"{P}clientInfo": {"name": "test", "version": "1"},
        }
        with entrance.client() as client:
            answer = client.post(
                "/servers/remote/mcp",
                json={
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "tools/call",
                    "params": {"name": "echo", "arguments": {}, "_meta": meta},
                },
                headers={
                    **own,
                    "MCP-Protocol-Version": MODERN,
                    "Mcp-Method": "tools/call",
                    "Mcp-Name": "echo",
                    "Accept": BOTH,
                },
            )
        assert answer.status_code == 200, answer.text
        assert "done" in answer.text
        calls = [request for request in server.asked("/mcp") if b"tools/call" in request.body]
        assert len(calls) == 1
        for request in server.http.requests:
            sent = f"{request.path} {dict(request.headers)} {request.body!r}"
            assert entrance.token not in sent
            assert "client-canary" not in sent
        received = answer.text + json.dumps(dict(answer.headers))
        assert [token for token in server.granted if token in received] == []


def test_the_browser_gets_the_address_as_one_argument(start: Start, tmp_path: Path) -> None:
    """No shell reads it: an authorization server chooses the address."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        f"pathlib.Path({str(opened) + '.draft'!r}).write_text(json.dumps(sys.argv[1:]))\n"
        f"pathlib.Path({str(opened) + '.draft'!r}).rename({str(opened)!r})\n"
    )
    browser.chmod(0o755)
    with served() as server:
        assert server.metadata is not None
        server.metadata["authorization_endpoint"] += "?a=$(touch+x);b=`id`&c=|x"
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        login = start_mcpctl(daemon, "login", "remote", BROWSER=str(browser))
        assert login.stdout is not None
        url = login.stdout.readline().strip()
        wait_until(opened.exists, lambda: daemon.log)
        assert json.loads(opened.read_text()) == [url]
        assert "$(touch+x)" in url or "%24%28touch" in url
        open_page(visit(url))
        assert login.wait(BOUND) == 0
        login.communicate()
