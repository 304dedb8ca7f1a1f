"""One secret in the Secret Service of the session (freedesktop.org), such as GNOME Keyring or KWallet.

`jeepney` is the extra `[keyring]` and is imported on use. Everything here blocks; call it in a thread. No
dialog ever appears, because the daemon must not ask for a password by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

TIMEOUT = 10.0
"""Seconds for one answer of the service."""
_SERVICE = "org.freedesktop.secrets"
_ROOT = "/org/freedesktop/secrets"
_LABEL = "Key of the logins of mcpd"
_ATTRIBUTES = {"application": "mcpd", "purpose": "logins"}
_NOTHING = "/"
"""The object path that means none."""


class KeyringUnavailable(Exception):
    """The keyring cannot be used now. The message says why, and what to do."""


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return mcpd's secret; None if the keyring has none. Raises KeyringUnavailable."""
    with _connected(environ) as service:
        item = service.find()
        return None if item is None else service.secret_of(item)


def store_secret(environ: Mapping[str, str], secret: bytes) -> None:
    """Store mcpd's secret in the default collection. Raises KeyringUnavailable."""
    with _connected(environ) as service:
        service.store(secret)


@contextmanager
def _connected(environ: Mapping[str, str]) -> Iterator[_Service]:
    try:
        from jeepney.io.blocking import open_dbus_connection
        from jeepney.wrappers import DBusErrorResponse
    except ImportError:
        raise KeyringUnavailable(
            "the keyring needs the package `jeepney`; reinstall mcpd with the extra `keyring`"
        ) from None
    address = environ.get("DBUS_SESSION_BUS_ADDRESS")
    runtime = environ.get("XDG_RUNTIME_DIR")
    if not address and runtime and os.path.exists(f"{runtime}/bus"):
        address = f"unix:path={runtime}/bus"
    if not address:
        raise KeyringUnavailable("there is no session bus, so there is no keyring")
    try:
        connection = open_dbus_connection(_address_of(address))
    except (OSError, ValueError, KeyError) as error:
        raise KeyringUnavailable(f"the session bus cannot be reached: {error}") from None
    try:
        yield _Service(connection)
    except DBusErrorResponse as error:
        name = str(error.name).rpartition(".")[2]
        missing = name in ("ServiceUnknown", "NameHasNoOwner")
        message = "no keyring runs in this session" if missing else f"the keyring returned the error {name}"
        raise KeyringUnavailable(message) from None
    except (OSError, TimeoutError) as error:
        raise KeyringUnavailable(f"the keyring did not answer: {str(error) or 'timeout'}") from None
    finally:
        connection.close()


def _address_of(address: str) -> str:
    """Return the first usable address of a list (D-Bus specification, Server Addresses)."""
    return next((each for each in address.split(";") if each.startswith("unix:")), address)


class _Service:
    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - a class of the optional library
        self._connection = connection

    def _call(self, path: str, interface: str, method: str, signature: str = "", *body: Any) -> Any:  # noqa: ANN401
        from jeepney import DBusAddress, new_method_call
        from jeepney.wrappers import unwrap_msg

        address = DBusAddress(path, _SERVICE, f"org.freedesktop.Secret.{interface}")
        message = new_method_call(address, method, signature or None, body)
        return unwrap_msg(self._connection.send_and_get_reply(message, timeout=TIMEOUT))

    def find(self) -> str | None:
        """Return the item with mcpd's secret, unlocked; None if there is none."""
        unlocked, locked = self._call(_ROOT, "Service", "SearchItems", "a{ss}", _ATTRIBUTES)
        if not unlocked and locked:
            self._unlock(locked[0])
        return str((unlocked or locked)[0]) if unlocked or locked else None

    def _unlock(self, path: str) -> None:
        """Unlock what needs no password. Raises KeyringUnavailable."""
        unlocked, prompt = self._call(_ROOT, "Service", "Unlock", "ao", [path])
        if prompt != _NOTHING:
            self._call(prompt, "Prompt", "Dismiss")
        if path not in unlocked:
            raise KeyringUnavailable("the keyring is locked; unlock it, and run `mcpctl auth list`")

    def secret_of(self, item: str) -> bytes:
        ((_, _, value, _),) = self._call(item, "Item", "GetSecret", "o", self._session())
        return bytes(value)

    def store(self, secret: bytes) -> None:
        (collection,) = self._call(_ROOT, "Service", "ReadAlias", "s", "default")
        if collection == _NOTHING:
            raise KeyringUnavailable("the session has no default keyring; create one")
        self._unlock(collection)
        properties = {
            "org.freedesktop.Secret.Item.Label": ("s", _LABEL),
            "org.freedesktop.Secret.Item.Attributes": ("a{ss}", _ATTRIBUTES),
        }
        value = (self._session(), b"", secret, "application/octet-stream")
        item, prompt = self._call(
            collection, "Collection", "CreateItem", "a{sv}(oayays)b", properties, value, True
        )
        if prompt != _NOTHING:
            self._call(prompt, "Prompt", "Dismiss")
        if item == _NOTHING:
            raise KeyringUnavailable("the keyring requires a prompt; unlock it first")

    def _session(self) -> str:
        """Open a session. The secret crosses only the session bus, which belongs to the user."""
        _, session = self._call(_ROOT, "Service", "OpenSession", "sv", "plain", ("s", ""))
        return str(session)
