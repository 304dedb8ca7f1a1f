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
from typing import Any

import msgspec
import pytest

from ctl.show.history import calls_table, history_table
from mcpd.api.http.guard import load_token
from mcpd.calls.call_log import CallLog, record_filter
from mcpd.config.learned import fingerprint
from mcpd.config.load_at_start import load_at_start, save_last_valid
from mcpd.config.secret_store import read_secrets
from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.files.paths import UnusablePath
from mcpd.files.rotated import older
from mcpd.model import codec
from mcpd.model.call_record import CallsParams
from mcpd.model.errors import BadSpec
from mcpd.model.events import HistoryEntry, HistoryEventKind
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import FailureKind, ServerState
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
COUNT = scaled(10_000)


def damages(data: bytes, count: int = COUNT) -> list[bytes]:
    dice = random.Random(len(data))
    return [corrupt(data, dice) for _ in range(count)]


@pytest.fixture(autouse=True)
def without_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, which may take longer for ten thousand files than a test may."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def quiet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Do not collect ten thousand log records."""
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


def test_event_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quiet(monkeypatch, caplog)
    entry = HistoryEntry(
        at=AT,
        what=HistoryEventKind.STATE,
        server="it",
        state=ServerState.FAILED,
        message="größe\u2028",
        kind=FailureKind.EXITED,
        exit_code=3,
        times=4,
    )
    other = HistoryEntry(at=AT, what=HistoryEventKind.DAEMON, message="started", by="mcpctl (pid 7)")
    file = tmp_path / "history.jsonl"
    kept = 0
    whole = b"".join(codec.encode(each) + b"\n" for each in (entry, other, entry))
    for number, data in enumerate(damages(whole)):
        file.write_bytes(data)
        history = EventHistory(file, str)
        for server in (None, "it"):
            found = history.history(server, 100)
            shown = codec.decode(codec.encode(found), dict[str, Any])["entries"]
            kept += len(shown)
            if number % 10 == 0:
                assert len(history_table(shown, servers=True, fit=80, utc=False)) == 1 + len(shown)
        history.record_daemon("started")
    assert kept > COUNT


async def test_call_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left can be filtered, sent to clients, and shown by mcpctl."""
    quiet(monkeypatch, caplog)
    record = {
        "at": AT,
        "outcome": "failed",
        "client": "größe",
        "pid": 7,
        "via": "socket",
        "server": "it",
        "method": "tools/call",
        "name": "echo",
        "duration_ms": 1.25,
        "request_bytes": 12,
        "digest": "0" * 16,
        "code": "link_lost",
        "message": "it ended",
    }
    omitted = {"at": AT, "outcome": "omitted", "count": 3}
    log, kept = CallLog(tmp_path / "calls.jsonl", str), 0
    asked = [CallsParams(limit=9), CallsParams(limit=9, since=AT, client="g", server="it", failed=True)]
    whole = b"".join(codec.encode(each) + b"\n" for each in (record, omitted, record))
    for number, data in enumerate(damages(whole)):
        (log.path if number % 2 else older(log.path)).write_bytes(data)
        params = asked[number // 2 % 2]
        found = log._read_files(record_filter(params), params.limit)
        shown = codec.decode(codec.encode({"calls": found}), dict[str, Any])["calls"]
        kept += len(shown)
        if number % 8 < 2:
            assert len(calls_table(shown, fit=80, utc=True)) == 1 + len(shown)
    assert kept > COUNT


def test_token_of_the_http_port(tmp_path: Path) -> None:
    """It is usable in a header, or an error names the file. Clients never get in without it."""
    file, usable = tmp_path / "http-token", 0
    whole = load_token(file).encode() + b"\n"
    for data in damages(whole):
        file.write_bytes(data)
        refused = token = ""
        try:
            token = load_token(file)
            usable += 1
        except UnusablePath as error:
            refused = str(error)
        if refused:
            assert str(file) in refused
        else:
            assert len(token) >= 32
            assert token.isascii()
            assert token.isprintable()
    assert COUNT * 0.01 < usable < COUNT


def test_secrets(tmp_path: Path) -> None:
    """The error names the file and does not quote it."""
    file = tmp_path / "mcpd" / "secrets.json"
    file.parent.mkdir()
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    good = json.dumps({"A_TOKEN": "hunter2-hunter2", "OTHER": "größe", "EMPTY": ""}, indent=2)
    usable = 0
    for data in damages(good.encode()):
        file.write_bytes(data)
        file.chmod(0o600)
        refused = ""
        try:
            found = read_secrets(environ)
            usable += 1
            assert all(isinstance(text, str) for pair in found.items() for text in pair)
        except BadSpec as error:
            refused = str(error)
        assert not refused or str(file) in refused
        assert "hunter2" not in refused
    assert COUNT * 0.01 < usable < COUNT


def test_last_valid_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read only if the configuration is unusable, whose errors are reported."""
    quiet(monkeypatch, caplog)
    config, usable = tmp_path / "config.json", 0
    servers = {"it": {"command": "x", "args": ["größe"]}, "that": {"url": "http://localhost/"}}
    config.write_text(json.dumps({"mcpServers": servers, "settings": {"maxStarts": 3}}))
    save_last_valid(load_at_start(config, {}, tmp_path), tmp_path)
    file = tmp_path / "last-valid-config.json"
    whole = file.read_bytes()
    config.write_text("{")
    for data in damages(whole):
        file.write_bytes(data)
        with suppress(BadSpec):
            loaded = load_at_start(config, {}, tmp_path)
            usable += isinstance(loaded.specs.get("it"), StdioSpec)
            codec.encode(loaded.problems)
            save_last_valid(loaded, tmp_path)
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
