"""No damage to a file of mcpd raises anything but the documented error, whatever its bytes are.

What is left is used as the daemon uses it: damage that survives parsing must not raise later.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.model import codec
from mcpd.model.errors import BadSpec
from mcpd.model.events import HistoryEntry, HistoryEventKind
from mcpd.model.server_spec import StdioSpec
from mcpd.state.cached_lists import fingerprint
from mcpd.state.history import EventHistory
from mcpd.state.state_file import AppliedSet, PersistentState, StateFile
from mcpd.supervision.catalog import Catalog, Item, describe_changes
from mcpd.supervision.catalog_sync import CatalogSync, dump_catalog, load_catalog
from mcpd.supervision.managed_server import ManagedServer
from tests.corruption import corrupt
from tests.sampling import scaled
from tests.supervision.peer import surroundings

SPEC = StdioSpec(name="it", command="/bin/sh", exclude_tools=("no*",))
AT = "2026-11-21T06:30:00.000Z"
COUNT = scaled(1_500)


def damages(data: bytes, count: int = COUNT) -> list[bytes]:
    dice = random.Random(len(data))
    return [corrupt(data, dice) for _ in range(count)]


@pytest.fixture(autouse=True)
def without_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, which may take longer for many files than a test may."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def quiet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Do not collect many log records."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(logging.Logger, "isEnabledFor", lambda self, level: level >= logging.CRITICAL)


def a_catalog() -> Catalog:
    tools = [
        Item(name, json.dumps({"name": name, "description": "grün \ud83d\ude00", "inputSchema": {}}).encode())
        for name in ("echo", "note", "größe")
    ]
    page = Item("file:///a", b'{"uri":"file:///a","name":"a","size":12}')
    template = Item("file:///{x}", b'{"uriTemplate":"file:///{x}","name":"x"}')
    prompt = Item("ask", b'{"name":"ask","arguments":[]}')
    return Catalog(
        tools=tuple(tools), resources=(page,), templates=(template,), prompts=(prompt,), fetched_at=AT
    )


def with_checksum(data: bytes) -> bytes:
    body = data.partition(b",")[2]
    return b'{"crc32":"%08x",%b' % (zlib.crc32(body), body)


def test_catalog_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage is always noticed. Even if the checksum matches, the lists can be compared and saved again."""
    quiet(monkeypatch, caplog)
    whole, usable = a_catalog(), 0
    loaded = load_catalog(dump_catalog(whole), SPEC)
    store = StateFile(tmp_path / "state", tmp_path / "cache")
    file = tmp_path / "cache" / "lists" / f"{fingerprint('it')}.json"
    file.parent.mkdir(parents=True)
    for number, damaged in enumerate(damages(dump_catalog(whole))):
        data = with_checksum(damaged) if number % 2 else damaged
        file.write_bytes(data)
        kept = CatalogSync(SPEC, store, fingerprint("it"), lambda feature, summary: None).catalog
        assert kept in (None, loaded) or data != damaged
        if kept is not None:
            usable += 1
            describe_changes(kept, whole)
            file.write_bytes(dump_catalog(kept))
            again = CatalogSync(SPEC, store, fingerprint("it"), lambda feature, summary: None).catalog
            assert again == kept
            codec.encode({"names": [item.name for item in kept.tools], "at": kept.fetched_at})
    assert COUNT * 0.01 < usable < COUNT


def a_state() -> PersistentState:
    return PersistentState(
        toggles={"it": 1795370400.5, "that": False, "größe": True},
        after_timed={"it": True},
        eras={fingerprint(n): "modern" for n in range(3)} | {fingerprint(SPEC.identity): "legacy"},
        applied=AppliedSet(servers={"it": {"command": "x", "args": ["\u2028"]}}, config_digest="d"),
    )


async def test_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server starts with what is left, has a status, and can be switched; the state is saved again."""
    quiet(monkeypatch, caplog)
    around = surroundings(tmp_path, lambda event: None)
    file = tmp_path / "state" / "state.json"
    file.parent.mkdir(exist_ok=True)
    usable = 0
    for data in damages(codec.encode(a_state())):
        file.write_bytes(data)
        store = StateFile(file.parent, tmp_path / "cache")
        usable += not store.read_problem
        server = ManagedServer(SPEC, msgspec.structs.replace(around, store=store))
        codec.encode(server.status())
        server.set_enabled(False)
        server.set_enabled(True)
        for name in ("it", "that"):
            store.end_timed_disable(name)
        if (applied := store.state.applied) is not None:
            with suppress(BadSpec):
                parse_servers(
                    applied.servers, environ={}, settings=Settings(), base_dir=tmp_path, path="$.servers"
                )
        codec.decode(codec.encode(store.state), PersistentState)
        for backup in file.parent.glob("state.json.*"):
            backup.unlink()
    assert COUNT * 0.01 < usable < COUNT


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b"echo", b"ec\xffo")])
def test_ignored_cache_file_is_named_in_the_log(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message says what to do; `damage` leaves the JSON around it valid or not."""
    store = StateFile(tmp_path / "state", tmp_path / "cache")
    file = tmp_path / "cache" / "lists" / "key.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(damage(dump_catalog(a_catalog())))
    assert CatalogSync(SPEC, store, "key", lambda feature, summary: None).catalog is None
    (record,) = caplog.records
    assert str(file) in record.getMessage()


def test_ignored_history_entries_are_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that a crash cut off is normal; it is the last one."""
    file = tmp_path / "history.jsonl"
    line = codec.encode(HistoryEntry(at=AT, what=HistoryEventKind.DAEMON, message="started")) + b"\n"
    file.write_bytes(line + line[:-9])
    assert len(EventHistory(file, str).history(None, 10).entries) == 1
    assert not caplog.records
    file.write_bytes(line[:-9] + b"\n" + line + b"\xff\n")
    assert len(EventHistory(file, str).history(None, 10).entries) == 1
    (record,) = caplog.records
    assert re.search(rf"{re.escape(str(file))}.* 2 ", record.getMessage())
    assert msgspec.json.decode(line)["at"] == AT
