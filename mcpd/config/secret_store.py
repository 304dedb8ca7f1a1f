"""Where secrets come from: the user's store (a JSON file that nobody else can read), credentials, files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mcpd.config.in_place_edits.document import file_error
from mcpd.config.json_path import join_path
from mcpd.config.loader import decode_utf8, parse_text
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.server_spec import SecretReference, UnavailableSecret
from mcpd.model.text import shorten
from mcpd.support.atomic_files import write_atomically
from mcpd.support.paths import UnusablePath, config_dir, private_directory

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a secret may be called."""

MAX_SECRET_SIZE = 65_536
"""Bytes of one secret: more than Linux takes in one variable is none."""

_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secrets_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/mcpd/secrets.json`, there or not."""
    return Path(config_dir(environ)) / "secrets.json"


def read_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """All of them; none when there is no file.

    Raises BadSpec when it cannot be read, holds anything but texts, or is open to other users.
    """
    path = secrets_path(environ)
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise BadSpec([Problem("$", message, "check its permissions")], str(path)) from None
    if found.st_uid not in (os.getuid(), 0):
        message = f"{path} belongs to another user ({found.st_uid})"
        raise BadSpec([Problem("$", message, "move it away, and store the secrets anew")], str(path))
    if found.st_mode & _GROUP_AND_OTHERS:
        message = f"{path} is open to other users"
        raise BadSpec([Problem("$", message, f"chmod 600 {path}")], str(path))
    try:
        value = parse_text(decode_utf8(data, str(path)), "JSON", str(path))
    except BadSpec as error:
        # Without its words, which quote the line: there may be a secret on it.
        place = error.problems[0].path
        message = f"{place if place.startswith(str(path)) else path} is not valid JSON"
        raise BadSpec([Problem("$", message, "mend it, or move it away")], str(path)) from None
    if not isinstance(value, dict):
        message = f"{path} must hold an object of names and texts"
        raise BadSpec([Problem("$", message, 'write {"NAME": "value"}')], str(path))
    problems = [
        Problem(join_path("$", shorten(name, 64)), f"this secret in {path} is no text", "put it in quotes")
        for name, secret in value.items()
        if not isinstance(secret, str)
    ]
    if problems:
        raise BadSpec(problems, str(path))
    return {name: str(secret) for name, secret in value.items()}


def fetch_secret(reference: SecretReference, environ: Mapping[str, str]) -> str | UnavailableSecret:
    """Look up anything but a command. Blocks on the disk; never raises."""
    name = reference.arguments[0]
    if reference.kind == "secret":
        return _fetch_stored(name, environ)
    if reference.kind == "file":
        return _fetch_file(name, f"the file {name}", "create it, or correct its path")
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        fix = f"run mcpd under systemd with LoadCredential={name}:PATH (`systemctl --user edit mcpd`)"
        return UnavailableSecret(f"mcpd was given no credentials, so not {name} either", fix, missing=True)
    return _fetch_file(
        os.path.join(directory, name), f"the credential {name}", f"add LoadCredential={name}:PATH"
    )


def _fetch_stored(name: str, environ: Mapping[str, str]) -> str | UnavailableSecret:
    try:
        found = read_secrets(environ).get(name)
    except BadSpec as error:
        return UnavailableSecret(error.problems[0].message, error.problems[0].fix)
    if found is None:
        return UnavailableSecret(f"there is no secret {name}", f"`mcpctl secret set {name}`", missing=True)
    return found


def _fetch_file(path: str, what: str, fix: str) -> str | UnavailableSecret:
    try:
        # A FIFO with nobody at its other end would hold us up for ever.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return UnavailableSecret(f"{what} is no regular file", fix)
        with open(path, "rb") as file:
            return decode_secret(file.read(MAX_SECRET_SIZE + 1), what)
    except (FileNotFoundError, NotADirectoryError):
        return UnavailableSecret(f"{what} does not exist", fix, missing=True)
    except OSError as error:
        return UnavailableSecret(f"{what} cannot be read: {error.strerror or error}", "check its permissions")


def decode_secret(data: bytes, what: str) -> str | UnavailableSecret:
    """One secret from what a file or a command gave, without the line's end."""
    if len(data) > MAX_SECRET_SIZE:
        return UnavailableSecret(f"{what} has more than {MAX_SECRET_SIZE} bytes", "is it the right one?")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return UnavailableSecret(f"{what} is no text in UTF-8", "is it the right one?")


def change_secrets(environ: Mapping[str, str], values: Mapping[str, str | None]) -> Path:
    """Store the values, or, where None, forget the names; the others stay. Returns the file's path.

    Atomic, and one writer at a time. Raises BadSpec when the file cannot be read or written, or a name
    cannot be one.
    """
    path = secrets_path(environ)
    wrong = [name for name in values if not SECRET_NAME.fullmatch(name)]
    if wrong:
        fix = "write letters, digits and '_', not beginning with a digit"
        raise BadSpec([Problem("$", f"{shorten(name, 40)!r} is no name of a secret", fix) for name in wrong])
    try:
        private_directory(str(path.parent))
        with _exclusive_lock(path.parent):
            secrets = read_secrets(environ)
            for name, value in values.items():
                if value is None:
                    secrets.pop(name, None)
                else:
                    secrets[name] = value
            text = json.dumps(secrets, indent=2, ensure_ascii=False) + "\n"
            write_atomically(path, text.encode("utf-8", "surrogatepass"), 0o600)
    except OSError as error:
        raise file_error("write", path, error) from None
    except UnusablePath as error:
        message = f"cannot write {path}: {error}"
        raise BadSpec([Problem("$", message, "check the permissions of its directory")], str(path)) from None
    return path


@contextmanager
def _exclusive_lock(directory: Path) -> Iterator[None]:
    """Whoever else changes the file waits until we have: both read it before they write."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
