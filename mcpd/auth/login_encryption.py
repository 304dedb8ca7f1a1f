"""Encrypts the stored logins, with a key from the keyring of the session or from systemd.

`secretstorage` and `cryptography` are the extra `[keyring]`, and are imported on use.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mcpd.files.regular import read_regular_file

if TYPE_CHECKING:
    from jeepney.io.blocking import DBusConnection

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


# ── the keyring of the session ────────────────────────────────────────────────────────────────────────


TIMEOUT = 10.0
"""Seconds for one answer of the service."""
_LABEL = "Key of the logins of mcpd"
_ATTRIBUTES = {"application": "mcpd", "purpose": "logins"}


class KeyUnavailable(Exception):
    """There is no key now. The message says why, and what to do."""


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return mcpd's secret; None if the keyring has none. Raises KeyUnavailable."""
    with _connected(environ) as connection:
        from secretstorage import search_items

        item = next(search_items(connection, _ATTRIBUTES), None)
        return None if item is None else item.get_secret()


def store_secret(environ: Mapping[str, str], secret: bytes) -> None:
    """Store mcpd's secret in the default collection. Raises KeyUnavailable."""
    with _connected(environ) as connection:
        from secretstorage.collection import get_collection_by_alias

        collection = get_collection_by_alias(connection, "default")
        collection.create_item(_LABEL, _ATTRIBUTES, secret, True, "application/octet-stream")


@contextmanager
def _connected(environ: Mapping[str, str]) -> Iterator[DBusConnection]:
    try:
        from jeepney.io.blocking import open_dbus_connection
        from jeepney.wrappers import DBusErrorResponse
        from secretstorage import exceptions
    except ImportError:
        raise KeyUnavailable(
            "the keyring needs the package `SecretStorage`; reinstall mcpd with the extra `keyring`"
        ) from None
    address = environ.get("DBUS_SESSION_BUS_ADDRESS")
    runtime = environ.get("XDG_RUNTIME_DIR")
    if not address and runtime and os.path.exists(f"{runtime}/bus"):
        address = f"unix:path={runtime}/bus"
    if not address:
        raise KeyUnavailable("there is no session bus, so there is no keyring")
    try:
        connection = open_dbus_connection(address)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise KeyUnavailable(f"the session bus cannot be reached: {error}") from None
    for name in ("send_and_get_reply", "recv_until_filtered"):  # secretstorage waits for ever
        setattr(connection, name, _bounded(getattr(connection, name)))
    with closing(connection):
        try:
            yield connection
        except exceptions.LockedException:
            message = "the keyring is locked; unlock it, and run `mcpctl login --list`"
            raise KeyUnavailable(message) from None
        except exceptions.SecretServiceNotAvailableException:
            raise KeyUnavailable("no keyring runs in this session") from None
        except exceptions.SecretStorageException as error:  # such as a prompt, or no default keyring
            raise KeyUnavailable(f"the keyring cannot be used: {error}") from None
        except DBusErrorResponse as error:
            name = str(error.name).rpartition(".")[2]
            raise KeyUnavailable(f"the keyring returned the error {name}") from None
        except (OSError, TimeoutError) as error:
            raise KeyUnavailable(f"the keyring did not answer: {str(error) or 'timeout'}") from None


def _bounded(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, timeout: float | None = None, **more: Any) -> Any:  # noqa: ANN401 - any method
        return method(*arguments, timeout=TIMEOUT, **more)

    return call


# ── where the key of the stored logins comes from ─────────────────────────────────────────────────────


CREDENTIAL = "mcpd-logins"
"""The name of the systemd credential."""
_SIZE = 32
_MAX_CREDENTIAL = 1 << 16


class LoginKey(Protocol):
    """Where a key of 32 bytes comes from. `read` blocks."""

    may_appear: bool
    """Whether a key that is unavailable may become available while mcpd runs."""

    def read(self, *, create: bool = False) -> bytes:
        """Return the key, with `create` a new one if there is none. Raises KeyUnavailable."""


class KeyringKey:
    """In the Secret Service. Kept in memory after it was read."""

    may_appear = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._key: bytes | None = None

    def read(self, *, create: bool = False) -> bytes:
        if self._key is None:
            key = read_secret(self._environ)
            if key is None or len(key) != _SIZE:
                if not create:
                    raise KeyUnavailable("the key of the logins is no longer in the keyring")
                key = secrets.token_bytes(_SIZE)
                store_secret(self._environ, key)
            self._key = key
        return self._key


class CredentialKey:
    """Derived from a credential that systemd provides (`LoadCredential=`, `LoadCredentialEncrypted=`)."""

    may_appear = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = environ.get("CREDENTIALS_DIRECTORY", "")

    def read(self, *, create: bool = False) -> bytes:
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


def login_key(storage: str, environ: Mapping[str, str]) -> LoginKey | None:
    """Return the key for a value of the setting `loginStorage`; None for `file`."""
    match storage:
        case "keyring":
            return KeyringKey(environ)
        case "credential":
            return CredentialKey(environ)
    return None
