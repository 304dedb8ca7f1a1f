"""The key that encrypts the file of logins: in the keyring of the session, or a systemd credential.

The keyring contains one key instead of every token, because tokens change every few minutes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mcpd.auth.secret_service import KeyringUnavailable, read_secret, store_secret
from mcpd.support.regular_files import read_regular_file

CREDENTIAL = "mcpd-logins"
"""The name of the systemd credential."""
_SIZE = 32
_MAX_CREDENTIAL = 1 << 16


class KeyUnavailable(Exception):
    """There is no key now. The message says why, and what to do."""


class LoginKey(Protocol):
    """Where a key of 32 bytes comes from. The methods block."""

    may_appear: bool
    """Whether a key that is unavailable may become available while mcpd runs."""

    def read(self) -> bytes:
        """Return the key. Raises KeyUnavailable."""

    def read_or_create(self) -> bytes:
        """Return the key, or a new one if nothing was encrypted yet. Raises KeyUnavailable."""

    def check(self) -> None:
        """Raises KeyUnavailable if there is no key now, and none can be created."""


class KeyringKey:
    """In the Secret Service. Kept in memory after it was read."""

    may_appear = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._key: bytes | None = None

    def read(self) -> bytes:
        if self._key is None:
            try:
                key = read_secret(self._environ)
            except KeyringUnavailable as error:
                raise KeyUnavailable(str(error)) from None
            if key is None or len(key) != _SIZE:
                raise KeyUnavailable("the key of the logins is no longer in the keyring")
            self._key = key
        return self._key

    def read_or_create(self) -> bytes:
        if self._key is None:
            try:
                key = read_secret(self._environ)
                if key is None or len(key) != _SIZE:
                    key = secrets.token_bytes(_SIZE)
                    store_secret(self._environ, key)
            except KeyringUnavailable as error:
                raise KeyUnavailable(str(error)) from None
            self._key = key
        return self._key

    def check(self) -> None:
        if self._key is None:
            try:
                read_secret(self._environ)
            except KeyringUnavailable as error:
                raise KeyUnavailable(str(error)) from None


class CredentialKey:
    """Derived from a credential that systemd provides (`LoadCredential=`, `LoadCredentialEncrypted=`)."""

    may_appear = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = environ.get("CREDENTIALS_DIRECTORY", "")

    def read(self) -> bytes:
        if not self._directory:
            raise KeyUnavailable("systemd has not provided any credentials to mcpd")
        try:
            content = read_regular_file(Path(self._directory) / CREDENTIAL, _MAX_CREDENTIAL)
        except OSError as error:
            reason = error.strerror or error
            raise KeyUnavailable(f"the systemd credential {CREDENTIAL} cannot be read: {reason}") from None
        if len(content) < _SIZE:
            raise KeyUnavailable(f"the systemd credential {CREDENTIAL} has fewer than {_SIZE} bytes")
        return hashlib.sha256(b"mcpd logins\0" + content).digest()

    def read_or_create(self) -> bytes:
        return self.read()

    def check(self) -> None:
        self.read()


def login_key(storage: str, environ: Mapping[str, str]) -> LoginKey | None:
    """Return the key for a value of the setting `loginStorage`; None for `file`."""
    match storage:
        case "keyring":
            return KeyringKey(environ)
        case "credential":
            return CredentialKey(environ)
    return None
