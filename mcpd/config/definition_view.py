"""Fields of a server definition, whichever spelling of their names it uses."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.config.definition import CANONICAL_NAMES


def command(definition: Mapping[str, object]) -> list[str]:
    """Return the command line; empty for a remote server."""
    fields = _canonical(definition)
    program = fields.get("command")
    return ([program] if isinstance(program, str) else _strings(program)) + _strings(fields.get("args"))


def environment(definition: Mapping[str, object]) -> Mapping[str, object]:
    """Return the environment variables that it sets."""
    return _mapping(_canonical(definition).get("env"))


def headers(definition: Mapping[str, object]) -> Mapping[str, object]:
    """Return the HTTP headers that it sets."""
    return _mapping(_canonical(definition).get("headers"))


def url(definition: Mapping[str, object]) -> str:
    """Return the URL; empty for a local server."""
    fields = _canonical(definition)
    return str(fields.get("url") or "")


def oauth_without_person(definition: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings of a grant that needs no person; empty if there are none."""
    oauth = _mapping(_canonical(definition).get("oauth"))
    return oauth if oauth.get("grant", "code") != "code" else {}


def forbids_login(definition: Mapping[str, object]) -> bool:
    """Return whether the definition forbids a login with OAuth."""
    return _canonical(definition).get("oauth") is False


def is_enabled(definition: Mapping[str, object]) -> bool:
    """Return whether the definition enables the server."""
    fields = _canonical(definition)
    return fields.get("enabled") is not False and fields.get("disabled") is not True


def has_exclusive_calls(definition: Mapping[str, object]) -> bool:
    """Return whether calls must not overlap, so that clients cannot have processes of their own."""
    return _canonical(definition).get("concurrency") in ("serial", "writes")


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _canonical(definition: Mapping[str, object]) -> dict[str, object]:
    known = {key: value for key, value in definition.items() if key in CANONICAL_NAMES and value is not None}
    return {CANONICAL_NAMES[key]: value for key, value in known.items()}
