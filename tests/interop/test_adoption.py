"""The files of mcp-remote, as the program itself writes them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mcpd.auth.foreign_logins import find_foreign_logins, remove_foreign_login
from tests.e2e.harness import BOUND
from tests.e2e.test_login import open_page, served, visit
from tests.interop.clients.drivers import modules, node
from tests.interop.peers import free_port
from tests.processes import wait_until

pytestmark = pytest.mark.skipif(
    not modules("mcp-remote").exists(), reason="mcp-remote is not installed: run `make interop`"
)


def test_the_login_of_mcp_remote_is_found_and_can_be_removed(tmp_path: Path) -> None:
    with served() as server:
        assert server.metadata is not None
        server.metadata["response_types_supported"] = ["code"]  # it requires what RFC 8414 requires
        program = modules("mcp-remote") / "dist" / "proxy.js"
        process = subprocess.Popen(
            [node(), str(program), server.url, str(free_port()), "--allow-http"],
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "BROWSER": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            link = re.compile(re.escape(f"{server.origin}/authorize?") + r"\S+")
            found = next(found[0] for line in process.stderr if (found := link.search(line)))
            open_page(visit(found))
            environ = {"HOME": str(tmp_path)}

            def logins() -> object:
                return find_foreign_logins((server.url,), environ, ("mcp-remote",)).logins[server.url]

            wait_until(lambda: bool(logins()))
        finally:
            process.kill()
            process.communicate(timeout=BOUND)
        (login,) = find_foreign_logins((server.url,), environ, ("mcp-remote",)).logins[server.url]
        assert login.access_token in server.access_tokens
        assert login.refresh_token in server.refresh_tokens
        assert login.client_id in server.clients
        assert login.method == "none"
        assert login.expires_at is not None
        remove_foreign_login(login)
        assert logins() == ()
