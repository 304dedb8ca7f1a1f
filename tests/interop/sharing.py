"""Two situations in which several clients share one server, and the errors found in each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.clients.drivers import DRIVERS, Call, ClientFailed, Driver, Json, Library
from tests.interop.clients.job import Report
from tests.interop.peers import ROOT

SDK1 = (str(ROOT / ".venv-mcp1" / "bin" / "python"), "-m", "tests.servers.reference.sdk1")
Users = Mapping[str, tuple[Driver, Json]]
"""Who uses the server: by name, a client, and how it gets there."""


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


def all_at_once(users: Users, calls: Mapping[str, Sequence[Call]], home: Path) -> dict[str, Report]:
    """Run all clients at the same time, each with its own calls and its own home directory."""

    def use(name: str) -> Report:
        driver, server = users[name]
        (home / name).mkdir()
        return driver.use(server, calls[name], home / name, name)

    with ThreadPoolExecutor(len(users)) as pool:
        doing = {name: pool.submit(use, name) for name in users}
    failed = [f"{name}: {found}" for name, done in doing.items() if (found := done.exception())]
    if failed:
        raise ClientFailed("\n".join(failed))  # a deadlock can be seen only from all errors together
    return {name: done.result() for name, done in doing.items()}


def conversations(users: Users, home: Path, each: int = 3) -> list[str]:
    """Let all clients run `converse` of the reference server at the same time. Return every message that
    belongs to another client, and every own message that a client missed.
    """
    calls = {name: [("converse", {"tag": name})] * each for name in users}
    reports = all_at_once(users, calls, home)
    return [line for name, report in reports.items() for line in misheard(name, report, each)]


def misheard(name: str, report: Report, conversations: int) -> list[str]:
    wrong = [f"{name} got only {len(report.texts)} of {conversations} answers"] * (
        len(report.texts) != conversations
    )
    received = {"log lines": report.logs, "progress": report.progress, "questions": report.asked}
    for what, lines in received.items():
        for line in lines:
            if line != "roots" and not line.startswith((f"{name} ", f"{name}:", "Fulfilling ")):
                wrong.append(f"among the {what} of {name}: {line}")
    for question in (f"{name}: what is your name?", f"{name}: who are you?"):
        if report.asked.count(question) < conversations:
            wrong.append(f"{name} was asked {question!r} {report.asked.count(question)} times")
    for text, failed in zip(report.texts, report.failed, strict=True):
        answered = {
            "tag": name,
            "elicited": {"action": "accept", "content": {"name": name}},
            "sampled": name,
            "own root": True,
        }
        if failed or (heard := in_short(text)) != answered:
            wrong.append(f"the server heard from {name}: {text if failed else heard}")
    return wrong


def in_short(text: str) -> Json:
    """Return what the server says it was answered, without additions of an SDK. For roots, only whether they
    include the caller's: a shared process gets the roots of all its clients.
    """
    heard = json.loads(text)
    elicited, sampled, roots = (heard.get(key) or {} for key in ("elicited", "sampled", "roots"))
    return {
        "tag": heard["tag"],
        "elicited": {key: elicited.get(key) for key in ("action", "content")},
        "sampled": sampled.get("content", {}).get("text"),
        "own root": f"file:///{heard['tag']}" in [root["uri"] for root in roots.get("roots", [])],
    }


def writings(users: Users, home: Path, each: int = 25) -> list[str]:
    """Let all clients write to server-memory at the same time, and return the entities that are missing
    afterwards.

    The server loses overlapping writes, also within one process: it reads its file, changes it and writes it.
    """
    calls = {
        name: [("create_entities", {"entities": [entity(f"{name}-{n}")]}) for n in range(each)]
        for name in users
    }
    reports = all_at_once(users, calls, home)
    wrong = [f"a write of {name} failed" for name, report in reports.items() if any(report.failed)]
    name, (driver, server) = next(iter(users.items()))
    (home / "afterwards").mkdir()
    read = driver.use(server, [("read_graph", {})], home / "afterwards", name)
    kept = {found["name"] for found in json.loads(read.texts[0])["entities"]}
    written = {f"{name}-{n}" for name in users for n in range(each)}
    return wrong + [f"lost: {lost}" for lost in sorted(written - kept)]


def entity(name: str) -> Json:
    return {"name": name, "entityType": "test", "observations": []}
