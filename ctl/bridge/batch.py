"""Arrays of messages, which revision 2025-03-26 alone allows: taken apart, and their answers put together."""

from __future__ import annotations


class Batches:
    """Which requests came together. Nobody else answers them in one array."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Batch] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, keys: list[bytes]) -> None:
        """These requests came in one array."""
        together = _Batch(set(keys))
        for key in keys:
            self._of[key] = together

    def answered(self, key: bytes, line: bytes) -> bytes | None:
        """The line to send now that `key` is answered: itself, the whole array, or none yet."""
        together = self._of.pop(key, None)
        if together is None:
            return line
        together.answers.append(line.rstrip())
        return self._rest(together, key)

    def cancelled(self, key: bytes) -> bytes | None:
        """Nobody waits for `key` any more; the array may be complete without it."""
        together = self._of.pop(key, None)
        return None if together is None else self._rest(together, key)

    @staticmethod
    def _rest(together: _Batch, key: bytes) -> bytes | None:
        together.waiting.discard(key)
        if together.waiting or not together.answers:
            return None
        return b"[" + b",".join(together.answers) + b"]\n"


class _Batch:
    def __init__(self, waiting: set[bytes]) -> None:
        self.waiting = waiting
        self.answers: list[bytes] = []
