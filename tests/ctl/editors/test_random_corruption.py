"""No damage to mcpctl's records about editors raises anything: an unreadable record counts as missing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from ctl.editors.backup import BackupRecord, DiffHunk, DisabledEntry, EditorBackups, revert_hunks
from ctl.editors.import_history import ImportedEntry, ImportHistory
from tests.corruption import corrupt
from tests.sampling import scaled

COUNT = scaled(10_000)


@contextmanager
def damaged(file: Path) -> Iterator[Iterator[bytes]]:
    """Iterate over damaged contents, which are in the file at that time."""
    whole, dice = file.read_bytes(), random.Random(5)

    def contents() -> Iterator[bytes]:
        for _ in range(COUNT):
            data = corrupt(whole, dice)
            file.write_bytes(data)
            yield data

    yield contents()
    file.write_bytes(whole)


def test_backup_of_an_editors_file(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    backups, target = EditorBackups(environ), tmp_path / "mcp.json"
    target.write_text("{}")
    hunk = DiffHunk(("a\n",), ("b\n",), ("c\n",), ("d\n",))
    record = BackupRecord(
        str(target),
        True,
        b"{}",
        "digest",
        ("mcpServers", "mcpd"),
        (DisabledEntry("one", {"command": "größe"}, False),),
        (str(tmp_path / "made"),),
        (hunk,),
        (hunk, hunk),
    )
    backups.save(record)
    assert backups.load(target) == record
    usable = 0
    with damaged(backups._record_path(target)) as contents:
        for number, _ in enumerate(contents):
            found = backups.load(target)
            backups.other_files([])
            if found is not None:
                usable += 1
                assert isinstance(found.existed, bool)
                assert all(isinstance(part, str) for part in found.slot)
                for each in found.disabled:
                    assert (type(each.name), type(each.entry), type(each.removed)) == (str, dict, bool)
                assert all(isinstance(text, str) for text in (*found.created_directories, found.path))
                revert_hunks("a\nb\nd\n", found.changes)
                revert_hunks("a\nb\nd\n", found.changes_with_entry)
                if number % 100 == 0:  # it waits for the disk
                    backups.save(attrs.evolve(found, path=str(target)))
    assert COUNT * 0.01 < usable < COUNT


def test_history_of_imports(tmp_path: Path) -> None:
    environ, config = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}, tmp_path / "config.json"
    history = ImportHistory(environ, config)
    one = ImportedEntry("time", "cursor", {"command": "0" * 32}, {"args": "1" * 32, "env.größe": "2" * 32})
    history.entries["/a/b", "user", "", "größe"] = one
    history.entries["/a/b", "project", "/p", "two"] = one
    assert not history.save()
    assert ImportHistory(environ, config).entries == history.entries
    usable = 0
    with damaged(history.path) as contents:
        for number, _ in enumerate(contents):
            found = ImportHistory(environ, config)
            usable += bool(found.entries)
            found.digests({"command": "x", "env": {"A": "b"}})
            for key, entry in found.entries.items():
                assert all(isinstance(text, str) for text in (*key, entry.server, entry.editor))
                for digests in (entry.theirs, entry.ours):
                    assert all(isinstance(text, str) for pair in digests.items() for text in pair)
            if number % 100 == 0:
                assert not found.save()
    assert COUNT * 0.01 < usable < COUNT
