"""Reads secrets from the user's store (a private JSON file), systemd credentials and files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mcpd.config.in_place_edits.document import write_error
from mcpd.config.loader import MAX_FILE_SIZE, decode_utf8, parse_text
from mcpd.files.atomic import write_atomically
from mcpd.files.paths import UnusablePath, config_dir, private_directory
from mcpd.files.regular import UnusableFile, open_regular_file, read_regular_file, read_up_to
from mcpd.model.errors import BadSpec, CannotWrite, Problem
from mcpd.model.json_path import join_path
from mcpd.model.server_spec import SecretReference, UnavailableSecret
from mcpd.model.text import shorten

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(@[^\x00-\x1f\x7f]{1,200})?")
"""Valid names of secrets: NAME, or NAME@PERSON for that of a person."""

MAX_SECRET_SIZE = 65_536
"""Bytes. Linux does not accept larger environment variables."""

_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secrets_path(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/mcpd/secrets.json`; the file may not exist."""
    return Path(config_dir(environ)) / "secrets.json"


def read_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return all secrets by name; empty if there is no file.

    Raises BadSpec if the file cannot be read, contains anything but strings, or other users can access it.
    """
    path = secrets_path(environ)
    try:
        with open_regular_file(path) as (file, found):
            data = read_up_to(file, MAX_FILE_SIZE, path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        fix = "move it away" if isinstance(error, UnusableFile) else "check its permissions"
        raise BadSpec.single(f"cannot read {path}: {error.strerror or error}", fix, path) from None
    if found.st_uid not in (os.getuid(), 0):
        message = f"{path} belongs to another user ({found.st_uid})"
        raise BadSpec.single(message, "move it away and store the secrets again", path)
    if found.st_mode & _GROUP_AND_OTHERS:
        raise BadSpec.single(f"other users can access {path}", f"chmod 600 {path}", path)
    try:
        value = parse_text(decode_utf8(data, str(path)), "JSON", str(path))
    except BadSpec as error:
        # The original message is dropped: it quotes the line, which may contain a secret.
        place = error.problems[0].path
        message = f"{place if place.startswith(str(path)) else path} is not valid JSON"
        raise BadSpec.single(message, "fix it, or move it away", path) from None
    if not isinstance(value, dict):
        message = f"{path} must contain an object of names and strings"
        raise BadSpec.single(message, 'write {"NAME": "value"}', path)
    problems = [
        Problem(
            join_path("$", shorten(name, 64)), f"this secret in {path} is not a string", "put it in quotes"
        )
        for name, secret in value.items()
        if not isinstance(secret, str)
    ]
    if problems:
        raise BadSpec(problems, str(path))
    return {name: str(secret) for name, secret in value.items()}


def fetch_secret(reference: SecretReference, environ: Mapping[str, str]) -> str | UnavailableSecret:
    """Look up any reference except a command. Blocks on the disk; never raises."""
    name = reference.arguments[0]
    if reference.kind == "secret":
        return _fetch_stored(name, environ)
    if reference.kind == "file":
        return _fetch_file(name, f"the file {name}", "create it, or correct its path")
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        fix = f"run mcpd under systemd with LoadCredential={name}:PATH (`systemctl --user edit mcpd`)"
        return UnavailableSecret(
            f"the credential {name} is not available: systemd passed no credentials to mcpd",
            fix,
            missing=True,
        )
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
        return decode_secret(read_regular_file(path, MAX_SECRET_SIZE), what)
    except (FileNotFoundError, NotADirectoryError):
        return UnavailableSecret(f"{what} does not exist", fix, missing=True)
    except UnusableFile as error:
        return UnavailableSecret(f"{what} cannot be used: {error.strerror}", "is it the right one?")
    except OSError as error:
        return UnavailableSecret(f"{what} cannot be read: {error.strerror or error}", "check its permissions")


def decode_secret(data: bytes, what: str) -> str | UnavailableSecret:
    """Decode the content of a file or the output of a command, without trailing line breaks."""
    if len(data) > MAX_SECRET_SIZE:
        return UnavailableSecret(f"{what} has more than {MAX_SECRET_SIZE} bytes", "is it the right one?")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return UnavailableSecret(f"{what} is not valid UTF-8", "is it the right one?")


def change_secrets(environ: Mapping[str, str], values: Mapping[str, str | None]) -> Path:
    """Store the given values and delete those that are None. Return the path of the file.

    The file is replaced atomically, by one writer at a time. Raises BadSpec if it cannot be read,
    or if a name is invalid, and CannotWrite.
    """
    path = secrets_path(environ)
    wrong = [name for name in values if not SECRET_NAME.fullmatch(name)]
    if wrong:
        fix = "use letters, digits and '_', and do not begin with a digit"
        raise BadSpec([Problem("$", f"invalid secret name {shorten(name, 40)!r}", fix) for name in wrong])
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
        raise write_error(path, error) from None
    except UnusablePath as error:
        fix = "check the permissions of its directory"
        raise CannotWrite(f"cannot write {path}: {error}", fix) from None
    return path


@contextmanager
def _exclusive_lock(directory: Path) -> Iterator[None]:
    """Serialize read-modify-write changes of the file between processes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
