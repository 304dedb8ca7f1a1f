"""Damaged files of mcpd are ignored, and the log says so."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mcpd.model import codec
from mcpd.model.events import HistoryEntry, HistoryEventKind
from mcpd.model.server_spec import StdioSpec
from mcpd.state.history import EventHistory
from mcpd.state.state_file import StateFile
from mcpd.supervision.catalog import Catalog, Item
from mcpd.supervision.catalog_sync import CatalogSync, dump_catalog

AT = "2026-11-21T06:30:00.000Z"


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


def without_tools(data: bytes) -> bytes:
    """Rename a member, with the checksum of the new text."""
    body = data.replace(b'"tools"', b'"tolls"').partition(b",")[2]
    return b'{"crc32":"%08x",%b' % (zlib.crc32(body), body)


DAMAGES = [lambda data: data[:-9], lambda data: data.replace(b"echo", b"ec\xffo"), without_tools]


@pytest.mark.parametrize("damage", DAMAGES)
def test_ignored_cache_file_is_named_in_the_log(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message says what to do; `damage` leaves the JSON around it valid or not."""
    store = StateFile(tmp_path / "state", tmp_path / "cache")
    file = tmp_path / "cache" / "lists" / "key.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(damage(dump_catalog(a_catalog())))
    spec = StdioSpec(name="it", command="/bin/sh")
    assert CatalogSync(spec, store, "key", lambda feature, summary: None).catalog is None
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


def test_state_with_an_impossible_time_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"toggles": {"it": 1e300}}')
    store = StateFile(tmp_path, tmp_path / "cache")
    assert store.state.toggles == {}
    assert "is invalid" in store.read_problem
