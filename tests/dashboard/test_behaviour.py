"""The page while things change: addresses, lost connections, removed servers, two windows."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.dashboard.test_form import RICH
from tests.dashboard.visitor import code_of
from tests.dashboard.window import wait_for_js, wait_in_page, window
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Refused, fake, wait_until
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


def happened(daemon: Daemon, server: str) -> list[str]:
    with daemon.client() as client:
        return [entry["what"] for entry in client.request("mcpd/history", server=server)["entries"]]


def test_address_names_the_current_view_and_back_returns(chromium: Browser, start: Start) -> None:
    daemon = start({"one": fake(), "two.x": fake(), "rich": RICH}, *PORT)
    daemon.wait_connected("one", "two.x", "rich")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector(f"{CHOSEN}:has-text('one')")
        page.click("#servers li:has-text('two.x') .pick")
        page.click("#tab-evidence")
        expect(page).to_have_url(f"{opened.base}/#/two.x/evidence")
        page.reload()
        page.wait_for_selector(f"{CHOSEN}:has-text('two.x')")
        page.wait_for_selector("#panel-evidence >> text=Definition")
        page.click("#servers li:has-text('rich') .pick")
        page.go_back()
        page.wait_for_selector(f"{CHOSEN}:has-text('two.x')")
        page.goto(f"{opened.base}/#/rich/tools/order")
        page.wait_for_selector("details[data-tool=order][open] form")
        page.goto(f"{opened.base}/#/%E0%A4%A/<script>/x")
        page.wait_for_function("location.hash === '#/'")
        page.wait_for_selector(f"{CHOSEN}:has-text('rich')")
        opened.assert_nothing_else_happened()


def test_form_values_stay_when_another_server_is_selected(chromium: Browser, start: Start) -> None:
    """A tool that is open for one server is not opened for another with a tool of the same name."""
    daemon = start({"rich": RICH, "other": RICH}, *PORT)
    daemon.wait_connected("rich", "other")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("summary:has(bdi:text-is('order'))")
        page.get_by_label("what required").fill("half a letter")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.wait_for_selector(f"{CHOSEN}:has-text('other')")
        page.wait_for_selector("details[data-tool=order]")
        expect(page.locator("details[data-tool][open]")).to_have_count(0)
        page.keyboard.press("k")
        page.wait_for_selector("details[data-tool=order][open]")
        expect(page.get_by_label("what required")).to_have_value("half a letter")


def test_list_that_changed_behind_another_tab_is_up_to_date(chromium: Browser, start: Start) -> None:
    """The form keeps the values that were filled in."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("summary:has(bdi:text-is('fail'))")
        form = page.locator("details[data-tool=fail]")
        form.get_by_role("button", name="Edit as JSON").click()
        form.locator("textarea").fill('{"message": "as it was"}')
        before = page.locator("details[data-tool]").count()
        page.click("#tab-events")
        with daemon.client() as client:
            client.call("one", "change")
        page.wait_for_selector("#events li:has-text('tools')")
        page.click("#tab-tools")
        page.wait_for_selector(f"details[data-tool] >> nth={before}", state="attached")
        expect(form.locator("textarea")).to_have_value('{"message": "as it was"}')


def test_servers_are_shown_before_the_first_event(chromium: Browser, start: Start) -> None:
    """Events can be late; the page must not wait for them to show the servers."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")

    def without_events(page: Page) -> None:
        def between(browser: WebSocketRoute) -> None:
            server = browser.connect_to_server()
            server.on_message(lambda text: None if "mcpd/event" in str(text) else browser.send(text))

        page.route_web_socket(re.compile("/page/socket"), between)

    with window(chromium, daemon, before=without_events) as opened:
        opened.page.wait_for_selector(f"{CHOSEN}:has-text('one')")
        opened.page.wait_for_selector("details[data-tool]")


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


def test_log_keeps_its_scroll_position_when_lines_arrive(chromium: Browser, start: Start) -> None:
    """New lines do not scroll the log while a user reads it; one click shows them."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened, daemon.client() as client:
        page = opened.page
        client.call("one", "stderr", {"text": "early", "lines": 200})
        page.click("#tab-log")
        page.wait_for_selector("#log >> text=early 199")
        page.locator("#log").evaluate("(log) => { log.scrollTop = 0 }")
        top = page.locator("#log > div").first.inner_text()
        for _ in range(6):
            client.call("one", "stderr", {"text": "late", "lines": 200})
        page.get_by_role("button", name="Newer lines").wait_for()
        assert page.locator("#log").evaluate("(log) => log.scrollTop") == 0
        assert page.locator("#log > div").first.inner_text() == top
        page.get_by_role("button", name="Newer lines").click()
        page.wait_for_selector("#log > div:last-child:has-text('late 199')")
        page.wait_for_selector("#newer", state="hidden")
        wait_for_js(page.locator("#log"), "element.childElementCount <= 1000")
        client.call("one", "stderr", {"text": "latest", "lines": 1})
        page.wait_for_selector("#log >> text=latest 0")


