"""A network link that fails silently and returns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stopwatch import within

ROOT = Path(__file__).parent.parent.parent
UNSHARE = ("unshare", "-n" if os.geteuid() == 0 else "-Urn")


@pytest.mark.root
@pytest.mark.slow
def test_dead_network_link_is_detected_and_recovered() -> None:
    """With keepalive at 3/2/3 s, a dead link is detected within 12 s and the error names the server. There
    are few attempts during the outage, and the server reconnects within 15 s.
    """
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("`ip` and `unshare` are not there: the packages iproute2 and util-linux have them")
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("no network namespace may be made here")
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.faults.network"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert within(seen["noticed"], 12)
    assert seen["words"].startswith("it: ")
    assert "timed out" in seen["words"]
    assert seen["may_have_run"]
    assert seen["attempts"] <= 20
    assert within(seen["back"], 15)
