"""Run the official conformance suite for mcpd's client and server sides, and print tables.

    make conformance                                # everything
    make conformance ARGS='--side client --revision 2025-11-25 --scenario sse-retry --keep out'

Exits with 1 if a scenario fails unexpectedly, if an expected failure passes, or if a scenario passes directly
but not through mcpd.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.conformance import client_side, server_side
from tests.conformance.suite import EXTENSION, REVISIONS, NotInstalled, scenarios

SIDES = {"client": client_side.main, "server": server_side.main}


def main() -> int:
    known_revisions = (*REVISIONS, EXTENSION)
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--side", action="append", choices=SIDES, help="only this one")
    parser.add_argument(
        "--revision", action="append", choices=known_revisions, help="only this one (repeatable)"
    )
    parser.add_argument("--scenario", action="append", help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, help="keep what the suite wrote in this directory")
    chosen = parser.parse_args()
    if chosen.keep and chosen.keep.exists() and any(chosen.keep.iterdir()):
        parser.error(f"{chosen.keep} is not empty: what an earlier run left there would be judged again")
    sides, revisions = chosen.side or SIDES, chosen.revision or known_revisions
    found: list[str] = []
    try:
        known = {name for side in sides for revision in revisions for name in scenarios(side, revision)}
        for name in chosen.scenario or ():
            if name not in known:
                parser.error(f"there is no scenario {name} in what is chosen")
        with tempfile.TemporaryDirectory() as temporary:
            for side in sides:
                found += SIDES[side](revisions, chosen.scenario, chosen.keep or Path(temporary))
    except NotInstalled as error:
        found.append(str(error))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
