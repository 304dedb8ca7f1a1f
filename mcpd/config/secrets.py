"""The user's secrets: a JSON file of names and values that nobody else can read. `${secret:NAME}` is one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mcpd.config.formats import decode, parse
from mcpd.config.places import at
from mcpd.model.errors import BadSpec, Problem, shorten
from mcpd.support.atomic import write_atomically
from mcpd.support.paths import UnusablePath, config_dir, private_directory

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a secret may be called."""

_LOOSE = stat.S_IRWXG | stat.S_IRWXO


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
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise BadSpec([Problem("$", message, "check its permissions")], str(path)) from None
    if mode & _LOOSE:
        message = f"{path} is open to other users"
        raise BadSpec([Problem("$", message, f"chmod 600 {path}")], str(path))
    value = parse(decode(data, str(path)), "JSON", str(path))
    if not isinstance(value, dict):
        message = f"{path} must hold an object of names and texts"
        raise BadSpec([Problem("$", message, 'write {"NAME": "value"}')], str(path))
    problems = [
        Problem(at("$", shorten(name, 64)), f"this secret in {path} is no text", "put it in quotes")
        for name, secret in value.items()
        if not isinstance(secret, str)
    ]
    if problems:
        raise BadSpec(problems, str(path))
    return {name: str(secret) for name, secret in value.items()}


def change_secrets(environ: Mapping[str, str], values: Mapping[str, str | None]) -> Path:
    """Store the values, or, where None, forget the names; the others stay. Returns the file's path.

    Atomic, and one writer at a time. Raises BadSpec when the file cannot be read or written, or a name
    cannot be one.
    """
    path = secrets_path(environ)
    wrong = [name for name in values if not NAME.fullmatch(name)]
    if wrong:
        fix = "write letters, digits and '_', not beginning with a digit"
        raise BadSpec([Problem("$", f"{shorten(name, 40)!r} is no name of a secret", fix) for name in wrong])
    try:
        private_directory(str(path.parent))
        with _alone(path.parent):
            secrets = read_secrets(environ)
            for name, value in values.items():
                if value is None:
                    secrets.pop(name, None)
                else:
                    secrets[name] = value
            text = json.dumps(secrets, indent=2, ensure_ascii=False) + "\n"
            write_atomically(path, text.encode("utf-8", "surrogatepass"), 0o600)
    except (OSError, UnusablePath) as error:
        message = f"cannot write {path}: {error}"
        raise BadSpec([Problem("$", message, "check the permissions of its directory")], str(path)) from None
    return path


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Whoever else changes the file waits until we have: both read it before they write."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
