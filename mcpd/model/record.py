"""The base of the types of the control API, whose classes are cheap to create."""

from __future__ import annotations

import attrs


class Record:
    """Compares and prints attrs classes that are declared with `eq=False, repr=False`.

    attrs compiles these methods for each class, which takes 0.2 ms and 8 KB. There are eighty such classes,
    and they are all imported before the daemon can answer the first request. As with attrs, fields that are
    declared with `eq=False` are not compared, and those with `repr=False` are not printed.
    """

    __slots__ = ()

    def _fields(self) -> tuple[attrs.Attribute[object], ...]:
        return attrs.fields(type(self))  # type: ignore[arg-type,no-any-return]  # each subclass is one of attrs

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = (field.name for field in self._fields() if field.eq)
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, field.name) for field in self._fields() if field.eq)))

    def __repr__(self) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in self._fields() if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
