"""What a daemon imports: memory and the time before the first call are mostly imported code."""

from __future__ import annotations

import re

from tests.e2e.conftest import Start
from tests.e2e.harness import fake
from tests.e2e.web import meta

_IMPORT = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)

FOR_REMOTE_SERVERS = ("anyio", "httpx", "httpcore2", "mcpd.auth")
FOR_FEW = ("asyncio", "h11", "wsproto", "ruamel", "tomlkit", "rich", "jsonschema_rs")


def test_daemon_with_local_servers_imports_nothing_for_others(start: Start) -> None:
    """httpx alone would take 0.1 s and 4 MB."""
    servers = {f"local-{number}": fake() for number in range(3)}
    daemon = start(servers, environ={"PYTHONPROFILEIMPORTTIME": "1"})  # to the log, also after the start
    daemon.wait_connected(*servers)
    with daemon.client() as client:
        client.request("mcpd/status")
        client.request("mcpd/attach", server="local-1")
        client.request("tools/call", name="echo", arguments={"text": "hello"}, _meta=meta())
    assert daemon.stop() == 0
    imported = set(_IMPORT.findall(daemon.log))
    assert {"trio", "mcpd.daemon"} <= imported
    assert (
        sorted(
            name
            for name in imported
            for unwanted in (*FOR_REMOTE_SERVERS, *FOR_FEW)
            if name == unwanted or name.startswith(f"{unwanted}.")
        )
        == []
    )


def test_daemon_stops_while_its_first_servers_start(start: Start) -> None:
    """The code of modules that are not imported is read after that; the thread which waits must end."""
    daemon = start({"slow": fake("--delay", "initialize=600,server/discover=600")})
    daemon.wait_process("slow")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log
