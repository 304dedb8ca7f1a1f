"""The daemon of the outermost ring, for servers that others have written."""

from tests.e2e.conftest import start

__all__ = ["start"]
