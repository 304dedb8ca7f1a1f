"""The dashboard tests use the real daemon and a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.window import launched
from tests.e2e.conftest import start

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["start"]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Start one browser for all tests here, because starting it takes long."""
    yield from launched()
