"""The file with all logins: private, locked, replaced atomically, and never overwritten when it is damaged.

Only the daemon that holds the lock writes it and renews tokens: an authorization server that sees one refresh
token twice ends the login. Everything here blocks on the disk; call it in a thread.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from mcpd.auth.login_key import KeyUnavailable, LoginKey
from mcpd.auth.sealed_document import CannotUnseal, seal, unseal
from mcpd.auth.stored_login import StoredLogins, from_json, to_json
from mcpd.model import json_limits
from mcpd.support.atomic_files import remove_stale_temporaries, write_atomically
from mcpd.support.paths import UnusablePath, private_directory
from mcpd.support.regular_files import UnusableFile, open_regular_file, read_up_to

log = logging.getLogger("mcpd.auth")

VERSION = 1
SEALED_VERSION = 2
"""Of an encrypted file, which contains one of the other version."""
_MAX_SIZE = 16 << 20
_MAX_VALUES = 1_000_000
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class StoreError(Exception):
    """The file cannot be used. The message names the file and what to do; it contains no secret."""


class TokenStore:
    """Use from one thread at a time. `open` first; `close` releases the lock."""

    def __init__(self, state_dir: Path, machine: str | None = None, key: LoginKey | None = None) -> None:
        """`machine` identifies this machine; None determines it. With `key`, the file is encrypted."""
        self.directory = state_dir / "login"
        self.path = self.directory / "logins.json"
        self.machine = machine_id() if machine is None else machine
        self.other_daemon = ""
        """Describes the daemon that holds the lock; empty if this one does."""
        self.problem = ""
        """Why the file cannot be read or written; empty if it can."""
        self.is_locked = False
        """Whether the file can be read as soon as its key is available, as with a locked keyring."""
        self._lock: int | None = None
        self._key = key
        self._is_plain = False
        """Whether the file was last read without decrypting it."""

    @property
    def is_keeper(self) -> bool:
        """Whether this daemon may renew tokens and write the file."""
        return self._lock is not None

    def exists(self) -> bool:
        """Return whether anything was ever stored. Creates nothing."""
        return os.path.lexists(self.path)

    def open(self, only: Mapping[str, str] | None = None) -> StoredLogins:
        """Take the lock if it is free, and return the contents; empty if they cannot be read. Never raises.

        May be called again, to find out whether the other daemon has ended. `only`: see `from_json`.
        """
        if self._lock is None:
            try:
                private_directory(str(self.directory))
                self._take_lock()
            except (OSError, UnusablePath) as error:
                self._report(f"cannot use {self.directory} for logins: {_reason(error)}")
        if self.is_keeper:
            remove_stale_temporaries(self.path)
        try:
            found = self.read(only)
            if self._key is not None and self._is_plain and self.is_keeper:
                self.change(lambda contents: contents)  # it was not encrypted before
        except StoreError:
            return StoredLogins()
        return found

    def check_key(self) -> str:
        """Return why the key of the file is unavailable now; empty if it is not, or if there is none."""
        try:
            if self._key is not None:
                self._key.check()
        except KeyUnavailable as error:
            return f"cannot encrypt logins: {error}"
        return ""

    def read(self, only: Mapping[str, str] | None = None) -> StoredLogins:
        """Return the contents; empty if there is no file. Raises StoreError, which has been logged."""
        try:
            contents = self._read(only)
        except StoreError as error:
            self._report(str(error))
            raise
        self.is_locked = False
        if only is None and (self.is_keeper or self.other_daemon):  # otherwise the directory cannot be used
            damaged = sum(map(len, contents.unreadable.values()))
            self._report(
                f"{damaged} entries of {self.path} are damaged; they are kept and not used" if damaged else ""
            )
        return contents

    def change(self, edit: Callable[[StoredLogins], StoredLogins]) -> StoredLogins:
        """Read the file, replace it by what `edit` returns, and return that. Durable when it returns.

        A file that is not valid JSON is renamed first. Raises StoreError with nothing written.
        """
        if not self.is_keeper:
            self.open()
        if not self.is_keeper:
            raise StoreError(
                self.problem or f"{self.other_daemon} keeps the logins; this daemon only reads them"
            )
        try:
            before = self._read()
        except _Damaged:
            self._set_aside()
            before = StoredLogins()
        except StoreError as error:
            self._report(str(error))
            raise
        after = edit(before)
        data = msgspec.json.format(msgspec.json.encode({"version": VERSION, **to_json(after)}), indent=1)
        try:
            data = data if self._key is None else self._sealed(data, self._key)
            write_atomically(self.path, data, 0o600)
        except OSError as error:
            message = f"cannot write {self.path}: {_reason(error)}; logins are kept in memory"
            self._report(message)
            raise StoreError(message) from None
        except (KeyUnavailable, CannotUnseal) as error:
            message = f"cannot encrypt {self.path}: {error}; logins are kept in memory"
            self._report(message)
            raise StoreError(message) from None
        self._report("")
        return after

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, only: Mapping[str, str] | None = None) -> StoredLogins:
        try:
            with open_regular_file(self.path) as (file, found):
                self._check_access(found)
                data = read_up_to(file, _MAX_SIZE, self.path)
        except (FileNotFoundError, NotADirectoryError):
            return StoredLogins()
        except OSError as error:
            fix = "move it away" if isinstance(error, UnusableFile) else "check its permissions"
            raise StoreError(f"cannot read {self.path}: {_reason(error)}; {fix}") from None
        try:
            json_limits.check_size(data, _MAX_VALUES, _MAX_SIZE)
            document = msgspec.json.decode(data)
            if not isinstance(document, dict) or not isinstance(document.get("version"), int):
                raise ValueError("it has no version")
        except (ValueError, msgspec.MsgspecError, RecursionError, json_limits.TooLarge):
            raise self._damaged() from None
        self._is_plain = document["version"] != SEALED_VERSION
        if document["version"] == SEALED_VERSION:
            document = self._unsealed(document)
        if document["version"] != VERSION:
            raise StoreError(
                f"{self.path} was written by another version of mcpd "
                f"(format {str(document['version'])[:20]}); it is not used or changed"
            )
        try:
            return from_json(document, only=only)
        except ValueError:
            raise self._damaged() from None

    def _sealed(self, data: bytes, key: LoginKey) -> bytes:
        """Return the document that contains an encrypted one. Raises KeyUnavailable and CannotUnseal."""
        document = {"version": SEALED_VERSION, "sealed": seal(data, key.read_or_create())}
        return msgspec.json.encode(document)

    def _unsealed(self, document: Mapping[str, object]) -> dict[str, object]:
        """Return the document that is encrypted in another. Raises StoreError; the file is kept."""
        if self._key is None:
            raise StoreError(
                f"{self.path} is encrypted; set `loginStorage` as it was, or move it away and log in again"
            )
        sealed = document.get("sealed")
        try:
            data = unseal(sealed if isinstance(sealed, dict) else {}, self._key.read())
            inner: dict[str, object] = msgspec.json.decode(data)
        except KeyUnavailable as error:
            self.is_locked = self._key.may_appear
            raise StoreError(f"cannot decrypt {self.path}: {error}") from None
        except (CannotUnseal, msgspec.MsgspecError) as error:
            message = f"cannot decrypt {self.path}: {error}; move it away to start a new file"
            raise StoreError(message) from None
        return inner

    def _damaged(self) -> _Damaged:
        return _Damaged(
            f"{self.path} is damaged, so its logins are not used; it is kept. "
            "Log in again to start a new file"
        )

    def _check_access(self, found: os.stat_result) -> None:
        """Refuse a file that others may have read or written. Raises StoreError."""
        if found.st_uid != os.getuid():
            raise StoreError(
                f"{self.path} belongs to another user ({found.st_uid}), so it is not used; move it away"
            )
        if found.st_mode & _GROUP_AND_OTHERS:
            raise StoreError(
                f"other users can access {self.path}, so it is not used; if nobody else has read it, run: "
                f"chmod 600 {self.path}"
            )

    def _set_aside(self) -> None:
        """Rename a damaged file. Raises StoreError."""
        kept = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        try:
            os.rename(self.path, kept)
        except OSError as error:
            raise StoreError(f"cannot rename the damaged {self.path}: {_reason(error)}") from None
        log.warning("the damaged file of logins is kept as %s", kept)

    # ── the lock ────────────────────────────────────────────────────────────────────────────────

    def _take_lock(self) -> None:
        """Take the lock, or note who holds it. The number in the file is used for messages only."""
        path = self.directory / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.pread(handle, 32, 0).strip()
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            number = f" (process {int(pid)})" if pid.isdigit() else ""
            self.other_daemon = f"another mcpd{number}"
            return
        with suppress(OSError):  # a full disk
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        self._lock, self.other_daemon = handle, ""

    def _report(self, problem: str) -> None:
        """Note a problem, or that there is none, and log it once."""
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


class _Damaged(StoreError):
    """The file is not what mcpd writes."""


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def machine_id() -> str:
    """Return what identifies this machine, without revealing its id; empty if it has none.

    A home directory may be copied, or shared over NFS. The lock covers one machine only.
    """
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            found = Path(path).read_text("ascii", "replace").strip()
            if found:
                return hashlib.sha256(f"mcpd login {found}".encode()).hexdigest()[:16]
    return ""
