"""No damage to mcpctl's records about editors raises anything: an unreadable record counts as missing."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec import structs

from ctl.editors.undo import BackupRecord, DiffHunk, DisabledEntry, EditorBackups, revert_hunks
from tests.corruption import corrupt
from tests.sampling import scaled

COUNT = scaled(2_000)


def test_backup_of_an_editors_file(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    backups, target = EditorBackups(environ), tmp_path / "mcp.json"
    target.write_text("{}")
    hunk = DiffHunk(("a\n",), ("b\n",), ("c\n",), ("d\n",))
    record = BackupRecord(
        str(target),
        True,
        "digest",
        ("mcpServers", "mcpd"),
        (DisabledEntry("one", {"command": "größe"}, False),),
        (str(tmp_path / "made"),),
        (hunk,),
        (hunk, hunk),
        b"{}",
    )
    backups.save(record)
    assert backups.load(target) == record
    file, dice, usable = backups._record_path(target), random.Random(5), 0
    whole = file.read_bytes()
    for number in range(COUNT):
        file.write_bytes(corrupt(whole, dice))
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
                backups.save(structs.replace(found, path=str(target)))
    assert COUNT * 0.01 < usable < COUNT
