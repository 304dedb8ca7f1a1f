"""Run a daemon under load or under faults for long, and check that nothing is lost, doubled, or left over.

    python -m tests.soak [--variant features|load|churn|all] [--seconds N] [--seed S]

    features   every feature in turn for an hour
    load       200 clients of all kinds call 21 servers, for 150 s
    churn      the same, while every 100 ms a server is killed or reconnected, and clients leave

`features` is the default. `--seconds` changes the duration. The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.features import GROWTH, ROUND, use_features
from tests.soak.load import load

Judged = tuple[str, bool]
"""A report, and whether everything was right."""


def _features(home: Path, seconds: float | None, seed: int) -> Judged:
    report = use_features(home, seconds or 3600.0, more=17, pace=ROUND, seed=seed)
    is_right = report.is_back and not report.wrong and report.growth() <= GROWTH and report.exit_code == 0
    return str(report), is_right


def _load(home: Path, seconds: float | None, seed: int) -> Judged:
    report = load(home, seconds or 150.0, seed=seed)
    return str(report), not report.wrong


def _churn(home: Path, seconds: float | None, seed: int) -> Judged:
    report = load(home, seconds or 150.0, with_faults=True, seed=seed)
    return str(report), not report.wrong


VARIANTS: dict[str, Callable[[Path, float | None, int], Judged]] = {
    "load": _load,
    "churn": _churn,
    "features": _features,
}


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    read.add_argument("--variant", default="features", choices=[*VARIANTS, "all"])
    read.add_argument("--seconds", type=float, help="of each variant; its full size if not given")
    read.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = read.parse_args()
    names = list(VARIANTS) if given.variant == "all" else [given.variant]
    is_right = True
    for name in names:
        print(f"{name}, seed {given.seed}", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mcpd-soak-") as home:
            report, is_one_right = VARIANTS[name](Path(home), given.seconds, given.seed)
        print(report)
        print(
            f"{name}: {'ok' if is_one_right else 'FAILED'} after {time.monotonic() - began:.0f} s", flush=True
        )
        is_right = is_right and is_one_right
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
