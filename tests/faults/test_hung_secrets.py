"""A disk that never answers, which holds secrets of forty servers: nobody else notices."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.harness import fake, wait_until
from tests.faults.bystander import undisturbed

INJECTION = """
import threading, mcpd.config.secret_store as store
sound = store.read_regular_file
def hung(path, max_size):
    if "dead-disk" in str(path):
        threading.Event().wait()
    return sound(path, max_size)
store.read_regular_file = hung
"""


def content(file: Path) -> str:
    """Return what is in the file; nothing before it is written."""
    return file.read_text() if file.exists() else ""


def test_forty_servers_with_secrets_on_a_dead_disk_affect_no_other(start: Start, tmp_path: Path) -> None:
    """Others start, also later, and their secrets are read; the state and the history are written."""
    (tmp_path / "sitecustomize.py").write_text(INJECTION)
    (tmp_path / "alive").write_text("secret-of-alive")
    servers = {f"s-{n}": fake(env={"IT": f"${{file:/dead-disk/{n % 40}}}"}) for n in range(50)}
    daemon = start(
        {**servers, "calm": fake(), "needy": fake(env={"IT": f"${{file:{tmp_path / 'alive'}}}"})},
        environ={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    daemon.wait_connected("calm", "needy")
    client = daemon.client()
    with undisturbed(daemon, "calm"):
        client.request("mcpd/add", server="later", definition=fake(), save=False)
        daemon.wait_connected("later")
        client.request("mcpd/disable", server="later")
        state = tmp_path / "state" / "mcpd"
        wait_until(lambda: "later" in content(state / "state.json"), lambda: "state is not saved")
        wait_until(lambda: "later" in content(state / "history.jsonl"), lambda: "no history")
        assert daemon.status("s-0")["status"] == "pending"
        assert client.request("mcpd/disconnect", server="s-0", wait=30)["server"]["status"] == "disabled"
    assert daemon.stop() == 0
    last = json.loads((state / "history.jsonl").read_text().splitlines()[-1])
    assert last["what"] == "daemon"
