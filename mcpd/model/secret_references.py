"""References to secrets in a definition: what is fetched when a server starts, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from mcpd.model.server_spec import ServerSpec

SecretKind = Literal["secret", "credential", "file", "cmd"]


@attrs.frozen
class Reference:
    """`${secret:NAME}` and its like; equal when the same thing is meant."""

    kind: SecretKind
    words: tuple[str, ...]
    """A name; an absolute path; a command line, split."""


@attrs.frozen
class Unavailable:
    """Why there is no value, and what to do."""

    message: str
    fix: str
    missing: bool = False
    """It is simply not there: a default stands in."""


Known = Mapping[Reference, str | Unavailable]
"""What has been fetched."""


@attrs.frozen
class Filled:
    """A definition with what is known put in; complete when nothing is `wanted`."""

    spec: ServerSpec
    wanted: tuple[Reference, ...]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""


class Late(Protocol):
    """A definition that is complete only once its secrets were fetched."""

    def fill(self, known: Known) -> Filled:
        """Raises BadSpec when something is unavailable, or useless where it stands."""
        ...
