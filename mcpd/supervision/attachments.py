"""What other packages keep for each server, without the supervision knowing what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class Attachment(Generic[T]):
    """The key of one attachment. The package that attaches it defines the key. Compared by identity."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<Attachment {self.what}>"


class Attachments(dict[Attachment[Any], Any]):
    """The attachments of one server: the value of each key has the key's type."""

    if TYPE_CHECKING:

        def __getitem__(self, key: Attachment[T]) -> T: ...
        def __setitem__(self, key: Attachment[T], value: T) -> None: ...
        def get(self, key: Attachment[T]) -> T | None: ...  # type: ignore[override]
