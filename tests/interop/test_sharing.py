"""Tests of the sharing checks: they pass without sharing, and detect each kind of mix-up."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop import peers, sharing
from tests.interop.clients.drivers import DRIVERS, Json, Library, http
from tests.interop.clients.job import Report
from tests.interop.peers import LEGACY, ROOT, SDK2

SDK1 = (str(ROOT / ".venv-mcp1" / "bin" / "python"), "-m", "tests.servers.reference.sdk1")


def library(name: str) -> Library:
    found = next(driver for driver in DRIVERS if isinstance(driver, Library) and driver.name == name)
    if why := found.missing():
        pytest.skip(why)
    return found


def memory() -> str:
    """Return the path of the npm server's program."""
    program = shutil.which(
        "mcp-server-memory", path=f"{ROOT / '.npm/node_modules/.bin'}:{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip("mcp-server-memory is not there: `make npm` installs it")
    return program


@pytest.mark.parametrize("argv", [SDK1, SDK2], ids=["sdk1", "sdk2"])
def test_clients_with_a_session_each_do_not_disturb_each_other(argv: tuple[str, ...], tmp_path: Path) -> None:
    """Clients that share nothing cause no complaints."""
    port = peers.free_port()
    with peers.listening([*argv, "--http", f"127.0.0.1:{port}"], port):
        way = http(f"http://127.0.0.1:{port}/mcp")
        names = {"alice": "python-sdk-1", "bob": "python-sdk-2", "carol": "typescript-sdk-1"}
        users = {name: (library(client), way) for name, client in names.items()}
        assert sharing.conversations(users, tmp_path) == []


def test_overlapping_writes_are_lost_by_the_server_itself(tmp_path: Path) -> None:
    """Without mcpd, some concurrent writes are lost. So mcpd is the reason that none are lost through it."""
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    frames = [rpc("initialize", hello, 0), rpc("notifications/initialized", {})]
    for number in range(1, 26):
        arguments = {"entities": [sharing.entity(f"e{number}")]}
        frames.append(rpc("tools/call", {"name": "create_entities", "arguments": arguments}, number))
    file = tmp_path / "memory.json"
    process = subprocess.Popen(
        [memory()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MEMORY_FILE_PATH": str(file)},
    )
    try:
        out, _ = process.communicate(b"".join(frames), timeout=120)
    finally:
        process.kill()
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 26
    assert not any("error" in answer or answer["result"].get("isError") for answer in answers)
    assert len(file.read_text().splitlines()) < 25


def rpc(method: str, params: Json, key: int | None = None) -> bytes:
    frame = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(frame if key is None else {**frame, "id": key}).encode() + b"\n"


HEARD = {
    "tag": "alice",
    "elicited": {"action": "accept", "content": {"name": "alice"}},
    "sampled": {"content": {"type": "text", "text": "alice"}},
    "roots": {"roots": [{"uri": "file:///alice"}]},
}
FINE = Report(
    texts=[json.dumps(HEARD)],
    failed=[False],
    asked=["alice: what is your name?", "alice: who are you?", "roots"],
    logs=["alice 1"],
    progress=["alice 1"],
)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({}, None),
        ({"logs": ["alice 1", "bob 1"]}, "among the log lines of alice: bob 1"),
        ({"progress": ["bob 2"]}, "among the progress of alice: bob 2"),
        ({"asked": [*FINE.asked, "bob: who are you?"]}, "among the questions of alice: bob: who are you?"),
        ({"asked": FINE.asked[:1]}, "alice was asked 'alice: who are you?' 0 times"),
        ({"texts": [], "failed": []}, "alice got only 0 of 1 answers"),
        ({"failed": [True]}, "the server heard from alice: "),
        (
            {"texts": [json.dumps({**HEARD, "elicited": {"action": "accept", "content": {"name": "bob"}}})]},
            "the server heard from alice: ",
        ),
        ({"texts": [json.dumps({**HEARD, "roots": {"roots": []}})]}, "the server heard from alice: "),
    ],
)
def test_messages_of_another_client_are_detected(changed: dict[str, Any], complaint: str | None) -> None:
    """Each way in which the messages of two clients could be mixed up."""
    found = sharing.misheard("alice", dataclasses.replace(FINE, **changed), 1)
    assert (found == []) if complaint is None else (found and found[0].startswith(complaint))
