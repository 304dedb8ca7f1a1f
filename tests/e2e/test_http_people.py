"""Servers that each person uses with secrets of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mcpd.config.secret_store import change_secrets
from tests.e2e.harness import Daemon, Json, private_environment, running, wait_until
from tests.e2e.issuer import AUDIENCE, Issuer
from tests.e2e.test_http_network import client, issuer, make_certificate
from tests.e2e.web import Session, ask, messages

__all__ = ["issuer"]
SERVER = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    secret, method = os.environ["SECRET"], request["method"]
    if "id" not in request:
        continue
    result = {
        "initialize": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "instructions": f"of {secret}",
            "serverInfo": {"name": "it", "version": "1"},
        },
        "tools/list": {"tools": [
            {"name": "secret", "inputSchema": {"type": "object"}},
            {"name": f"tool-of-{secret}", "inputSchema": {"type": "object"}},
        ]},
        "tools/call": {"content": [{"type": "text", "text": secret}]},
    }.get(method)
    answer = {"error": {"code": -32601, "message": method}} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Daemon]:
    home = tmp_path_factory.mktemp("people")
    stored = {"KEY": "operator", "KEY@ada": "of-ada", "KEY@bob": "of-bob"}
    change_secrets(private_environment(home), dict(stored))
    http = {
        "listen": "127.0.0.1:0",
        "tls": make_certificate(home),
        "jwt": {"issuer": issuer.url, "audience": AUDIENCE},
    }
    server = {
        "command": sys.executable,
        "args": ["-c", SERVER],
        "env": {"SECRET": "${secret:KEY}"},
        "share": "person",
    }
    with running(home, {"own": server}, settings={"http": http}) as daemon:
        daemon.wait_connected("own")
        with client(daemon) as http_client:
            wait_until(lambda: http_client.get("/readyz").status_code == 200, lambda: daemon.log)
        yield daemon


def text(answer: httpx.Response) -> str:
    return str(messages(answer)[-1]["result"]["content"][0]["text"])


def listed(answer: httpx.Response) -> set[str]:
    return {tool["name"].removeprefix("own__") for tool in messages(answer)[-1]["result"]["tools"]}


@pytest.mark.parametrize("path", ["/mcp", "/servers/own/mcp"])
def test_calls_and_lists_are_those_of_the_person(daemon: Daemon, issuer: Issuer, path: str) -> None:
    """At the same time, and in both eras."""
    prefix = "own__" if path == "/mcp" else ""

    def use(person: str) -> set[tuple[str, frozenset[str]]]:
        found = set()
        with client(daemon, issuer.token(person)) as http:
            session = Session(http, path)
            session.call(f"{prefix}secret")  # waits until it has been started, unlike a list
            for _ in range(10):
                tools = listed(ask(http, path, "tools/list"))
                found.add((text(ask(http, path, "tools/call", name=f"{prefix}secret")), frozenset(tools)))
                tools = listed(session.post({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}))
                found.add((text(session.call(f"{prefix}secret")), frozenset(tools)))
        return found

    with ThreadPoolExecutor() as threads:
        for person, found in zip(["ada", "bob"] * 4, threads.map(use, ["ada", "bob"] * 4), strict=True):
            assert found == {(f"of-{person}", frozenset({"secret", f"tool-of-of-{person}"}))}
    with daemon.client() as control:
        assert control.call("own", "secret")["output"] == "operator"
    assert "of-ada" not in daemon.log


def test_person_without_a_secret_learns_what_is_missing(daemon: Daemon, issuer: Issuer) -> None:
    with client(daemon, issuer.token("eve")) as http:
        assert messages(ask(http, "/mcp", "tools/list"))[-1]["result"]["tools"] == []
        answer: Json = ask(http, "/mcp", "tools/call", name="own__secret").json()
        assert "mcpctl secret set KEY@eve" in answer["error"]["message"]
        assert daemon.mcpctl("secret", "set", "KEY@eve", stdin="of-eve").returncode == 0
        assert text(ask(http, "/mcp", "tools/call", name="own__secret")) == "of-eve"
