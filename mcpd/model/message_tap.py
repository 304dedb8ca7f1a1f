"""A look at the wire: what `mcpd/tap` takes, and what its `mcpd/frame` notifications carry."""

from __future__ import annotations

import enum

import attrs
import msgspec


@attrs.frozen(kw_only=True)
class TapParams:
    server: str
    methods: tuple[str, ...] = ()
    """Only messages of these methods, and the answers to them; `*` and `?` allowed. Empty: all."""
    limit: int = 65_536
    """A message of more bytes is cut there."""


class MessageDirection(enum.Enum):
    TO_SERVER = "to-server"
    FROM_SERVER = "from-server"
    NOTE = "note"
    """No message: mcpd says something about the connection, or about the tap."""


@attrs.frozen(kw_only=True)
class TapFrame:
    """One message as it went over the wire, secrets masked."""

    at: str
    server: str
    direction: MessageDirection
    method: str = ""
    """Of an answer, the method that it answers; empty where the question was not seen."""
    id: str = ""
    """As it is spelt in JSON; empty for a notification."""
    bytes: int = 0
    """Its whole length."""
    message: msgspec.Raw | None = None
    """The message; null where it is none, or had to be cut."""
    text: str = ""
    """What there is instead of a message: words, junk, or the beginning of what was cut."""
    cut: bool = False
    dropped: int = 0
    """So many frames before this one are missing here: they came faster than the client reads."""
