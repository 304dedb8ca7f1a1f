"""Which route a call takes: that of the tool that it names, however the name is spelled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mcpd.calls.routes import DIRECT, RouteTable
from mcpd.model.server_spec import Timeouts
from tests.gateway.model import make_core, make_server


def routes_of(**spec: Any) -> Any:
    """Return a function from params to the route, and the server."""
    server = make_server(**spec)
    return partial(RouteTable(make_core(server), ()).find, DIRECT, server, "tools/call", ""), server


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"quick","name":"slow"}',
        b'{"name":"quick","n\\u0061me":"slow"}',
        b'{"name":"quick","arguments":{"name":"quick"},"name":"slow"}',
        b'{"name":"slow"}',
        b'{"name" : "slow"}',
        b'{"arguments":{},"name":"slow"}',
        b'{"name":"\\u0073low"}',
    ],
)
def test_nobody_evades_what_is_set_for_a_tool(params: bytes) -> None:
    """Servers take the last of several members with one name, as most JSON readers do."""
    find, _ = routes_of(timeouts=Timeouts(tools={"slow": 77.0}))
    for name in b"quick", b"slow":
        find(b'{"name":"%b"}' % name)
    assert find(params).idle_timeout == 77.0
