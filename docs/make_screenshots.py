"""Takes the screenshots of the dashboard in docs/how-to, from a private daemon: `make screenshots`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLACE = Path(__file__).parent / "how-to"
BIN = Path(sys.executable).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DEAD = "echo 'connecting to postgres at 127.0.0.1:5432' >&2; echo 'error: MY_API_KEY is required' >&2; exit 1"
TIMEOUT = 60_000
"""Milliseconds."""


class _LoginRequired(BaseHTTPRequestHandler):
    """A remote server that refuses every request without a login."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_DELETE = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


def main() -> int:
    if CHROMIUM is None:
        print("the screenshots need Chromium, and none is on PATH", file=sys.stderr)
        return 1
    with login_server() as url, daemon(url) as environ, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        light = opened(browser, environ, 1200, 800)
        light.click("#servers li:has-text('everything') .pick")
        light.click("#panel-tools details[data-tool=add] summary")
        form = light.locator("#panel-tools details[data-tool=add]")
        form.get_by_label("a required").fill("2")
        form.get_by_label("b required").fill("40")
        form.get_by_role("button", name="Call").click()
        expect(form.locator(".result pre")).to_have_text("42")
        light.mouse.move(0, 799)
        light.screenshot(path=PLACE / "dashboard.png")

        dark = opened(browser, environ, 1200, 800, dark=True)
        dark.click("#servers li:has-text('database') .pick")
        dark.get_by_role("button", name="Why?").click()
        expect(dark.locator("#panel-evidence")).to_contain_text("What to do")
        dark.mouse.move(0, 799)
        dark.screenshot(path=PLACE / "dashboard-dark.png")

        phone = opened(browser, environ, 390, 780, phone=True)
        phone.screenshot(path=PLACE / "dashboard-phone.png")
        browser.close()
    return 0


@contextmanager
def login_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _LoginRequired)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()


@contextmanager
def daemon(login_url: str) -> Iterator[dict[str, str]]:
    """Run mcpd with servers in every state. Yields the environment for mcpctl."""
    home = Path(tempfile.mkdtemp(prefix="mcpd-screenshots-", dir="/tmp"))  # a socket's path must be short
    everything = {"command": sys.executable, "args": [str(PLACE.parents[1] / "examples" / "testserver")]}
    servers = {
        "everything": everything,
        "time": {"command": str(BIN / "mcp-server-time")},
        "database": {"command": "sh", "args": ["-c", DEAD]},
        "git": {"command": str(BIN / "mcp-server-git")},
        "hub": {"url": login_url},
        "notes": {**everything, "lazy": True},
        "mail": {**everything, "enabled": False},
    }
    (home / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    environ = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home), "MCPD_SOCKET": str(home / "s")}
    environ["MCPD_CONFIG"] = str(home / "servers.json")
    mcpctl(environ, "wait", "time", "git", "--timeout", "60")
    try:
        yield environ
    finally:
        mcpctl(environ, "daemon", "stop")
        shutil.rmtree(home, ignore_errors=True)


def mcpctl(environ: dict[str, str], *words: str) -> str:
    """Run mcpctl and return its stdout, whatever its exit code is."""
    command = [str(BIN / "mcpctl"), *words]
    return subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=120).stdout


def opened(
    browser: Browser,
    environ: dict[str, str],
    width: int,
    height: int,
    *,
    phone: bool = False,
    dark: bool = False,
) -> Page:
    """Return a page that shows the dashboard, after its lists have been drawn."""
    page = browser.new_page(
        viewport={"width": width, "height": height},
        device_scale_factor=2 if phone else 1,
        is_mobile=phone,
        has_touch=phone,
        color_scheme="dark" if dark else "light",
    )
    page.set_default_timeout(TIMEOUT)
    page.goto(mcpctl(environ, "ui", "--print").split()[0])
    page.wait_for_selector("#servers li:has-text('everything') >> text=MiB")
    return page


if __name__ == "__main__":
    sys.exit(main())
