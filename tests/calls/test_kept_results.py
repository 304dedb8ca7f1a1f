"""The files of kept results: those of earlier daemons count, too."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mcpd.calls import kept_results
from mcpd.calls.kept_results import MAX_AGE, KeptResults
from mcpd.model.errors import UnknownResource


async def test_files_of_earlier_daemons_take_room_and_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first. No client can read them through mcpd."""
    monkeypatch.setattr(kept_results, "MAX_BYTES", 250)
    now = time.time()
    for name, age in (("expired", MAX_AGE + 60), ("older", 200), ("old", 100)):
        file = tmp_path / f"{name}.txt"
        file.write_bytes(b"x" * 100)
        os.utime(file, (now - age, now - age))
    (tmp_path / "directory").mkdir()
    results = KeptResults(tmp_path)
    kept = await results.keep("me", b"y" * 100, is_text=True)
    assert set(os.listdir(tmp_path)) == {"old.txt", kept.path.name, "directory"}
    assert await results.read(kept.id, "me", lambda _, file: file.read()) == "y" * 100
    for key, owner in (("old", "me"), (kept.id, "other")):
        with pytest.raises(UnknownResource):
            await results.read(key, owner, lambda _, file: file.read())
