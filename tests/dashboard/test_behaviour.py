"""The page while things change under it: addresses, lines that break, servers that go, two windows."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.dashboard.test_form import RICH
from tests.dashboard.visitor import code_of
from tests.dashboard.window import wait_for_js, wait_in_page, window
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, fake, wait_until
from tests.e2e.web import PORT

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


def test_the_address_says_what_is_looked_at_and_the_way_back_leads_back(
    chromium: Browser, start: Start
) -> None:
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


def test_what_is_typed_in_stays_when_another_server_is_looked_at(chromium: Browser, start: Start) -> None:
    """And a tool that is open at one server is not, for its name, opened at another."""
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


def test_a_list_that_changes_while_another_tab_is_looked_at_is_there_afterwards(
    chromium: Browser, start: Start
) -> None:
    """And the form that was filled in is the same one."""
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


def test_the_servers_are_there_before_the_first_event_is(chromium: Browser, start: Start) -> None:
    """Events come on their own time: a page that waited for them showed nothing when they were late."""
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


def test_a_line_that_breaks_is_opened_again_and_a_call_on_it_is_not_sent_twice(
    chromium: Browser, start: Start
) -> None:
    """The form stays as it is, and says that nobody knows whether the call was done."""
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


def test_a_log_stays_where_somebody_reads_it_whatever_comes(chromium: Browser, start: Start) -> None:
    """A flood would carry it away in a second; the newer lines are a click away."""
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


def test_a_page_that_is_told_no_more_because_too_much_happened_asks_anew(
    chromium: Browser, start: Start
) -> None:
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


def test_when_mcpd_is_gone_the_page_says_so_and_how_old_it_is(chromium: Browser, start: Start) -> None:
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


def test_a_server_that_is_removed_while_it_is_looked_at_makes_room(chromium: Browser, start: Start) -> None:
    """Until none is left; then the page says how to have one, and shows it when it comes."""
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
    """The servers are those of the one before: nothing else on the page would say so."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    with window(chromium, daemon) as opened:
        page = opened.page
        config_of = daemon.config.read_text()
        daemon.config.write_text('{"mcpServers": {"one": {"comand": "x"}}}')
        page.wait_for_selector("#config:has-text('has errors'):has-text('comand')")
        daemon.config.write_text(config_of)
        page.wait_for_selector("#config", state="hidden")


def test_what_happened_is_named_also_where_it_is_no_new_state(chromium: Browser, start: Start) -> None:
    """Of a server that was removed and came back, a time with nothing behind it would be left."""
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
        page.click("#tab-events")
        page.wait_for_selector("#events li[data-state=config]:has-text('config generation')")


def test_failure_is_shown_with_its_stderr_and_its_age(chromium: Browser, start: Start) -> None:
    dead = {"command": "sh", "args": ["-c", "echo 'ECONNREFUSED 10.0.3.17' >&2; exit 3"]}
    daemon = start({"dead": dead, "lazy": fake(lazy=True)}, *PORT)
    daemon.wait_status("dead", lambda status: status["status"] == "failed")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_selector("#head pre >> text=ECONNREFUSED 10.0.3.17")
        page.wait_for_selector("#head >> text=mcpctl why dead")
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


def test_a_server_that_is_off_for_a_time_says_until_when(chromium: Browser, start: Start) -> None:
    """In its row and in its head; switching it on ends that."""
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


def test_a_new_address_where_the_page_is_open_opens_one_line(chromium: Browser, start: Start) -> None:
    """`mcpctl ui` a second time, in the same window: the end of the old line says nothing of the new one."""
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
