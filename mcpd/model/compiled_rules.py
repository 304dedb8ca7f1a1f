"""Rules compiled for many decisions: what depends on the item and what depends on the client is compared
once, and each decision combines the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mcpd.model.policy import ClientFacts, PolicyRule, UsedItem, Verdict, first_decision


@attrs.define(eq=False)
class CompiledRules:
    """A rule set. Compared by identity. A set of rules is an integer with one bit for each of them."""

    rules: Sequence[PolicyRule]
    _verdicts: dict[int, Verdict] = attrs.field(factory=dict)
    """By the set of rules that match; at most `_MAX_VERDICTS`."""

    def about_item(self, item: UsedItem) -> int:
        """Return the rules whose conditions about the item are met: microseconds for each rule."""
        return _bits(not rule.item_mismatch(item) for rule in self.rules)

    def about_client(self, client: ClientFacts) -> int:
        """Return the rules whose conditions about the client are met: microseconds for each rule."""
        return _bits(not rule.client_mismatch(client) for rule in self.rules)

    def verdict(self, matching: int) -> Verdict:
        """Return the decision if exactly these rules match."""
        found = self._verdicts.get(matching)
        if found is None:
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            found = self._verdicts[matching] = first_decision(self._members(matching))
        return found

    def _members(self, matching: int) -> Iterator[PolicyRule]:
        while matching:
            lowest = matching & -matching
            yield self.rules[lowest.bit_length() - 1]
            matching ^= lowest


def _bits(met: Iterator[bool]) -> int:
    return sum(1 << number for number, each in enumerate(met) if each)


_MAX_VERDICTS = 1000
