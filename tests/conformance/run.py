"""Run the official conformance suite for mcpd's client and server sides, and print tables.

    make conformance
    make conformance ARGS=--full    # each reference server in every way; takes about 20 minutes
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

SIDES = {"client": client_side.main, "middle": client_side.main_through_mcpd, "server": server_side.main}
"""`middle`: mcpd between a client that others have written and the suite."""


def main() -> int:
    known_revisions = (*REVISIONS, EXTENSION)
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--side", action="append", choices=SIDES, help="only this one")
    parser.add_argument(
        "--revision", action="append", choices=known_revisions, help="only this one (repeatable)"
    )
    parser.add_argument("--scenario", action="append", help="only this one (repeatable)")
    parser.add_argument("--full", action="store_true", help="every way to each reference server")
    parser.add_argument("--keep", type=Path, help="keep what the suite wrote in this directory")
    chosen = parser.parse_args()
    if chosen.keep and chosen.keep.exists() and any(chosen.keep.iterdir()):
        parser.error(f"{chosen.keep} is not empty: what an earlier run left there would be judged again")
    sides, revisions = chosen.side or SIDES, chosen.revision or known_revisions
    found: list[str] = []
    try:
        listed = {"server" if side == "server" else "client" for side in sides}
        known = {name for side in listed for revision in revisions for name in scenarios(side, revision)}
        for name in chosen.scenario or ():
            if name not in known:
                parser.error(f"there is no scenario {name} in what is chosen")
        with tempfile.TemporaryDirectory() as temporary:
            for side in sides:
                place = chosen.keep or Path(temporary)
                found += SIDES[side](revisions, chosen.scenario, place, full=chosen.full)
    except NotInstalled as error:
        found.append(str(error))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
