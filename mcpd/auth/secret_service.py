"""One secret in the Secret Service of the session (freedesktop.org), such as GNOME Keyring or KWallet.

`secretstorage` is the extra `[keyring]` and is imported on use. Everything here blocks; call it in a thread.
A locked keyring is an error, because the daemon must not ask for a password by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jeepney.io.blocking import DBusConnection

TIMEOUT = 10.0
"""Seconds for one answer of the service."""
_LABEL = "Key of the logins of mcpd"
_ATTRIBUTES = {"application": "mcpd", "purpose": "logins"}


class KeyringUnavailable(Exception):
    """The keyring cannot be used now. The message says why, and what to do."""


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return mcpd's secret; None if the keyring has none. Raises KeyringUnavailable."""
    with _connected(environ) as connection:
        from secretstorage import search_items

        item = next(search_items(connection, _ATTRIBUTES), None)
        return None if item is None else item.get_secret()


def store_secret(environ: Mapping[str, str], secret: bytes) -> None:
    """Store mcpd's secret in the default collection. Raises KeyringUnavailable."""
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
        raise KeyringUnavailable(
            "the keyring needs the package `SecretStorage`; reinstall mcpd with the extra `keyring`"
        ) from None
    address = environ.get("DBUS_SESSION_BUS_ADDRESS")
    runtime = environ.get("XDG_RUNTIME_DIR")
    if not address and runtime and os.path.exists(f"{runtime}/bus"):
        address = f"unix:path={runtime}/bus"
    if not address:
        raise KeyringUnavailable("there is no session bus, so there is no keyring")
    try:
        connection = open_dbus_connection(address)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise KeyringUnavailable(f"the session bus cannot be reached: {error}") from None
    for name in ("send_and_get_reply", "recv_until_filtered"):  # secretstorage waits for ever
        setattr(connection, name, _bounded(getattr(connection, name)))
    with closing(connection):
        try:
            yield connection
        except exceptions.LockedException:
            message = "the keyring is locked; unlock it, and run `mcpctl auth list`"
            raise KeyringUnavailable(message) from None
        except exceptions.SecretServiceNotAvailableException:
            raise KeyringUnavailable("no keyring runs in this session") from None
        except exceptions.ItemNotFoundException:
            raise KeyringUnavailable("the session has no default keyring; create one") from None
        except exceptions.PromptDismissedException:
            raise KeyringUnavailable("the keyring requires a prompt; unlock it first") from None
        except DBusErrorResponse as error:
            name = str(error.name).rpartition(".")[2]
            raise KeyringUnavailable(f"the keyring returned the error {name}") from None
        except (OSError, TimeoutError) as error:
            raise KeyringUnavailable(f"the keyring did not answer: {str(error) or 'timeout'}") from None


def _bounded(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, timeout: float | None = None, **more: Any) -> Any:  # noqa: ANN401 - any method
        return method(*arguments, timeout=TIMEOUT, **more)

    return call
