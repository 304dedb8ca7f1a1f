"""Fixtures of the fault matrix: the daemon of the everyday tests, and what nobody else may notice."""

from __future__ import annotations

from tests.e2e.conftest import start

__all__ = ["start"]
