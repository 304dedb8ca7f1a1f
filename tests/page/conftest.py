"""The daemon is real, as in the outermost ring."""

from tests.e2e.conftest import start

__all__ = ["start"]
