"""What a prompt takes is its server's word, and servers say anything."""

from __future__ import annotations

import pytest

from mcpd.gateway.control_call import required_arguments
from mcpd.supervision.catalog import Item

DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (b'[{"name":"a","required":true},{"name":"b"},{"name":"c","required":false}]', ["a"]),
        (b'[{"required":true},{"name":"a","required":true}]', ["a"]),
        (b'[{"name":["a"],"required":true}]', []),
        (b'[{"name":null,"required":true},7,null]', []),
        (b'[{"name":"a","required":"yes"}]', []),
        (b'{"a":true}', []),
        (b"null", []),
        (DEEP, []),
    ],
)
def test_only_what_is_said_to_be_required_is_and_nonsense_costs_nobody_anything(
    arguments: bytes, names: list[str]
) -> None:
    """What cannot be read is for the server to ask for: an exception here ended the client's connection."""
    assert required_arguments(Item("greet", b'{"name":"greet","arguments":%b}' % arguments)) == names