def test_page_resubscribes_after_a_stream_overflowed(chromium: Browser, start: Start) -> None:
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    asked: list[tuple[WebSocketRoute, int]] = []

    def noting(page: Page) -> None:
        def between(browser: WebSocketRoute) -> None:
            server = browser.connect_to_server()

            def pass_on(text: str | bytes) -> None:
                message = json.loads(text)
                if message["method"] == "mcpd/events":
                    asked.append((browser, message["id"]))
                server.send(text)

            browser.on_message(pass_on)

        page.route_web_socket(re.compile("/page/socket"), between)

    with window(chromium, daemon, before=noting) as opened:
        page = opened.page
        page.wait_for_selector("details[data-tool]")
        route, key = asked[0]
        error = {"code": -32000, "message": "this client read its events too slowly"}
        route.send(json.dumps({"jsonrpc": "2.0", "id": key, "error": error}))
        page.wait_for_selector("#gone:not([hidden])")
        page.wait_for_selector("#line[data-state=ok]")
        wait_in_page(page, lambda: len(asked) >= 2)
        assert len(asked) == 2
        page.keyboard.press("t")
        page.wait_for_selector("#servers li[data-state=disabled]")


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


def test_page_moves_on_when_the_selected_server_is_removed(chromium: Browser, start: Start) -> None:
    """After the last server the page says how to add one, and shows a new one when it appears."""
    daemon = start({"one": fake(), "two": fake()}, *PORT)
    daemon.wait_connected("one", "two")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("#servers li:has-text('two') .pick")
        page.wait_for_selector("details[data-tool]")
        config(daemon, {"one": fake()})
        page.wait_for_selector("#said >> text=two was removed from the configuration")
        page.wait_for_selector(f"{CHOSEN}:has-text('one')")
        config(daemon, {})
        page.wait_for_selector("#welcome >> text=mcpctl import")
        expect(page.locator("#path")).to_have_text(str(daemon.config))
        expect(page.locator("#detail")).to_be_hidden()
        config(daemon, {"three": fake()})
        page.wait_for_selector(f"{CHOSEN}:has-text('three')")
        page.wait_for_selector("details[data-tool]")
        expect(page.locator("#welcome")).to_be_hidden()


def test_invalid_configuration_is_shown(chromium: Browser, start: Start) -> None:
    """The page keeps the servers of the last valid configuration and reports the error."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        config_of = daemon.config.read_text()
        daemon.config.write_text('{"mcpServers": {"one": {"comand": "x"}}}')
        page.wait_for_selector("#config:has-text('has errors'):has-text('comand')")
        daemon.config.write_text(config_of)
        page.wait_for_selector("#config", state="hidden")


def test_last_event_is_named_even_without_a_state_change(chromium: Browser, start: Start) -> None:
    """A server that was removed and added again shows a named event, not only a time."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    config(daemon, {})
    wait_until(lambda: "removed" in happened(daemon, "one"), lambda: daemon.log)
    config(daemon, {"one": fake()})
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector(f"{CHOSEN}:has-text('one')")
        page.click("#tab-evidence")
        page.wait_for_selector("#panel-evidence .steps li[data-state=removed] >> text=removed")
        page.click("#page-events")
        page.wait_for_selector("#all-events li[data-state=config]:has-text('config generation')")


