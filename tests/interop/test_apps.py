"""MCP Apps: what a host sees through mcpd is what it sees directly, with servers and a host by others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import harness
from tests.gateway.mcp_client import McpClient
from tests.interop.clients.drivers import HERE, ROOT, Json, modules, node, run, stdio

UI = "io.modelcontextprotocol/ui"
HOST = {"extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
SDK_SERVER = """
from mcp.server.apps import Apps, client_supports_apps
from mcp.server.mcpserver import Context, MCPServer
apps = Apps()

@apps.tool(resource_uri="ui://clock/page.html")
def clock(ctx: Context) -> str:
    return "page" if client_supports_apps(ctx) else "text"

apps.add_html_resource("ui://clock/page.html", "<p>12:00</p>", prefers_border=True)
MCPServer("clock", extensions=[apps]).run()
"""
EXAMPLES = {
    "server-debug": (["debug-tool", {}], ["debug-refresh", {}]),
    "server-basic-vanillajs": (["get-time", {}], ["get-time", {}]),
    "server-budget-allocator": (["get-budget-data", {}], None),
}
"""Examples of the extension's authors: the tool that the model calls, and the tool that the page calls."""
CLOCK = stdio(sys.executable, "-c", SDK_SERVER)


def example(name: str) -> Json:
    package = modules("@modelcontextprotocol") / name
    if not package.exists():
        pytest.skip(f"{name} is not there: `make interop` installs it")
    program = json.loads((package / "package.json").read_text())["bin"]
    if isinstance(program, dict):
        [program] = program.values()
    return stdio(node(), str(package / program), "--stdio")


def host(server: Json, tool: Any, from_page: Any, home: Path, *, modern: bool) -> Json:
    """Return what the host of tests/interop/clients/apps_host.mjs sees."""
    job = {"server": server, "modern": modern, "tool": tool, "from_page": from_page}
    report: Json = json.loads(run((node(), str(HERE / "apps_host.mjs")), home, json.dumps(job)))
    return report


def bridge(daemon: harness.Daemon, *flags: str) -> Json:
    ours = {name: text for name, text in daemon.environ.items() if name.startswith("XDG_")}
    return stdio(sys.executable, "-m", "ctl", "bridge", *flags, environ={**ours, "PYTHONPATH": str(ROOT)})


def comparable(report: Json, prefix: str = "") -> Json:
    """Return the report without what the time decides, and without what marks the server of a tool."""
    tools = {}
    for name, tool in report["tools"].items():
        assert name.startswith(prefix)
        text = tool["description"].partition("] ")[2] if prefix else tool["description"]
        own = name.removeprefix(prefix)
        tools[own] = {**tool, "name": own, "description": text}
    results = [report["result"], report.get("fromPage") or {"content": []}]
    shapes = [(sorted(each.get("structuredContent", {})), len(each["content"])) for each in results]
    return {"tools": tools, "resources": report["resources"], "pages": report["pages"], "results": shapes}


@pytest.mark.parametrize(("name", "modern"), [*((name, True) for name in EXAMPLES), ("server-debug", False)])
def test_host_sees_the_same_as_directly(name: str, modern: bool, tmp_path: Path) -> None:
    """Tools, pages byte for byte, results, and what the page of an app calls by the server's own name."""
    server, (tool, from_page) = example(name), EXAMPLES[name]
    directly = comparable(host(server, tool, from_page, tmp_path, modern=modern))
    assert directly["pages"]
    with harness.running(tmp_path, {"app": server, "clock": CLOCK}) as daemon:
        daemon.wait_connected("app", "clock")
        one = host(bridge(daemon, "--server", "app"), tool, from_page, tmp_path, modern=modern)
        assert comparable(one) == directly
        public = [f"app__{tool[0]}", tool[1]]
        among = host(bridge(daemon), public, from_page, tmp_path, modern=modern)
        assert UI in among["extensions"]
        assert among["tools"].pop("clock__clock")["page"] == "ui://clock/page.html"
        among["pages"].pop("ui://clock/page.html")
        among["resources"] = [each for each in among["resources"] if "clock" not in each["uri"]]
        assert comparable(among, "app__") == directly


def test_same_app_twice_keeps_its_pages_apart(tmp_path: Path) -> None:
    """Hosts accept only pages whose URI begins with `ui://`."""
    server = example("server-basic-vanillajs")
    with harness.running(tmp_path, {"a": server, "b": server}) as daemon:
        daemon.wait_connected("a", "b")
        seen = host(bridge(daemon), ["b__get-time", {}], None, tmp_path, modern=False)
    pages = {name: tool["page"] for name, tool in seen["tools"].items()}
    assert pages["a__get-time"] != pages["b__get-time"]
    assert set(seen["pages"]) == set(pages.values())
    assert len({page["sha"] for [page] in seen["pages"].values()}) == 1
    assert all(page["uri"] == uri for uri, [page] in seen["pages"].items())


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Daemon]:
    """Run a server of the Python SDK that asks whether its client is a host of MCP Apps."""
    servers = {
        "modern": {**CLOCK, "era": "modern"},
        "legacy": {**CLOCK, "era": "legacy"},
        "own": {**CLOCK, "era": "legacy", "share": "client"},
    }
    with harness.running(tmp_path_factory.mktemp("mcpd"), servers) as daemon:
        daemon.wait_connected("modern", "legacy", "own")
        yield daemon


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("server", "capabilities", "answer"),
    [
        ("modern", HOST, "page"),
        ("modern", {}, "text"),
        ("legacy", HOST, "page"),
        ("legacy", {}, "page"),  # one connection for all clients, so that it is declared for all
        ("own", HOST, "page"),
        ("own", {}, "text"),
    ],
)
def test_server_learns_whether_its_client_is_a_host(
    clocks: harness.Daemon, version: str, server: str, capabilities: Json, answer: str
) -> None:
    for name, tool in ((server, "clock"), (None, f"{server}__clock")):
        client = McpClient(clocks, version, server=name, capabilities=capabilities)
        result = client.request("tools/call", name=tool, arguments={})
        assert result["content"][0]["text"] == answer
        client.line.close()


def test_server_declares_its_extension_through_mcpd(clocks: harness.Daemon) -> None:
    """Also to a client of another revision."""
    legacy = McpClient(clocks, "2025-06-18", server="modern", capabilities=HOST)
    assert legacy.hello["capabilities"]["extensions"] == {UI: {}}
    modern = McpClient(clocks, "2026-07-28", server="modern", capabilities=HOST)
    assert modern.request("server/discover")["capabilities"]["extensions"] == {UI: {}}
