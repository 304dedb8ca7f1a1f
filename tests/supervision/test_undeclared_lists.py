"""A server that answers `tools/list` has tools, whether it declares them or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from mcpd.model.status import ServerState
from tests.supervision.peer import Json, Life, World, living


def tool_names(world: World) -> list[str]:
    catalog = world.server.catalog
    assert catalog is not None
    return [tool.name for tool in catalog.tools]


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("capabilities", [{}, {"logging": {}}, {"resources": {}}])
async def test_undeclared_tools_are_found(
    autojump_clock: MockClock, tmp_path: Path, modern: bool, capabilities: Json
) -> None:
    """In both eras. Lists that it does not answer stay undeclared."""
    life = Life(modern=modern, capabilities=capabilities)
    async with living(tmp_path, life) as world:
        await world.wait_connected()
        assert tool_names(world) == ["echo"]
        upstream = world.server.upstream
        assert upstream is not None
        assert upstream.has("tools")
        assert not upstream.has("prompts")


async def test_declared_lists_are_not_asked_for_twice(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Nor are resources and prompts, if tools are declared."""
    async with living(tmp_path, Life(), era="legacy") as world:
        await world.wait_connected()
        assert world.script.asked.count("tools/list") == 1
        assert not {"resources/list", "prompts/list"} & {*world.script.asked}


async def test_server_that_ignores_the_question_connects(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It has no tools then."""
    life = Life(capabilities={"resources": {}}, drops=("tools/list",))
    async with living(tmp_path, life, era="legacy") as world:
        await world.wait_connected()
        assert tool_names(world) == []


async def test_server_that_exits_when_asked_is_not_asked_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The next connection is made without the question."""
    lives = Life(capabilities={"prompts": {}}, exits_at="tools/list"), Life(capabilities={"prompts": {}})
    async with living(tmp_path, *lives, era="legacy") as world:
        await world.wait_connected()
        assert world.script.asked.count("tools/list") == 1
        assert world.server.state is ServerState.CONNECTED
        assert tool_names(world) == []
