"""Home directories with files in the documented formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def settle(case: str, home: Path, tree: str = "home") -> None:
    """Copy the files of a case below `home`; @HOME@ in them becomes its path."""
    base = GOLDEN / case / tree
    for path in base.rglob("*"):
        if path.is_file():
            target = home / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes().replace(b"@HOME@", str(home).encode()))


def expected(case: str, home: Path) -> dict[str, Any]:
    text = (GOLDEN / case / "expected.json").read_text().replace("@HOME@", str(home))
    value: dict[str, Any] = json.loads(text)
    return value


def installed(case: str, home: Path) -> dict[Path, bytes]:
    """Return the files that `install` must make of those of a case."""
    base = GOLDEN / case / "after"
    return {
        home / path.relative_to(base): path.read_bytes().replace(b"@HOME@", str(home).encode())
        for path in base.rglob("*")
        if path.is_file()
    }
