"""Rules compiled for many decisions: what depends on the item and what depends on the client is compared
once, and each decision combines the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mcpd.model.policy import (
    ClientFacts,
    GenerousPatterns,
    ItemKind,
    PolicyRule,
    UsedItem,
    Verdict,
    first_decision,
    folded_forms,
    item_forms,
)


@attrs.define(eq=False)
class CompiledRules:
    """A rule set. Compared by identity. A set of rules is an integer with one bit for each of them."""

    rules: Sequence[PolicyRule]
    _verdicts: dict[int, Verdict] = attrs.field(factory=dict)
    """By the set of rules that match; at most `_MAX_VERDICTS`."""

    def about_item(self, item: UsedItem) -> int:
        """Return the rules whose conditions about the item are met: microseconds for each rule."""
        return _bits(not rule.item_mismatch(item) for rule in self.rules)

    def unlisted(self, example: UsedItem) -> UnlistedItems:
        """Prepare the comparison of items that differ from `example` in their names only."""
        return UnlistedItems.make(self.rules, example)

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


@attrs.frozen(eq=False)
class UnlistedItems:
    """Compares names that are in no list of a server: nothing else is known of them, so that all other
    conditions have been compared before. Most such names match no pattern, which one comparison tells."""

    kind: ItemKind
    server: str
    _always: int
    """The rules that do not ask for the name, and whose other conditions are met."""
    _named: Sequence[tuple[int, PolicyRule, GenerousPatterns]]
    """The other rules whose other conditions are met, with their patterns."""
    _any: GenerousPatterns
    """The patterns of all these rules."""

    @classmethod
    def make(cls, rules: Sequence[PolicyRule], example: UsedItem) -> UnlistedItems:
        always, named, patterns = 0, [], dict[str, None]()
        for number, rule in enumerate(rules):
            if rule.nameless_mismatch(example):
                continue
            if (own := rule.patterns(example.kind)) is None:
                always |= 1 << number
            else:
                named.append((1 << number, rule, GenerousPatterns(own)))
                patterns.update(dict.fromkeys(own))
        return cls(example.kind, example.server, always, named, GenerousPatterns(tuple(patterns)))

    def about_name(self, name: str) -> int:
        """Return the rules whose conditions are met by an item with this name."""
        if not self._named:
            return self._always
        forms = item_forms(self.kind, name, self.server)
        folded = folded_forms(forms, uri=self.kind == "resource")
        if not self._any.match(forms, folded):
            return self._always
        # A rule that allows accepts less than its patterns do if they are matched generously.
        return self._always | sum(
            bit
            for bit, rule, patterns in self._named
            if patterns.match(forms, folded) and not rule.name_mismatch(self.kind, forms)
        )


def _bits(met: Iterator[bool]) -> int:
    return sum(1 << number for number, each in enumerate(met) if each)


_MAX_VERDICTS = 1000
