"""The page while things change: addresses, lost connections, removed servers, two windows."""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.dashboard.test_form import RICH
from tests.dashboard.window import wait_in_page, window
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Refused, fake
from tests.e2e.web import PORT
from tests.example_server import TEST_SERVER
from tests.gateway.mcp_client import McpClient

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, WebSocketRoute

CHOSEN = "#servers [aria-current=true]"


def config(daemon: Daemon, servers: dict[str, Any]) -> None:
    daemon.config.write_text(json.dumps({"mcpServers": servers}))
    with daemon.client() as client:
        client.request("mcpd/reload")


def test_lost_connection_is_reopened_and_its_call_is_not_repeated(chromium: Browser, start: Start) -> None:
    """The form keeps its values and says that the call may have run."""
    daemon = start({"rich": RICH}, *PORT)
    daemon.wait_connected("rich")
    routes: list[WebSocketRoute] = []

    def breakable(page: Page) -> None:
        def between(browser: WebSocketRoute) -> None:
            browser.connect_to_server()
            routes.append(browser)

        page.route_web_socket(re.compile("/page/socket"), between)

    with window(chromium, daemon, before=breakable) as opened:
        page = opened.page
        page.click("summary:has(bdi:text-is('slow'))")
        page.locator("details[data-tool=slow]").get_by_role("button", name="Call").click()
        page.wait_for_selector("text=3 of 8")
        routes[-1].close(code=1001)
        page.wait_for_selector(".result:has-text('the request may or may not have been carried out')")
        page.wait_for_selector("#line[data-state=ok]")
        page.wait_for_selector("#gone", state="hidden")
        wait_in_page(page, lambda: len(routes) >= 2)
        assert len(routes) == 2
        page.click("summary:has(bdi:text-is('cancelled'))")
        page.locator("details[data-tool=cancelled]").get_by_role("button", name="Call").click()
        counts = page.locator("details[data-tool=cancelled] .result pre")
        expect(counts, "the slow one, once, and this one").to_have_text(re.compile("of 2$"))


def test_page_reports_a_stopped_daemon_and_the_age_of_its_data(chromium: Browser, start: Start) -> None:
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector("details[data-tool]")
        stopping = threading.Thread(target=daemon.stop, daemon=True)
        stopping.start()
        page.wait_for_selector("#gone >> text=mcpd is not responding; last update at")
        stopping.join()
        expect(page.locator("#servers li"), "what was known stays").to_have_count(1)
        page.keyboard.press("r")
        page.wait_for_selector("#said >> text=nothing was sent")
        page.get_by_role("button", name="Try now").click()
        page.wait_for_selector("#line[data-state=bad]")


def test_waiting_call_is_shown_and_answered(chromium: Browser, start: Start) -> None:
    """It is shown on every page, but only while it waits."""
    policies = [{"decision": "ask", "tools": ["add"], "reason": "<b>sums</b> are dangerous"}]
    server = {"command": sys.executable, "args": [TEST_SERVER]}
    daemon = start({"one": server}, *PORT, settings={"policies": policies})
    daemon.wait_connected("one")
    client = McpClient(daemon, "2025-11-25", server="one", client={"name": "ed"}, capabilities={})
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector(f"{CHOSEN}:has-text('one')")
        panel, answers = page.locator("#approvals"), {}
        expect(panel).to_be_hidden()
        page.keyboard.press("c")
        for label in ("Allow once", "Deny", "Allow for this session"):
            answers[label] = client.send("tools/call", name="add", arguments={"a": 1, "b": 1})
            expect(panel).to_contain_text(re.compile(r"ed .*wants to use the tool add of one"))
            expect(panel).to_contain_text("<b>sums</b> are dangerous")
            expect(panel).to_contain_text(re.compile(r'\{"a":\s*1,\s*"b":\s*1\}'))
            page.get_by_role("button", name=f"{label}: add").click()
            expect(panel).to_be_hidden()
        assert client.wait(answers["Allow once"])["content"][0]["text"] == "2"
        assert client.wait(answers["Allow for this session"])["content"][0]["text"] == "2"
        with pytest.raises(Refused, match="approval was refused"):
            client.wait(answers["Deny"])
        assert client.call("add", {"a": 1, "b": 3}) == "4"
        other = McpClient(daemon, "2025-11-25", server="one", client={"name": "other"}, capabilities={})
        key = other.send("tools/call", name="add", arguments={"a": 2, "b": 2})
        page.get_by_role("button", name="Always allow: add").click()
        assert other.wait(key)["content"][0]["text"] == "4"
        assert json.loads(daemon.config.read_text())["settings"]["policies"][0]["decision"] == "allow"
        opened.assert_nothing_else_happened()