def test_failure_is_shown_with_its_stderr_and_its_age(chromium: Browser, start: Start) -> None:
    dead = {"command": "sh", "args": ["-c", "echo 'ECONNREFUSED 10.0.3.17' >&2; exit 3"]}
    daemon = start({"dead": dead, "lazy": fake(lazy=True)}, *PORT)
    daemon.wait_status("dead", lambda status: status["status"] == "failed")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector("#head pre >> text=ECONNREFUSED 10.0.3.17")
        page.click("#why")
        page.wait_for_selector("#panel-evidence >> text=mcpctl why dead")
        page.click("#tab-tools")
        page.wait_for_selector("#panel-tools >> text=Tools are unknown")
        ages = """async () => {
          const { distance, tick } = await import("/page/units.js");
          const at = Date.now(), age = distance(new Date(at).toISOString(), "ago"), now = Date.now;
          document.body.append(age);
          const seen = [1, 89, 91, 7200].map((seconds) => {
            Date.now = () => at + seconds * 1000;
            tick();
            return age.textContent;
          });
          Date.now = now;
          return seen;
        }"""
        assert page.evaluate(ages) == ["1 s ago", "89 s ago", "2 min ago", "2 h ago"]
        page.keyboard.press("j")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_selector("details[data-tool]")


def test_a_call_while_its_server_reconnects_waits_for_it(
    chromium: Browser, start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.touch()
    when_told = f"while ! [ -e {go} ]; do sleep 0.05; done; exec {sys.executable} -I -S {RICH['args'][2]}"
    daemon = start({"rich": {"command": "sh", "args": ["-c", when_told]}}, *PORT)
    daemon.wait_connected("rich")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("summary:has(bdi:text-is('bare'))")
        go.unlink()
        page.click("#reconnect")
        page.wait_for_selector("#servers li[data-state=pending]")
        page.locator("details[data-tool=bare]").get_by_role("button", name="Call").click()
        go.touch()
        page.wait_for_selector("details[data-tool=bare] .result:has-text('Completed')")


def test_paused_server_shows_when_it_returns(chromium: Browser, start: Start) -> None:
    """The row and the header of the server show the time; switching the server on ends the pause."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector("#servers li[data-state=connected]")
        daemon.client().request("mcpd/disable", server="one", until="2126-11-22T18:00:00Z", wait=BOUND)
        words = "switched off until 2126-11-22 18:00:00 UTC"
        page.wait_for_selector(f"#servers li[data-state=disabled] .about:text-is('{words}')")
        page.wait_for_selector(f"#head bdi:text-is('{words}')")
        page.click("#toggle")
        page.wait_for_selector("#servers li[data-state=connected]")
        assert daemon.status("one")["off_until"] is None


def test_opening_a_new_address_in_the_same_window_opens_one_connection(
    chromium: Browser, start: Start
) -> None:
    """`mcpctl ui` again in the same window: closing the old connection does not affect the new one."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector("details[data-tool]")
        page.locator("#gone").evaluate(
            """(gone) => new MutationObserver(() => { window.wasGone ||= !gone.hidden })
              .observe(gone, { attributes: true })"""
        )
        with page.expect_websocket() as line:
            page.goto(f"{opened.base}/#{code_of(daemon)}")
        page.wait_for_selector("#line[data-state=ok]")
        assert not page.evaluate("window.wasGone")
        assert not line.value.is_closed()


def test_two_windows_share_one_session(chromium: Browser, start: Start) -> None:
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        other = opened.page.context.new_page()
        other.goto(opened.base)
        other.wait_for_selector("#servers li[data-state=connected]")
        opened.page.click("#toggle")
        other.wait_for_selector("#servers li[data-state=disabled]")
        other.wait_for_selector("#head >> text=Enable")
        other.get_by_role("button", name="Log out").click()
        opened.page.wait_for_selector("#gate >> text=You were logged out")
        expect(opened.page.locator("#main")).to_be_hidden()
        opened.page.goto(f"{opened.base}/#{code_of(daemon)}")
        opened.page.wait_for_selector("#line[data-state=ok]")


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
