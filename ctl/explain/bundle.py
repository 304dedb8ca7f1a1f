"""`mcpctl doctor --bundle`: findings, status and logs in one file for a bug report, with secrets masked.

Masks by value (secrets of the configuration and the store, environment variables with the name of a secret),
by name (members such as `password`) and by form (known formats of keys, `Bearer …`).
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress

from ctl.cli.errors import WriteFailed
from ctl.daemon.process import log_path
from ctl.daemon.systemd import journal
from ctl.explain.doctor import DoctorReport
from mcpd import __version__
from mcpd.config.masking import is_secret_name, mask_definition, scrub, scrub_json
from mcpd.config.secret_store import read_secrets
from mcpd.files import paths
from mcpd.model.errors import BadSpec
from mcpd.privacy.redact import Redactor

_LOG_BYTES = 256 * 1024
_JOURNAL_LINES = 1000
_SERVER_LOG_BYTES = 64 * 1024
_MAX_LOGS = 200
_MIN_SECRET_LENGTH = 6


def write_bundle(file: str, report: DoctorReport, environ: Mapping[str, str]) -> None:
    """Write the bundle atomically with mode 0600. Raises WriteFailed."""
    redactor = Redactor()
    if report.loaded is not None:
        redactor.add(report.loaded.secrets)
    with suppress(BadSpec):  # an unreadable store is among the findings
        redactor.add(read_secrets(environ).values())
    redactor.add(
        value for name, value in environ.items() if is_secret_name(name) and len(value) >= _MIN_SECRET_LENGTH
    )
    draft = f"{file}.{os.getpid()}"
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in _contents(report, environ).items():
                mask = scrub_json if name.endswith(".json") else scrub
                data = mask(redactor.mask(text)).encode("utf-8", "replace")
                entry = tarfile.TarInfo(f"mcpd-report/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                tar.addfile(entry, io.BytesIO(data))
        os.replace(draft, file)
    except OSError as error:
        if os.path.exists(draft):
            os.unlink(draft)
        raise WriteFailed(f"cannot write {file}: {error.strerror or error}") from None


def _contents(report: DoctorReport, environ: Mapping[str, str]) -> dict[str, str]:
    files: dict[str, object] = {
        "doctor.json": [finding._asdict() for finding in report.findings],
        "versions.json": _versions(environ),
    }
    files |= {f"{name}.json": answer for name, answer in report.answers.items()}
    if "config.json" not in files and report.loaded is not None:
        definitions = report.loaded.definitions.items()
        files["config.json"] = {
            "source": report.loaded.source,
            "servers": {name: mask_definition(definition) for name, definition in definitions},
        }
    written = {name: json.dumps(value, indent=1, ensure_ascii=False) for name, value in files.items()}
    return written | _logs(environ)


def _versions(environ: Mapping[str, str]) -> dict[str, object]:
    from importlib import metadata

    packages = {}
    for name in ("trio", "attrs", "cattrs", "msgspec", "click", "httpx", "httpcore2", "jsonschema-rs"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "missing"
    return {
        "mcpctl": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": packages,
        "variables": sorted(name for name in environ if name.startswith(("MCPD_", "MCPCTL_", "XDG_"))),
    }


def _logs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ends of the daemon's logs, the event history and the servers' logs."""
    state = paths.state_dir(environ)
    found = {
        "logs/daemon.log": _tail(log_path(), _LOG_BYTES),
        "logs/journal.log": journal(_JOURNAL_LINES, "short-iso"),
        "history.jsonl": _tail(f"{state}/history.jsonl", _LOG_BYTES),
    }
    try:
        names = sorted(name for name in os.listdir(f"{state}/logs") if name.endswith(".log"))
    except OSError:
        names = []
    for name in names[:_MAX_LOGS]:
        found[f"logs/servers/{name}"] = _tail(f"{state}/logs/{name}", _SERVER_LOG_BYTES)
    return {name: text for name, text in found.items() if text}


def _tail(path: str, size: int) -> str:
    """Return the end of a file from the start of a line: half a secret would not be recognized."""
    try:
        with open(path, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            file.seek(max(0, length - size))
            data = file.read(size)
    except OSError:
        return ""
    if length > size:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
