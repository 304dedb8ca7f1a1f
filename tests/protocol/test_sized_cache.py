"""A cache that is bounded by bytes."""

from __future__ import annotations

from mcpd.protocol.revision_translation import _ENTRY_OVERHEAD, SizedCache


class Double:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, data: bytes) -> bytes:
        self.seen.append(data)
        return data + data


def test_result_is_computed_once_for_each_kind() -> None:
    cache, double = SizedCache(100_000), Double()
    for kind in ("a", "b", "a"):
        assert cache.get(kind, b"x", double) == b"xx"
    assert double.seen == [b"x", b"x"]


def test_what_was_used_longest_ago_makes_room() -> None:
    cache, double = SizedCache(40 * (_ENTRY_OVERHEAD + 3)), Double()
    for n in range(40):
        cache.get("", b"%d" % (n % 10), double)
    assert len(double.seen) == 10
    for n in range(100, 1000):
        cache.get("", b"0", double)
        cache.get("", b"%d" % n, double)
        assert cache.size <= cache.max_bytes
    assert double.seen.count(b"0") == 1
    cache.get("", b"1", double)
    assert double.seen.count(b"1") == 2


def test_large_results_are_not_kept() -> None:
    cache, double = SizedCache(16_000), Double()
    assert cache.get("", b"x" * 1000, double) == b"x" * 2000
    assert not len(cache)
    assert cache.size == 0
