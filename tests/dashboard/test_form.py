"""Calling a tool: the form made from its schema, the arguments that are sent, and how results are shown."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.dashboard.window import Window, wait_for_js, window
from tests.e2e.harness import Daemon, running, wait_until
from tests.e2e.web import PORT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

RICH = {"command": sys.executable, "args": ["-I", "-S", str(Path(__file__).parent / "rich.py")]}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("rich"), {"rich": RICH}, *PORT) as started:
        started.wait_connected("rich")
        yield started


@pytest.fixture
def opened(chromium: Browser, daemon: Daemon) -> Iterator[Window]:
    with window(chromium, daemon) as shown:
        shown.page.wait_for_selector("details[data-tool]")
        yield shown


@pytest.fixture(scope="module")
def opened_once(chromium: Browser, daemon: Daemon) -> Iterator[Window]:
    """Open the page once, for tests that change nothing."""
    with window(chromium, daemon) as shown:
        yield shown


def tool(opened: Window, name: str) -> Locator:
    opened.page.click(f"summary:has(bdi:text-is('{name}'))")
    return opened.page.locator(f"details[data-tool={name}]")


def call(opened: Window, name: str) -> Locator:
    """Call the tool without arguments, and return what the page shows as its result."""
    form = tool(opened, name)
    press(form, "Call")
    result = form.locator(".result:not([hidden])")
    result.wait_for()
    return result


def counts(daemon: Daemon) -> tuple[int, int]:
    """Return how many cancelled calls the server has seen, and how many calls there were before this one."""
    with daemon.client() as client:
        cancelled, calls = client.call("rich", "cancelled")["output"].split(" of ")
    return int(cancelled), int(calls) - 1


def expect_names(fields: Locator, *names: str) -> None:
    expect(fields).to_have_count(len(names))
    for index, name in enumerate(names):
        expect(fields.nth(index)).to_have_attribute("name", name)


def press(form: Locator, words: str) -> None:
    form.get_by_role("button", name=words, exact=True).click()


def sent(form: Locator) -> str:
    """Return the line that the server received, as the server reports it."""
    press(form, "Call")
    result = form.locator(".result:not([hidden]) pre").first
    expect(result).to_contain_text('"method"')
    return result.inner_text()


def test_filled_fields_are_sent_unchanged_and_empty_ones_are_omitted(opened: Window) -> None:
    """For every shape of schema: choices with titles, lists, sets, nested objects, plain numbers."""
    form = tool(opened, "order")
    form.get_by_label("what required").fill("tea\n“für zwei” \\ <b>")
    form.get_by_label("number integer").fill("12345678901234567890")
    form.get_by_label("kind required").select_option(label="Record")
    form.get_by_label("price number").fill("1.50")
    press(form, "Add to tags")
    press(form, "Add to tags")
    form.get_by_label("tags 1 required").fill("hot")
    form.get_by_label("tags 2 required").fill("")
    press(form, "Remove tags 2")
    form.get_by_label("tue").check()
    press(form, "Add to parts")
    form.get_by_label("name").first.fill("cup")
    form.get_by_label("count").first.fill("2")
    form.get_by_label("when").fill("2026-11-22")
    form.get_by_label("extra").fill('{"deep": [1e400]}')
    line = sent(form)
    assert '"number":12345678901234567890' in line
    assert '"price":1.50' in line
    arguments = json.loads(line)["params"]["arguments"]
    assert arguments == {
        "what": "tea\n“für zwei” \\ <b>",
        "number": 12345678901234567890,
        "kind": "r",
        "price": 1.5,
        "terms": "agreed",  # the only possible value
        "tags": ["hot"],
        "days": ["tue"],
        "parts": [{"name": "cup", "count": 2}],
        "when": "2026-11-22",
        "extra": {"deep": [float("inf")]},
    }
    opened.assert_nothing_else_happened()


def test_errors_are_shown_at_their_fields_and_nothing_is_sent(opened: Window, daemon: Daemon) -> None:
    """Missing required values and invalid numbers; errors found by the daemon appear at the same fields."""
    page, form = opened.page, tool(opened, "order")
    cancelled, before = counts(daemon)
    form.get_by_label("price").fill("cheap")
    form.get_by_label("street").focus()
    press(form, "Add to parts")
    press(form, "Call")
    wrong = form.locator("[aria-invalid=true]")
    expect_names(wrong, "what", "kind", "price", "name")
    what = form.get_by_label("what required")
    expect(what).to_be_focused()
    expect(what).to_have_attribute("aria-describedby", re.compile(r"\S"))
    described = what.get_attribute("aria-describedby") or ""
    expect(page.locator(f"#{described.split()[0]}")).to_have_text(re.compile(r"^This field is required\."))
    expect(form.locator(".result")).to_be_hidden()

    what.fill("tea")
    expect(wrong, "typing clears the error").to_have_count(3)
    form.get_by_label("kind required").select_option("Book")
    form.get_by_label("price").fill("1001")
    press(form, "Remove parts 1")
    form.get_by_role("group", name="door").get_by_label("count").fill(
        "1"
    )  # an object with one value needs all its required values
    press(form, "Call")
    expect_names(wrong, "street", "name")
    form.get_by_role("group", name="door").get_by_label("count").fill("")
    press(form, "Call")
    form.locator(".result:has-text('The tool was not called')").wait_for()
    expect_names(wrong, "price")
    expect(form).to_contain_text("1001 is not valid", use_inner_text=True)
    assert counts(daemon) == (cancelled, before + 1), "only our own question came through"


def test_each_kind_of_result_is_shown_in_its_own_way(opened: Window) -> None:
    """Errors as errors, duplicates once, pictures as pictures; other content can be saved."""
    page = opened.page
    failed = call(opened, "fails")
    expect(failed).to_contain_text("The tool reported an error", use_inner_text=True)
    expect(failed).to_contain_text("the table is locked", use_inner_text=True)
    data = call(opened, "data")
    expect(data.locator("pre")).to_have_count(1)
    assert data.locator("pre").all_inner_texts() == ['{\n  "id": 12345678901234567890\n}']

    media = call(opened, "media")
    page.wait_for_function("document.querySelector('.result img')?.naturalWidth === 16")
    media.locator("figcaption:has-text('cannot be shown')").wait_for()
    expect(media.locator("img")).to_have_count(1)
    expect(media).to_contain_text("image of image/svg+xml, not shown", use_inner_text=True)
    expect(media).to_contain_text("its data is not base64", use_inner_text=True)
    with page.expect_download() as saved:
        media.get_by_role("button", name="Save").last.click()
    assert saved.value.suggested_filename == "mcpd-result.bin"
    opened.assert_nothing_else_happened()


def test_call_shows_progress_and_can_be_cancelled(opened: Window, daemon: Daemon) -> None:
    """The server receives the cancellation, and another call may follow."""
    cancelled, before = counts(daemon)
    own = itertools.count(1)
    form = tool(opened, "slow")
    press(form, "Call")
    form.get_by_text("3 of 8 reading the shelf").wait_for()
    wait_for_js(form.get_by_role("progressbar"), "element.value === 3 && element.max === 8")
    press(form, "Cancel")
    form.locator(".result:has-text('cancelled')").wait_for()
    expect(form.get_by_role("button", name="Call")).to_be_enabled()

    def has_cancelled() -> bool:
        # The page does not wait for the daemon, so this request may reach the server first.
        asked = next(own)
        seen, calls = counts(daemon)
        assert calls == before + 1 + asked, "the slow one, and our own questions"
        return seen == cancelled + 1

    wait_until(has_cancelled, lambda: "the server was not told that the call was cancelled")
