"""Encrypting the file of logins with AES-256-GCM. `cryptography` is imported on use."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping

_NONCE = 12
_CONTEXT = b"mcpd logins 2"
"""Authenticated with the content, so that nothing else passes for a file of logins."""


class CannotUnseal(Exception):
    """The content is damaged, or was encrypted with another key. The message is safe to show."""


def seal(data: bytes, key: bytes) -> dict[str, str]:
    """Return a JSON object that contains `data`, encrypted. Raises CannotUnseal without the library."""
    nonce = secrets.token_bytes(_NONCE)
    sealed = _cipher(key).encrypt(nonce, data, _CONTEXT)  # type: ignore[attr-defined]
    return {"cipher": "AES-256-GCM", "nonce": _encode(nonce), "data": _encode(sealed)}


def unseal(document: Mapping[str, object], key: bytes) -> bytes:
    """Return what was encrypted. Raises CannotUnseal."""
    cipher = _cipher(key)
    try:
        if document.get("cipher") != "AES-256-GCM":
            raise ValueError
        nonce, data = (base64.b64decode(str(document[name]), validate=True) for name in ("nonce", "data"))
        return cipher.decrypt(nonce, data, _CONTEXT)  # type: ignore[attr-defined,no-any-return]
    except Exception:  # `InvalidTag` of the optional library, and whatever a damaged file causes
        raise CannotUnseal("it is damaged, or was encrypted with another key") from None


def _cipher(key: bytes) -> object:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise CannotUnseal(
            "encryption needs the package `cryptography`; reinstall mcpd with the extra `keyring`"
        ) from None
    return AESGCM(key)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
