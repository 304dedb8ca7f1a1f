"""Waits while a package runner, such as `npx` or `docker run`, downloads the server that it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import trio

from mcpd.model.package_runners import PackageRunner, find_runner, is_runner
from mcpd.model.server_spec import ServerSpec, StdioSpec
from mcpd.transports.child_process import Child

_REPORT_AFTER = 1.0
"""Seconds after which the download is shown in the status."""
_QUICK, _SLOW = 0.03, 0.2
"""Polling intervals in the first seconds and later; no event is available."""
_PULL_OUTPUT_WITHIN = 0.7
"""Seconds within which a container runner mentions a pull if it has to."""
_PULLING = r"Unable to find image|Pulling from|Trying to pull|Pulling fs layer"
_PULLED = r"Status: (?:Downloaded|Image is up to date)|Writing manifest|Storing signatures"


def package_runner_of(spec: ServerSpec) -> PackageRunner | None:
    return find_runner(spec.command, spec.args) if isinstance(spec, StdioSpec) else None


async def wait_package_downloaded(
    spec: ServerSpec,
    child: Child | None,
    stderr_lines: Callable[[], Sequence[str]],
    report: Callable[[str], None],
) -> float:
    """Wait until the server itself runs, or until that cannot be determined; return the seconds it took.

    `stderr_lines` returns the runner's last lines on stderr. `report` is called with its `progress_message`
    once it takes a while. Raises TooSlowError after `timeouts.install`.
    """
    runner = package_runner_of(spec)
    if runner is None or child is None:
        return 0.0
    budget, began, is_reported = spec.timeouts.install, trio.current_time(), False
    while not _is_done(runner, child, stderr_lines, passed := trio.current_time() - began):
        if passed > budget:
            raise trio.TooSlowError(
                f"{runner.progress_message}, and was not done after {budget:g} s "
                "(raise `timeouts.install`, or install it by hand)"
            )
        if not is_reported and passed >= _REPORT_AFTER:
            is_reported = True
            report(runner.progress_message)
        await trio.sleep(_QUICK if passed < 3 else _SLOW)
    return trio.current_time() - began


def _is_done(
    runner: PackageRunner, child: Child, stderr_lines: Callable[[], Sequence[str]], passed: float
) -> bool:
    if runner.container:
        output = "\n".join(stderr_lines())
        if not re.search(_PULLING, output):
            return passed >= _PULL_OUTPUT_WITHIN
        return re.search(_PULLED, output) is not None
    try:
        pipe = os.fstat(child.stdin).st_ino
        return any(_has_stdin(each, pipe) and not is_runner(_argv(each)) for each in _process_tree(child.pid))
    except OSError:
        # It has exited, which is handled elsewhere, or /proc is not readable.
        return os.path.exists(f"/proc/{child.pid}") or not os.path.exists("/proc/self")


def _process_tree(pid: int) -> Iterator[int]:
    """Yield the process and its descendants. Raises OSError when the process is gone."""
    yield pid
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            children = file.read().split()
        for child in children:
            with suppress(OSError):
                yield from _process_tree(int(child))


def _has_stdin(pid: int, pipe: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/fd/0").st_ino == pipe
    except OSError:
        return False


def _argv(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return [word.decode("utf-8", "replace") for word in file.read(8192).split(b"\0") if word]
