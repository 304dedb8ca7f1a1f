"""The page besides tools: trouble first, clients, calls, events, resources, prompts, messages, badges."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.dashboard.window import Window, window
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Refused, fake, wait_until
from tests.e2e.web import PORT
from tests.example_server import TEST_SERVER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ECHOES = {"command": sys.executable, "args": [TEST_SERVER], "cache": {"add": "1h"}}
DEAD = {"command": "sh", "args": ["-c", "echo 'MY_API_KEY is required' >&2; exit 3"]}


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """Run a server with everything, an ordinary one, and one that fails."""
    running = start({"echoes": ECHOES, "one": fake(), "dead": DEAD}, *PORT)
    running.wait_connected("echoes", "one")
    running.wait_status("dead", lambda status: status["status"] == "failed")
    return running


def choose(opened: Window, server: str, tab: str) -> None:
    opened.page.click(f"#servers li:has-text('{server}') .pick")
    opened.page.click(f"#tab-{tab}")


def test_why_is_explained_on_the_page(chromium: Browser, daemon: Daemon) -> None:
    """With the cause, how it ended, its stderr, and since when."""
    with window(chromium, daemon) as opened:
        page = opened.page
        page.get_by_role("button", name="Why?").click()
        why = page.locator("#panel-evidence")
        expect(page.locator("#tab-evidence")).to_have_attribute("aria-selected", "true")
        for text in (
            "Cause",
            "exited, exit code 3",
            "MY_API_KEY is required",
            "Down since",
            "mcpctl why dead",
            "What to do",
            "(add MY_API_KEY to its env)",
        ):
            expect(why).to_contain_text(text)
        expect(why.get_by_text("mcpctl edit", exact=True)).to_have_js_property("tagName", "CODE")


def test_calls_page_shows_past_and_new_calls(chromium: Browser, daemon: Daemon) -> None:
    with daemon.client() as client:
        for _ in range(2):
            client.call("echoes", "add", {"a": 1, "b": 2})
        client.call("one", "echo", {"text": "before"})
        with window(chromium, daemon) as opened:
            page = opened.page
            page.keyboard.press("l")
            sums = page.locator("#calls tbody tr:has-text('add') [data-label=Outcome]")
            expect(sums).to_have_text(["ok (cached)", "ok"])
            past = page.locator("#calls tbody tr:has-text('echo')")
            past.first.wait_for()
            expect(past.first).to_contain_text("one")
            expect(past.first.locator("[data-label=Outcome]")).to_have_text("ok")
            with pytest.raises(Refused):
                client.call("one", "no-such-tool")
            failed = page.locator("#calls tbody tr[data-state=bad]:has-text('no-such-tool')")
            failed.first.wait_for()
            expect(page.locator("#calls tbody tr").first).to_contain_text("no-such-tool")
            page.fill("#filter", "echo")
            expect(failed.first).to_be_hidden()
            expect(past.first).to_be_visible()
            page.fill("#filter", "")
            page.click("#only-failed")
            failed.first.wait_for()
            expect(past).to_have_count(0)
            expect(page).to_have_url(f"{opened.base}/#//calls")
            page.reload()
            past.first.wait_for()
            opened.assert_nothing_else_happened()


def test_messages_are_shown_live_with_secrets_masked(chromium: Browser, daemon: Daemon) -> None:
    """Requests and responses, which open; they can be paused and cleared."""
    with window(chromium, daemon) as opened, daemon.client() as client:
        page = opened.page
        choose(opened, "echoes", "messages")
        page.wait_for_selector("#panel-messages:not([hidden])")

        def called() -> bool:
            client.call("echoes", "echo", {"text": "hello", "api_key": "sk-very-secret-123456"})
            return page.locator("#messages summary:has-text('tools/call')").count() > 0

        wait_until(called, lambda: "no message is shown")
        page.locator("#messages summary:has-text('→')").filter(has_text="tools/call").first.click()
        opened_message = page.locator("#messages details[open] pre")
        expect(opened_message).to_contain_text('"hello"')
        assert "sk-very-secret" not in page.locator("#messages").inner_text()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Clear").click()
        client.call("echoes", "echo", {"text": "unseen"})
        expect(page.locator("#messages li")).to_have_count(0)
        page.get_by_role("button", name="Continue").click()
        client.call("echoes", "echo", {"text": "seen"})
        page.wait_for_selector("#messages summary:has-text('tools/call')")
        page.click("#tab-tools")
        opened.assert_nothing_else_happened()


def test_a_server_is_edited_and_removed_on_the_page(chromium: Browser, start: Start) -> None:
    """Secrets are masked on the page, and stay; an invalid change says why."""
    daemon = start({"one": fake(env={"API_KEY": "a-secret-value", "MODE": "x"}), "two": fake()}, *PORT)
    daemon.wait_connected("one", "two")
    with window(chromium, daemon) as opened:
        page = opened.page
        page.click("#servers li:has-text('one') .pick")
        page.click("#edit")
        editor = page.locator("dialog.editor")
        env, timeout = editor.locator("[name=env]"), editor.locator("[name=timeout]")
        expect(env).to_have_value('{"API_KEY":"***","MODE":"x"}')
        env.fill('{"API_KEY": "***", "MODE": "y"}')
        timeout.fill("-1")
        editor.get_by_role("button", name="Save").click()
        expect(editor.locator(".trouble")).to_contain_text("timeout")
        timeout.fill("5000")
        editor.get_by_role("button", name="Save").click()
        expect(page.locator("#said")).to_have_text("one: saved")
        expect(editor).to_have_count(0)
        saved = json.loads(daemon.config.read_text())["mcpServers"]["one"]
        assert saved["env"] == {"API_KEY": "a-secret-value", "MODE": "y"}
        assert saved["timeout"] == 5000
        assert "description" not in saved
        page.click("#remove")
        page.keyboard.press("Escape")
        expect(page.locator("dialog.editor")).to_have_count(0)
        page.click("#remove")
        editor.get_by_role("button", name="Remove").click()
        expect(page.locator("#servers li:has-text('one')")).to_have_count(0)
        assert list(json.loads(daemon.config.read_text())["mcpServers"]) == ["two"]
        assert not opened.complaints
        assert not opened.dialogs


@pytest.mark.parametrize("width", [1280, 390])
def test_calls_are_readable_at_each_width(chromium: Browser, daemon: Daemon, width: int) -> None:
    """No word of a usual name is broken, and nothing is wider than the page."""
    with daemon.client() as client:
        client.call("echoes", "echo", {"text": "x"})
    with window(chromium, daemon, width=width) as opened:
        page = opened.page
        page.click("#page-calls")
        row = page.locator("#calls tbody tr").first
        expect(row.locator("[data-label=Call]")).to_contain_text("echo")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        heights = row.locator("td:not([data-label=Message])").evaluate_all(
            "(cells) => cells.map((each) => each.firstElementChild?.getClientRects().length ?? 1)"
        )
        assert set(heights) == {1}
