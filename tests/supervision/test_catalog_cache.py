"""Lists from an unreliable server: usable entries are kept, and every list is bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

from mcpd.model.errors import LinkLost, UpstreamRefused
from mcpd.model.policy import uncached_tools
from mcpd.model.server_spec import StdioSpec
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.catalog import MAX_ENTRIES, Catalog, Item, describe_changes, summarize
from mcpd.supervision.catalog_fetch import MAX_LIST_BYTES, MAX_PAGES, fetch_catalog
from mcpd.supervision.catalog_sync import dump_catalog, load_catalog

SPEC = StdioSpec(name="it", command="x")
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}
Answer = Callable[[str | None], Any]


class FakeUpstream:
    """Answers a list request by calling `answers[method]` with the cursor."""

    admit_tool = None
    sends_cache_hints = True

    def __init__(self, **answers: Answer) -> None:
        self.answers = {name.replace("_", "/"): answer for name, answer in answers.items()}
        self.asked: list[tuple[str, str | None]] = []

    def has(self, feature: str) -> bool:
        return any(method.startswith(feature) for method in self.answers)

    async def request(self, method: str, params: Mapping[str, object]) -> Raw:
        await trio.lowlevel.checkpoint()
        cursor = cast("str | None", json.loads(bytes(cast("Raw", params.get("cursor", b"null")))))
        self.asked.append((method, cursor))
        answer = self.answers[method](cursor)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await trio.sleep(answer)
        return Raw(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


async def fetched(upstream: FakeUpstream, spec: StdioSpec = SPEC, **more: Any) -> Catalog:
    return await fetch_catalog(cast("Upstream", upstream), spec, **more)


def names(catalog: Catalog) -> list[str]:
    return [tool.name for tool in catalog.tools]


async def test_all_pages_are_fetched_in_order_and_entries_keep_their_bytes() -> None:
    """An empty string is a valid cursor."""
    raw = b'{"inputSchema" :{ "type":"object"}, "name":"\\u0065cho","n":1E+400}'
    pages = {
        None: b'{"tools":[%b],"nextCursor":""}' % raw,
        "": b'{"tools":[{"name":"two","inputSchema":{}}],"nextCursor":"p3"}',
        "p3": b'{"tools":[{"name":"three","inputSchema":{}}]}',
    }
    upstream = FakeUpstream(tools_list=lambda cursor: pages[cursor])
    catalog = await fetched(upstream)
    assert names(catalog) == ["echo", "two", "three"]
    assert catalog.tools[0].raw == raw
    assert [cursor for _, cursor in upstream.asked] == [None, "", "p3"]
    assert catalog.warnings == ()


async def test_repeated_cursor_ends_the_list() -> None:
    """The entries fetched so far are kept, and a warning is added."""
    upstream = FakeUpstream(tools_list=lambda cursor: {"tools": [TOOL], "nextCursor": "again"})
    catalog = await fetched(upstream)
    assert names(catalog) == ["echo"]
    assert len(upstream.asked) == 2
    assert any("repeated a cursor" in warning for warning in catalog.warnings)


async def test_a_list_has_a_thousand_pages_at_most() -> None:
    """The number of pages is limited even if every cursor is new."""
    fresh = iter(range(10_000))
    upstream = FakeUpstream(tools_list=lambda cursor: {"tools": [], "nextCursor": str(next(fresh))})
    catalog = await fetched(upstream)
    assert len(upstream.asked) == MAX_PAGES
    assert "more than 1000 pages" in catalog.warnings[0]


def tools(first: int, count: int) -> bytes:
    entries = (b'{"name":"t%d","inputSchema":{}}' % number for number in range(first, first + count))
    return b",".join(entries)


@pytest.mark.parametrize("per_page", [300_000, 3_000])
async def test_a_list_has_ten_thousand_entries_at_most(per_page: int) -> None:
    """The first ones are offered, and a warning names the limit. Other tasks run meanwhile."""
    fresh = iter(range(1, 1000))

    def page(cursor: str | None) -> bytes:
        number = int(cursor or 0)
        return b'{"nextCursor":"%d","tools":[%b]}' % (next(fresh), tools(number * per_page, per_page))

    upstream = FakeUpstream(tools_list=page)
    catalog = await fetched(upstream)
    assert names(catalog) == [f"t{number}" for number in range(MAX_ENTRIES)]
    assert catalog.warnings == ("tools/list has more than 10000 entries; the others were left out",)
    assert len(upstream.asked) <= 4


async def test_a_list_has_sixteen_mebibytes_at_most() -> None:
    """The page that exceeds the limit is not decoded."""
    blank = b" " * (MAX_LIST_BYTES // 2)
    pages: dict[str | None, bytes] = {None: b'{"nextCursor":"2","tools":[%b]%b}' % (tools(0, 5), blank)}
    pages["2"] = b'{"nextCursor":"3","tools":[%b]%b}' % (tools(5, 5), blank)
    catalog = await fetched(FakeUpstream(tools_list=lambda cursor: pages[cursor]))
    assert names(catalog) == [f"t{number}" for number in range(5)]
    assert catalog.warnings == ("tools/list is longer than 16777216 bytes; stopped after 5 entries",)


async def test_unusable_entries_are_left_out_and_counted() -> None:
    """The remaining entries are offered."""
    bad: list[object] = [
        {"name": "x", "inputSchema": "object"},
        TOOL,
        None,
        3,
        [],
        {},
        {"name": 5},
        {"name": ""},
    ]
    catalog = await fetched(FakeUpstream(tools_list=lambda cursor: {"tools": [TOOL, *bad]}))
    assert names(catalog) == ["echo"]
    assert catalog.dropped_tools == len(bad)
    assert catalog.warnings == ("tools/list has 8 unusable or duplicate entries, which were left out",)
    assert summarize(catalog) == f"1 tool; {catalog.warnings[0]}"


NO_METHOD = UpstreamRefused("it: no such method", server="it", upstream_code=-32601)
BROKEN = UpstreamRefused("it: database is gone", server="it", upstream_code=-32603)


@pytest.mark.parametrize(
    ("answer", "warned"),
    [
        (NO_METHOD, False),  # the usual response for an unsupported optional list
        (BROKEN, True),
        (b"[]", True),
        (b'{"tools":{}}', True),
        (b'{"tools":[],"nextCursor":5}', True),
        (b"{}", False),
        (b'{"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}", True),
    ],
)
async def test_failed_list_is_empty_and_does_not_fail_the_server(answer: object, warned: bool) -> None:
    """It adds at most one warning, and the other lists are still fetched."""
    upstream = FakeUpstream(
        tools_list=lambda cursor: answer, prompts_list=lambda cursor: {"prompts": [{"name": "hi"}]}
    )
    catalog = await fetched(upstream)
    assert catalog.tools == ()
    assert [prompt.name for prompt in catalog.prompts] == ["hi"]
    assert len(catalog.warnings) == warned


async def test_lost_connection_is_not_an_empty_list() -> None:
    """The error is raised to the caller."""
    with pytest.raises(LinkLost):
        await fetched(FakeUpstream(tools_list=lambda cursor: LinkLost("it: gone", server="it")))


async def test_each_list_has_its_own_timeout(autojump_clock: MockClock) -> None:
    """The timeout covers all pages of the list."""
    began = trio.current_time()
    slow = FakeUpstream(tools_list=lambda cursor: 4.0)

    async def page(method: str, params: Mapping[str, object]) -> Raw:
        await trio.sleep(4)
        slow.asked.append((method, None))
        return Raw(b'{"tools":[],"nextCursor":"%d"}' % len(slow.asked))

    slow.request = page  # type: ignore[method-assign]
    with pytest.raises(trio.TooSlowError, match="tools/list took longer than 15 s"):
        await fetched(slow)
    assert trio.current_time() - began == pytest.approx(15)


async def test_only_the_lists_that_changed_are_fetched_again() -> None:
    """The other lists are unchanged."""
    old = Catalog(prompts=(Item("hi", b'{"name":"hi"}'),), dropped_tools=2)
    upstream = FakeUpstream(
        tools_list=lambda cursor: {"tools": [TOOL]}, prompts_list=lambda cursor: {"prompts": []}
    )
    catalog = await fetched(upstream, features=["tools"], old=old)
    assert upstream.asked == [("tools/list", None)]
    assert catalog.prompts == old.prompts
    assert describe_changes(old, catalog) == [("tools", "+1 -0 ~0: +echo")]


def test_members_in_another_order_are_no_change() -> None:
    """As in the two eras of the Python SDK."""
    tools = [
        {"name": "echo", "inputSchema": {"type": "object", "title": "x"}},
        {"inputSchema": {"title": "x", "type": "object"}, "name": "echo"},
        {"inputSchema": {"title": "y", "type": "object"}, "name": "echo"},
    ]
    first, second, third = (Catalog(tools=(Item("echo", json.dumps(each).encode()),)) for each in tools)
    assert describe_changes(first, second) == []
    assert describe_changes(second, third) == [("tools", "+0 -0 ~1: ~echo")]


async def test_filters_of_the_definition_hide_tools() -> None:
    """`include` applies before `exclude`; both are file name patterns."""
    tools: list[object] = [
        {"name": name, "inputSchema": {}} for name in ("read_file", "read_dir", "write_file")
    ]
    spec = StdioSpec(name="it", command="x", include_tools=("read_*",), exclude_tools=("*_dir",))
    catalog = await fetched(FakeUpstream(tools_list=lambda cursor: {"tools": tools}), spec)
    assert names(catalog) == ["read_file"]


def test_cached_catalog_round_trips_and_damaged_cache_is_dropped() -> None:
    """A damaged cache entry is dropped, not repaired."""
    catalog = Catalog(tools=(Item("echo", b'{"name":"echo","inputSchema":{},"n":1E+400}'),), fetched_at="now")
    dumped = dump_catalog(catalog)
    spec = StdioSpec(name="it", command="x")
    assert load_catalog(dumped, spec) == catalog
    for broken in (b"", b"[]", b"{}", dumped[:-1], dumped[1:], b"[" * 100_000, b"\xff" * 100):
        assert load_catalog(broken, spec) is None


def test_tools_in_cache_that_cannot_be_cached_are_named() -> None:
    tools = {"search": b'{"annotations": {"readOnlyHint": true}}', "add": b'{"annotations": {}}'}
    spec = attrs.evolve(SPEC, cache={"search": 60.0, "serch": 60.0, "add": 60.0})
    misspelled, writing = uncached_tools(spec, tools.get, tools)
    assert "'serch', which is not in the server's list" in misspelled
    assert "search" in misspelled.partition("did you mean")[2]
    assert "'add'" in writing
