"""Where the frames of one request go: what a door gives the gateway with every request."""

from __future__ import annotations

from typing import Protocol

import attrs


class Responder(Protocol):
    """Frames are JSON text; a newline at the end is no part of them. Must not block or raise.

    Exactly one of `finish` and `drop` is called, once, unless the session ends before.
    """

    def send(self, frame: bytes) -> None:
        """A notification, or a request of ours, that belongs to this request: it comes before the end."""

    def finish(self, frame: bytes, code: int = 0) -> None:
        """The response. `code`: the JSON-RPC code of an error of our own, 0 for all else."""

    def drop(self) -> None:
        """There will be no response: the client has cancelled the request."""


@attrs.frozen(kw_only=True)
class ClientIdentity:
    """Who is at the other end, as far as is known; all of it is the client's own word but for `door`."""

    via: str
    """How it came in: `socket`, `bridge`, `http`."""
    name: str = ""
    pid: int = 0
    cwd: str = ""
