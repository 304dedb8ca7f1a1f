"""The servers of a load, which keep ledgers."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.harness import Json, impatient

LEDGER_SERVER = str(Path(__file__).with_name("ledger_server.py"))


def own(count: int, ledgers: Path) -> dict[str, Json]:
    """Return definitions of `count` servers with ledgers, of both eras."""
    definitions: dict[str, Json] = {}
    for number in range(count):
        era = "modern" if number % 3 == 1 else "legacy"
        name = f"{era}-{number}"
        definitions[name] = _own(name, era, ledgers)
    return definitions


def serial(ledgers: Path) -> dict[str, Json]:
    """Return the definition of a server that gets one call at a time, so few clients can call it."""
    return {"serial": {**_own("serial", "legacy", ledgers), "concurrency": "serial"}}


def _own(name: str, era: str, ledgers: Path) -> Json:
    arguments = ["-I", "-S", LEDGER_SERVER, name, str(ledgers / f"{name}.ledger"), "--era", era]
    return {"command": sys.executable, "args": arguments, "restart": impatient()}
