"""What a definition says, in whichever of its spellings somebody wrote it."""

from __future__ import annotations

from collections.abc import Mapping

from ctl.status_view import mapping, strings
from mcpd.config.fields import CANONICAL_NAMES


def command(definition: Mapping[str, object]) -> list[str]:
    """The command line; empty for a remote server."""
    said = _canonical(definition)
    words = said.get("command")
    return ([words] if isinstance(words, str) else strings(words)) + strings(said.get("args"))


def environment(definition: Mapping[str, object]) -> Mapping[str, object]:
    """The variables that it sets."""
    return mapping(_canonical(definition).get("env"))


def url(definition: Mapping[str, object]) -> str:
    """The URL; empty for a program."""
    said = _canonical(definition)
    return str(said.get("httpUrl") or said.get("url") or "")


def is_enabled(definition: Mapping[str, object]) -> bool:
    """Whether it is to be started, as far as the definition goes."""
    said = _canonical(definition)
    return said.get("enabled") is not False and said.get("disabled") is not True


def _canonical(definition: Mapping[str, object]) -> dict[str, object]:
    known = {key: value for key, value in definition.items() if key in CANONICAL_NAMES and value is not None}
    return {CANONICAL_NAMES[key]: value for key, value in known.items()}
