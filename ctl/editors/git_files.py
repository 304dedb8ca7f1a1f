"""Whether git keeps a file, so that a change of it may reach other people."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT = 5.0
"""Seconds. The index of a large repository takes a fraction of one."""


def is_tracked(path: Path) -> bool:
    """Return whether git tracks a file. False if that is not known, such as without git.

    The repository may be somebody else's, so its settings must not make git run a program.
    """
    options = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    command = ["git", *options, "--no-optional-locks", "ls-files", "--error-unmatch", "--", path.name]
    try:
        ran = subprocess.run(
            command,
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return ran.returncode == 0
