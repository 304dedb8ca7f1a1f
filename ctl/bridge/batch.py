"""Arrays of messages, which revision 2025-03-26 alone allows: taken apart, and their answers put together."""

from __future__ import annotations


class ResponseBatches:
    """Which requests came together. Nobody else answers them in one array."""

    def __init__(self) -> None:
        self._batch_of: dict[bytes, _OpenBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._batch_of)

    def open_batch(self, keys: list[bytes]) -> None:
        """These requests came in one array."""
        together = _OpenBatch(set(keys))
        for key in keys:
            self._batch_of[key] = together

    def add_response(self, key: bytes, line: bytes) -> bytes | None:
        """The line to send now that `key` is answered: itself, the whole array, or none yet."""
        together = self._batch_of.pop(key, None)
        if together is None:
            return line
        together.responses.append(line.rstrip())
        return self._finish_request(together, key)

    def remove_request(self, key: bytes) -> bytes | None:
        """Nobody waits for `key` any more; the array may be complete without it."""
        together = self._batch_of.pop(key, None)
        return None if together is None else self._finish_request(together, key)

    @staticmethod
    def _finish_request(together: _OpenBatch, key: bytes) -> bytes | None:
        together.waiting.discard(key)
        if together.waiting or not together.responses:
            return None
        return b"[" + b",".join(together.responses) + b"]\n"


class _OpenBatch:
    def __init__(self, unanswered: set[bytes]) -> None:
        self.waiting = unanswered
        self.responses: list[bytes] = []
