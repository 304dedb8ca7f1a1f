"""A server's note to itself, carried by a client: sealed, so that it comes back unchanged."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec
from msgspec import Raw

_SIGNED_PREFIX = "u."
_SIGNATURE_LENGTH = 32


class StateSigner:
    """Good for as long as the daemon runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def sign(self, server: str, state: Raw) -> str:
        """A `requestState` as a server wrote it (JSON), as the client is to send it back."""
        text = bytes(state).decode("utf-8", "surrogatepass")
        return f"{_SIGNED_PREFIX}{self._signature(server, text)}.{text}"

    def verify(self, server: str, raw: Raw) -> Raw | None:
        """What `close` was given, by its bytes, from what the client sent (JSON); None for anything else."""
        try:
            sealed = msgspec.json.decode(raw, type=str)
        except msgspec.MsgspecError:
            return None
        if not sealed.startswith(_SIGNED_PREFIX):
            return None
        signature, _, text = sealed.removeprefix(_SIGNED_PREFIX).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(server, text).encode()):
            return None
        return Raw(text.encode("utf-8", "surrogatepass"))

    def _signature(self, server: str, text: str) -> str:
        message = msgspec.json.encode(server) + b"\0" + text.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()[:_SIGNATURE_LENGTH]
