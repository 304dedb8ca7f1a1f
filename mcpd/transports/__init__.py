"""Bytes in motion: children's pipes, HTTP, WebSockets; and what keeps a library of ours slim."""

import sys

# Where click, rich and pygments are installed, as they are with us, httpx brings its own command line along:
# 5 MB, and half of the time that importing it takes.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # Python's way of saying: not there
