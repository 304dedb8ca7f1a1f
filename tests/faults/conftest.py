"""Fixtures of the fault tests: the daemon of the end-to-end tests, and checks for side effects."""

from __future__ import annotations

from tests.e2e.conftest import start

__all__ = ["start"]
