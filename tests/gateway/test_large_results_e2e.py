"""Long results of real servers: what each client gets, and how the rest is read."""

from __future__ import annotations

import base64
import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Daemon, Json, Refused, wait_until
from tests.gateway.mcp_client import LEGACY, MODERN, VERSIONS, McpClient

__all__ = ["start"]

ROOT = Path(__file__).parents[2]
LINE = "{number}: the quick brown fox jumps over the lazy dög\n"
TEXT = "".join(LINE.format(number=number) for number in range(6000))
"""318,000 characters."""
LEAST = 10_000
"""The lowest `resultLimit`."""


@pytest.fixture
def filesystem(tmp_path: Path) -> Json:
    """The reference server of npm, whose `read_text_file` declares an outputSchema."""
    program = shutil.which("mcp-server-filesystem", path=str(ROOT / ".npm/node_modules/.bin"))
    if program is None:
        pytest.skip("mcp-server-filesystem is not there: `make npm` installs it")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/long.txt").write_text(TEXT)
    return {"command": program, "args": [str(tmp_path / "files")], "share": "all"}


def read(client: McpClient, path: Path, tool: str = "read_text_file") -> Json:
    return client.request("tools/call", name=tool, arguments={"path": str(path)})


def resource(client: McpClient, uri: str) -> str:
    return str(client.request("resources/read", uri=uri)["contents"][0]["text"])


def link(result: Json) -> str:
    """Return the URI of the whole result, which old revisions only have in the text."""
    found = re.search(r"mcpd://results/\w+", result["content"][0]["text"])
    assert found is not None
    return found[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_long_text_is_shortened_and_recovered(
    start: Any, filesystem: Json, tmp_path: Path, version: str
) -> None:
    daemon = start({"fs": {**filesystem, "resultLimit": LEAST}})
    daemon.wait_connected("fs")
    client = McpClient(daemon, version, server="fs", capabilities={})
    result = read(client, tmp_path / "files/long.txt")
    text = result["content"][0]["text"]
    assert len(json.dumps(result, ensure_ascii=False)) < 8000  # 2,000 tokens
    assert text.startswith(TEXT[:1900])
    assert text.endswith(TEXT[-900:])
    uri = link(result)
    if version >= "2025-06-18":
        assert result["content"][1]["uri"] == uri
        assert result["structuredContent"] == {"content": text}
    assert resource(client, uri) == TEXT
    assert resource(client, f"{uri}?from=1000&to=1500") == TEXT[1000:1500]
    places = resource(client, f"{uri}?search=5999:%20THE")
    start_at, end = map(int, places.partition(":")[0].split("-"))
    assert "5999: the quick" in TEXT[start_at:end]
    assert resource(client, f"{uri}?search=nowhere") == "'nowhere' is not in this result"
    path = Path(re.search(r"the file (\S+),", text)[1])  # type: ignore[index]
    assert path.read_text() == TEXT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for wrong in ("?from=x", "?lines=1", f"?search={'x' * 300}"):
        with pytest.raises(Refused):
            resource(client, uri + wrong)


def test_limit_depends_on_profile_definition_and_client(start: Any, filesystem: Json, tmp_path: Path) -> None:
    """Only clients that are known to give results to a model have one that nobody has set."""
    settings = {"profiles": {"whole": {"resultLimit": 1_000_000}, "short": {"resultLimit": LEAST}}}
    daemon: Daemon = start(
        {"fs": filesystem, "short": {**filesystem, "resultLimit": LEAST}}, settings=settings
    )
    daemon.wait_connected("fs", "short")
    cases: list[tuple[str, Json, bool]] = [
        ("fs", {"server": "fs"}, False),
        ("fs", {"server": "fs", "client": {"name": "cursor"}}, True),
        ("short", {"server": "short"}, True),
        ("short", {"profile": "whole"}, False),
        ("fs", {"profile": "short"}, True),
    ]
    for server, attach, is_short in cases:
        client = McpClient(daemon, LEGACY[0], capabilities={}, **attach)
        tool = "read_text_file" if "server" in attach else f"{server}__read_text_file"
        result = read(client, tmp_path / "files/long.txt", tool)
        assert ("mcpd left out" in result["content"][0]["text"]) == is_short, attach
        if is_short:
            assert resource(client, link(result)) == TEXT
        if is_short and "profile" in attach:
            uri = link(result)
            assert client.call("read_result", {"uri": uri, "from": 1000, "to": 1500}) == TEXT[1000:1500]
            assert client.call("read_result", {"uri": uri}) == TEXT[:8000]
            assert "5999: the quick" in client.call("read_result", {"uri": uri, "search": "5999: THE"})
            with pytest.raises(Refused, match="no such result"):
                client.call("read_result", {"uri": "mcpd://results/0"})


def test_result_belongs_to_its_client(start: Any, filesystem: Json, tmp_path: Path) -> None:
    daemon = start({"fs": {**filesystem, "resultLimit": LEAST}})
    daemon.wait_connected("fs")
    mine, other = (McpClient(daemon, MODERN, server="fs", capabilities={}) for _ in range(2))
    uri = link(read(mine, tmp_path / "files/long.txt"))
    for wrong in (uri, uri[:-1], "mcpd://results/", "mcpd://results/../x"):
        with pytest.raises(Refused, match="this client has no such result") as refused:
            resource(other, wrong)
        assert refused.value.body["code"] == -32602
    assert resource(mine, uri) == TEXT


def test_images_pass_and_short_results_are_unchanged(start: Any, filesystem: Json, tmp_path: Path) -> None:
    daemon = start({"fs": {**filesystem, "resultLimit": LEAST}})
    daemon.wait_connected("fs")
    client = McpClient(daemon, MODERN, server="fs", capabilities={})
    data = bytes(range(256)) * 100
    (tmp_path / "files/image.png").write_bytes(data)
    image = read(client, tmp_path / "files/image.png", "read_media_file")
    assert base64.b64decode(image["content"][0]["data"]) == data
    (tmp_path / "files/short.txt").write_text("x" * LEAST)
    assert read(client, tmp_path / "files/short.txt")["content"] == [{"type": "text", "text": "x" * LEAST}]


def test_result_that_cannot_be_kept_passes_whole(start: Any, filesystem: Json, tmp_path: Path) -> None:
    daemon = start({"fs": {**filesystem, "resultLimit": LEAST}})
    daemon.wait_connected("fs")
    cache = Path(daemon.environ["XDG_CACHE_HOME"]) / "mcpd"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "results").write_text("a file where the directory should be")
    client = McpClient(daemon, MODERN, server="fs", capabilities={})
    assert read(client, tmp_path / "files/long.txt")["content"][0]["text"] == TEXT
    wait_until(lambda: "a long result is passed on whole" in daemon.log, lambda: daemon.log)
