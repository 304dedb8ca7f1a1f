"""Fixtures of the end-to-end tests: real processes and real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import harness

Start = Callable[..., harness.Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start({name: definition}, *flags)` runs a private daemon until the test ends."""
    with ExitStack() as stack:

        def start_daemon(
            servers: dict[str, Any] | None = None, *flags: str, **options: Any
        ) -> harness.Daemon:
            return stack.enter_context(harness.running(tmp_path, servers or {}, *flags, **options))

        yield start_daemon
