"""Text that UTF-8 cannot express, in one definition or in a path, makes no request about others fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.harness import Json, fake, running

HALF = "\ud800x"
"""Half a surrogate pair, as in `"\\ud800x"` in a JSON file."""
REQUESTS = ("config", "status", "tools", "history", "clients", "stats")
ODD: dict[str, Json] = {
    "command": {"command": HALF},
    "argument": fake(HALF),
    "cwd": fake(cwd="/" + HALF),
    "variable": fake(env={"A": HALF}),
    "name-of-variable": fake(env={HALF: "1"}),
    "filter": fake(includeTools=[HALF]),
    "description": fake(description=HALF),
    "unknown": fake(_x=HALF),
    "unknown-name": fake(**{"_" + HALF: 1}),
    "url": {"url": "http://127.0.0.1:1/" + HALF},
    "header": {"url": "http://127.0.0.1:1/", "headers": {"A": HALF}},
}


@pytest.mark.parametrize("what", ODD)
def test_half_a_surrogate_pair_in_a_definition(tmp_path: Path, what: str) -> None:
    with running(tmp_path, {"calm": fake(), "odd": ODD[what]}) as daemon:
        daemon.wait_connected("calm")
        client = daemon.client()
        for method in REQUESTS:
            client.request(f"mcpd/{method}")
        for server in ("calm", "odd"):
            assert client.request("mcpd/server", server=server)["server"]["name"] == server
        client.send("mcpd/events")
        seen = {client.next_notification()["params"]["event"]["server"] for _ in range(2)}
        assert seen == {"calm", "odd"}
        assert "\ufffd" in json.dumps(client.request("mcpd/config"), ensure_ascii=False)
        assert client.call("calm", "echo")["success"]
    assert "Traceback" not in daemon.log


def test_configuration_in_a_directory_whose_name_is_not_utf8(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6\xdfe"))
    place.mkdir()
    config = place / "config.json"
    config.write_text(json.dumps({"mcpServers": {"calm": fake()}}))
    with running(tmp_path, {}, "--config", str(config)) as daemon:
        daemon.wait_connected("calm")
        client = daemon.client()
        for method in REQUESTS:
            client.request(f"mcpd/{method}")
        assert client.request("mcpd/status")["config"]["path"].endswith("/gr\ufffd\ufffde/config.json")
        client.request("mcpd/server", server="calm")
        config.write_text("{")
        with pytest.raises(Exception, match=r"config\.json"):
            client.request("mcpd/reload")
        client.request("mcpd/status")
    assert "Traceback" not in daemon.log
