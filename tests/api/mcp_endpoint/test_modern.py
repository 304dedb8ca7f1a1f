"""What headers repeat has to be what the body says, argument for argument."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec import Raw

from mcpd.api.http.parser import Head
from mcpd.api.mcp import modern
from mcpd.calls.routes import Target
from mcpd.gateway.views import View
from mcpd.model.errors import UnknownTool
from mcpd.supervision.catalog import Catalog, Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import Message

TOOL = (
    b'{"name":"find","inputSchema":{"type":"object","properties":{'
    b'"where":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":'
    b'{"n":{"type":"integer","x-mcp-header":"Count"}}},"sure":{"type":"boolean","x-mcp-header":"Sure"}}}}'
)


class Server:
    """As far as it is looked at here."""

    def __init__(self) -> None:
        plain = Item("plain", b'{"name":"plain","inputSchema":{"type":"object"}}')
        self.catalog: Catalog | None = Catalog(tools=(Item("find", TOOL), plain))


class Several:
    """A view in which the server's tools have other names."""

    single = None

    def __init__(self) -> None:
        self.server = Server()

    def servers(self) -> list[Server]:
        return [self.server]

    def route(self, method: str, params: bytes) -> Target:
        assert type(params) is bytes, "a real view needs more of it than Raw has"
        name = str(wire.value(wire.members(params)["name"]))
        if not name.startswith("one__"):
            raise UnknownTool("no such tool")
        server = cast("ManagedServer", self.server)
        return Target(server=server, params=params, tool=name.removeprefix("one__"))


class One(Several):
    @property
    def single(self) -> Server:  # type: ignore[override]
        return self.server


ALL = b'{"where":"eu","deep":{"n":5},"sure":true}'
RIGHT = {"region": "eu", "count": "5", "sure": "true"}


def check(view: object, tool: str, arguments: bytes, **headers: str) -> int:
    """The code of the refusal, 0 for none."""
    params = (
        b'{"name":"%b","arguments":%b,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        b'"io.modelcontextprotocol/clientCapabilities":{}}}' % (tool.encode(), arguments)
    )
    received = {
        b"mcp-protocol-version": b"2026-07-28",
        b"mcp-method": b"tools/call",
        b"mcp-name": tool.encode(),
        **{b"mcp-param-" + name.encode(): text.encode() for name, text in headers.items()},
    }
    head = Head("POST", "/mcp", "", received, frozenset(), True, True)
    try:
        modern.HeaderCheck(head).check(
            Message(id=Raw(b"1"), method="tools/call", params=Raw(params)), cast("View", view)
        )
    except modern.RequestMismatch as refusal:
        return refusal.code
    return 0


def test_long_name_is_refused_before_it_is_decoded() -> None:
    assert check(One(), "x" * ((1 << 20) - 2), b"{}") == 0
    assert check(One(), "x" * (1 << 20), b"{}") == -32602


@pytest.mark.parametrize(
    ("view", "tool"), [(One(), "find"), (Several(), "one__find")], ids=["one", "several"]
)
@pytest.mark.parametrize(
    ("arguments", "headers", "code"),
    [
        (ALL, RIGHT, 0),
        (ALL, {**RIGHT, "region": "=?base64?ZXU=?="}, 0),
        (ALL, {**RIGHT, "count": "05"}, 0),
        (b"{}", {}, 0),
        (b'{"where":null}', {}, 0),
        (b'{"where":""}', {"region": ""}, 0),
        (b'{"where":"eu"}', {"region": "eu", "unknown": "x"}, 0),
        (ALL, {**RIGHT, "region": "us"}, -32020),
        (ALL, {**RIGHT, "count": "6"}, -32020),
        (ALL, {**RIGHT, "count": "five"}, -32020),
        (ALL, {**RIGHT, "sure": "True"}, -32020),
        (ALL, {"region": "eu", "count": "5"}, -32020),
        (b"{}", {"region": "eu"}, -32020),
        (ALL, {**RIGHT, "region": "=?base64?%%?="}, -32020),
    ],
)
async def test_an_argument_that_is_mirrored_is_compared(
    view: object, tool: str, arguments: bytes, headers: dict[str, str], code: int
) -> None:
    """2026-07-28: missing, there without an argument, undecodable or different are all a mismatch."""
    assert check(view, tool, arguments, **headers) == code


@pytest.mark.parametrize(
    ("view", "tool"), [(One(), "plain"), (One(), "nope"), (Several(), "one__plain"), (Several(), "nope")]
)
async def test_tool_without_parameter_headers_is_not_checked(view: object, tool: str) -> None:
    """And an unknown one is the gateway's to refuse."""
    assert check(view, tool, b'{"where":"eu"}', region="us") == 0


async def test_changed_tool_list_is_read_again() -> None:
    view = One()
    assert check(view, "find", ALL) == -32020
    view.server.catalog = Catalog(tools=(Item("find", b'{"name":"find","inputSchema":{}}'),))
    assert check(view, "find", ALL) == 0
    view.server.catalog = None
    assert check(view, "find", ALL) == 0


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"text":"\\"error\\": {\\"code\\": -32601}"}}', 200),
        (b'{"jsonrpc":"2.0","id":1,"result":{"error":{"code":-32601}}}', 200),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}', 404),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32021,"message":"no"}}', 400),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no"}}', 200),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"odd"}}', 200),
    ],
)
def test_server_error_has_the_http_status_of_its_code(frame: bytes, status: int) -> None:
    """2026-07-28 ties the status to the code, whether mcpd or the server does not know the method."""

    class Exchange:
        is_streaming = False
        responded: tuple[int, bytes] | None = None

        def respond(self, status: int, body: bytes) -> None:
            self.responded = (status, body)

    exchange = Exchange()
    modern.ModernReply(exchange, None, b"1").finish(frame)  # type: ignore[arg-type]  # all that it needs
    assert exchange.responded == (status, frame)
