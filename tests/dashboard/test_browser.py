"""The page in a real browser: it works, never runs texts of servers, and is protected from other pages."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.dashboard.hostile import PAYLOADS
from tests.dashboard.visitor import code_of
from tests.dashboard.window import window
from tests.e2e.conftest import Start
from tests.e2e.harness import fake, wait_until
from tests.e2e.web import PORT, HttpEndpoint, http_endpoint
from tests.example_server import TEST_SERVER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = {"command": sys.executable, "args": ["-I", "-S", str(Path(__file__).parent / "hostile.py")]}


def test_user_can_see_and_toggle_servers_call_tools_and_read_logs(chromium: Browser, start: Start) -> None:
    daemon = start({"echoes": {"command": sys.executable, "args": [TEST_SERVER]}, "one": fake()}, *PORT)
    daemon.wait_connected("echoes", "one")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.wait_for_url(lambda url: "#" not in url)
        page.wait_for_selector("#servers li[data-state=connected] >> nth=1")

        # With the mouse and with the keyboard.
        page.get_by_role("switch", name="one: on").click()
        page.wait_for_selector("#servers li[data-state=disabled]:has-text('one')")
        daemon.wait_status("one", lambda status: status["status"] == "disabled")
        page.get_by_role("switch", name="one: on").focus()
        page.keyboard.press("k")
        page.keyboard.press("j")
        page.wait_for_selector("#servers [aria-current=true]:has-text('one')")
        page.keyboard.press("t")
        daemon.wait_connected("one")
        page.wait_for_selector("#servers li[data-state=connected]:has-text('one')")
        before = daemon.status("one")["pid"]
        page.keyboard.press("r")
        daemon.wait_status(
            "one", lambda now: now["pid"] not in (None, before) and now["status"] == "connected"
        )

        # New log lines appear automatically.
        page.keyboard.press("4")
        page.wait_for_selector("#log")
        with daemon.client() as client:
            client.call("one", "stderr", {"text": "as it happens", "lines": 3})
        page.wait_for_selector("#log >> text=as it happens 2")
        page.keyboard.press("5")
        page.wait_for_selector("#events >> text=by the page")
        page.keyboard.press("7")
        page.wait_for_selector("#panel-evidence >> text=Definition")

        # Call a tool with the form made from its schema: the values arrive unchanged.
        page.keyboard.press("k")
        page.keyboard.press("1")
        page.click("summary:has-text('echo')")
        form = page.locator("details[data-tool=echo]")
        form.get_by_label("text").fill('a "quoted" <b>word</b> \\ é')
        form.get_by_role("button", name="Call").click()
        form.locator(".result:not([hidden])").wait_for()
        expect(form.locator(".result pre")).to_have_text('a "quoted" <b>word</b> \\ é')
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("no such thing")
        page.wait_for_selector("text=No tool matches the filter.")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")

        # The page reconnects after a lost connection, but not after a logout.
        page.reload()
        page.wait_for_selector("#servers li[data-state=connected]:has-text('one')")
        opened.assert_nothing_else_happened()
        page.set_viewport_size({"width": 360, "height": 640})
        page.wait_for_function("document.documentElement.scrollWidth <= 360")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_selector("#gate >> text=mcpctl ui")
        page.goto(f"{opened.base}/#{code_of(daemon)[:-1]}")
        page.wait_for_selector("#gate >> text=expired")
        page.goto(f"{opened.base}/#{code_of(daemon)}")
        page.wait_for_selector("#line[data-state=ok]")


@pytest.mark.slow
def test_server_texts_are_never_executed(chromium: Browser, start: Start) -> None:
    """40 payloads, each as name, description, schema, log line, result and error, are only shown as text."""
    dead = {"command": "sh", "args": ["-c", f"echo '{PAYLOADS[1]}' >&2; exit 3"]}
    daemon = start({"hostile": HOSTILE, "dead": dead}, *PORT)
    daemon.wait_connected("hostile")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("#servers li:has-text('hostile') .pick")
        shown = len(PAYLOADS)
        expect(page.locator("#panel-tools details[data-tool]")).to_have_count(shown)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        page.wait_for_function(f"document.querySelectorAll('#panel-tools form').length === {shown}")
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        page.select_option("details[data-tool=tool-0] [name=truth]", "true")
        page.click("details[data-tool=tool-0] .small:text-is('Add')")
        page.fill("details[data-tool=tool-0] [name='list 1']", "x")
        page.click("details[data-tool=tool-0] button.primary")
        page.wait_for_selector("details[data-tool=tool-0] .result:not([hidden])")
        page.wait_for_selector("details[data-tool=tool-0] figcaption:has-text('cannot be shown')")
        result = page.locator("details[data-tool=tool-0] .result")
        expect(result).to_contain_text("<script>window.pwned=1</script>", use_inner_text=True)
        refused = page.locator("details[data-tool=tool-2]")  # the server answers with an error
        refused.get_by_role("button", name="Edit as JSON").click()
        refused.get_by_label("Arguments as JSON").fill("{}")
        refused.get_by_role("button", name="Call", exact=True).click()
        refused.locator(".verdict >> text=pwned").wait_for()
        for tab in ("log", "evidence", "events"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector(f"#panel-{tab} >> text=pwned" if tab != "events" else "#events li")
        page.locator("#log > div").nth(len(PAYLOADS) - 1).wait_for(state="attached")
        page.click("#tab-messages")
        for tab, verb in (("resources", "Read"), ("prompts", "Get")):
            page.click(f"#tab-{tab}")
            expect(page.locator(f"#panel-{tab} details[data-key]").nth(19)).to_be_attached()
            page.click(f"#panel-{tab} summary >> nth=0")
            page.click(f"#panel-{tab} button:text-is('{verb}')")
            page.wait_for_selector(f"#panel-{tab} .result:has-text('pwned')")
        page.click("#tab-messages")
        with daemon.client() as client:

            def is_shown() -> bool:
                client.call("hostile", "tool-0", {"truth": True})  # the tap may start after the first one
                return page.locator("#messages summary").count() > 0

            wait_until(is_shown, lambda: "no message is shown")
        page.evaluate(
            "document.querySelectorAll('#messages details').forEach((each) => { each.open = true })"
        )
        page.wait_for_selector("#messages pre >> text=pwned")
        for name in ("clients", "calls", "events", "servers"):
            page.click(f"#page-{name}")
        page.click("#servers li:has-text('dead') .pick")
        page.wait_for_selector("#head pre >> text=pwned")
        harmful = page.evaluate("/[\\u202e\\u200b\\ufeff\\u001b\\u0000]/.test(document.body.textContent)")
        assert not harmful
        ours = {"/page/app.js"}
        scripts = page.evaluate("[...document.scripts].map((each) => new URL(each.src).pathname)")
        assert set(scripts) == ours
        foreign = page.locator("main :is(img, iframe, object, video, style, link, base, meta, a)")
        expect(foreign).to_have_count(0)
        opened.assert_nothing_else_happened()


ATTACK = (Path(__file__).parent / "attack.js").read_text()


@contextmanager
def evil() -> Iterator[int]:
    """Run another web server on this machine, which serves an empty page at every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><body>")

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.slow
def test_pages_of_other_sites_get_no_access(chromium: Browser, start: Start) -> None:
    """Neither another host name nor another port of this machine gets access, even in a logged-in browser."""
    daemon = start({"one": fake()}, *PORT)
    daemon.wait_connected("one")
    where: HttpEndpoint = http_endpoint(daemon)
    with evil() as port, window(chromium, daemon) as opened:
        context = opened.page.context
        pages = [f"http://evil.example:{port}/", f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"]
        targets = [where.base, where.base.replace("127.0.0.1", "localhost")]
        attempts = 0
        for address, target in itertools.product(pages, targets):
            page = context.new_page()
            page.goto(address)
            tell = page.evaluate(ATTACK, [target, target.replace("http:", "ws:")])
            attempts += len(tell)
            got_in = [each for each in tell if each[1] not in ("refused", "nothing")]
            assert got_in == [], (address, target)
            page.close()
        assert attempts >= 60

        page = context.new_page()
        rebound = page.goto(f"http://rebound.example:{where.port}/")
        assert rebound is not None
        assert rebound.status == 403
        page.goto(f"http://evil.example:{port}/")
        form = (
            f"document.body.innerHTML = '<form method=post enctype=text/plain action={where.base}/mcp><input "
            "name=x value=y></form>'; document.forms[0].submit()"
        )
        with page.expect_navigation() as navigation:
            page.evaluate(form)
        assert navigation.value.status == 403
        page.close()

        # The user's own page still works, and the server got no request.
        opened.page.reload()
        opened.page.wait_for_selector("#line[data-state=ok]")
        opened.assert_nothing_else_happened()
    with daemon.client() as client:
        seen = json.loads(client.call("one", "counts")["output"])["seen"]
        assert seen["tools/call"] == 1
    wait_until(lambda: "refused POST /mcp" in daemon.log, lambda: daemon.log)
