"""Measure how many random one-token mutants the nearest fast tests detect: `make mutants`.

    python -m tests.mutants [--count 40] [--seed N] [--limit SECONDS] [--jobs N] [--list] [PACKAGE …]

A mutant replaces one token of one module: a comparison, `and`/`or`, `not`, or `True`/`False`. The script
copies the tracked files to one temporary directory for each core, applies one mutant at a time there, and
runs the nearest tests: those that mirror the module's name first, then those that import it, then the rest
of the package's tests. A mutant counts as killed when a test fails within the limit, and as
survived when all of them pass or the limit is reached first. The seed is printed, so a run can be repeated.
The exit status is 1 when fewer than nine in ten were killed.
"""

from __future__ import annotations

import argparse
import io
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).parent.parent
PACKAGES = ("wire", "config", "supervision", "protocol", "transports", "gateway")
REPLACEMENTS = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "and": "or",
    "or": "and",
    "not": "",
    "True": "False",
    "False": "True",
}
CLASS_OPTIONS = {"eq", "frozen", "gc", "kw_only", "order", "repr", "slots", "weakref"}
"""Keyword arguments that decide what a class costs or forbids: no test of behavior can depend on them."""
REQUIRED = 0.9


@attrs.frozen
class Mutant:
    """One replaced token. `line` counts from 1 and `column` from 0, as `tokenize` does."""

    module: Path
    line: int
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}:{self.column + 1}  {self.old} → {self.new or '(removed)'}"

    def apply(self, source: str) -> str:
        """Return `source` with the token replaced."""
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1]
        lines[self.line - 1] = text[: self.column] + self.new + text[self.column + len(self.old) :]
        return "".join(lines)


def mutants_of(module: Path, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module.

    `not` after `is` is left out, because removing it changes two operators, and so are options of classes.
    """
    before, previous = "", ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        mutable = token.type in (tokenize.OP, tokenize.NAME) and token.string in REPLACEMENTS
        is_option = previous == "=" and before in CLASS_OPTIONS
        if mutable and not is_option and not (token.string == "not" and previous == "is"):
            yield Mutant(module, *token.start, token.string, REPLACEMENTS[token.string])
        before, previous = previous, token.string


def nearest_tests(module: Path) -> list[str]:
    """Return the test files of the module's package, the nearest first, as paths below the root."""
    package, name = module.parts[1], module.stem
    dotted = ".".join(module.with_suffix("").parts)
    parent, _, leaf = dotted.rpartition(".")
    imports = re.compile(rf"from {re.escape(dotted)} import|from {re.escape(parent)} import .*\b{leaf}\b")

    def distance(path: Path) -> tuple[int, bool, int, str]:
        source = (ROOT / path).read_text()
        relation = 0 if path.stem == f"test_{name}" else 1 if imports.search(source) else 2
        return relation, "tests.e2e.harness" in source, len(source), str(path)

    files = [path.relative_to(ROOT) for path in (ROOT / "tests" / package).rglob("test_*.py")]
    return [str(path) for path in sorted(files, key=distance)]


def detects(directory: Path, tests: list[str], limit: float) -> tuple[str, float]:
    """Run the tests in the copy. Return ("killed", "survived" or "limit reached", seconds)."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "--hypothesis-profile=fast", "-m", "not browser and not root", *tests],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return "limit reached", time.monotonic() - started
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ("killed" if status == 1 or status == 2 else "survived"), time.monotonic() - started


def is_killed(mutant: Mutant, copies: queue.SimpleQueue[Path], limit: float) -> bool:
    """Try one mutant in a copy that is free, and report the outcome."""
    directory = copies.get()
    source = (ROOT / mutant.module).read_text()
    try:
        (directory / mutant.module).write_text(mutant.apply(source))
        outcome, seconds = detects(directory, nearest_tests(mutant.module), limit)
    finally:
        (directory / mutant.module).write_text(source)
        copies.put(directory)
    print(f"{outcome:13} {seconds:5.1f} s  {mutant}", flush=True)
    return outcome == "killed"


def copy_to(directory: Path) -> Path:
    """Copy every tracked file, and return the directory."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return directory


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE")
    parser.add_argument("--count", type=int, default=40, help="how many mutants to try (default: 40)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new seed)")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for each mutant (default: 30)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    modules = [path for name in options.packages for path in sorted((ROOT / "mcpd" / name).rglob("*.py"))]
    found = [m for path in modules for m in mutants_of(path.relative_to(ROOT), path.read_text())]
    chosen = random.Random(seed).sample(found, min(options.count, len(found)))
    print(f"seed {seed}: {len(chosen)} of {len(found)} mutants", flush=True)
    if options.list:
        print(*chosen, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(options.jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for index in range(options.jobs):
            copies.put(copy_to(Path(name) / str(index)))
        killed = sum(pool.map(lambda mutant: is_killed(mutant, copies, options.limit), chosen))
    print(f"{killed} of {len(chosen)} killed")
    return 0 if killed >= REQUIRED * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
