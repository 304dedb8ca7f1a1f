"""Provide the daemon of the end-to-end tests, for third-party servers."""

from tests.e2e.conftest import start

__all__ = ["start"]
