"""Warnings about tools that a definition's `cache` names in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from ctl.main import run
from mcpd import main
from mcpd.config.learned import definition_key
from mcpd.config.loader import parse_config
from mcpd.state.state_file import StateFile
from mcpd.supervision.catalog_sync import dump_catalog
from tests.gateway.model import make_catalog

CACHE = {"search": "60s", "serch": "60s", "add": "60s"}
CONFIG = {"mcpServers": {"docs": {"command": "docs-server", "cache": CACHE}, "new": {"command": "n"}}}
CATALOG = make_catalog(
    tools=[
        {"name": "search", "annotations": {"readOnlyHint": True}},
        {"name": "add", "annotations": {"title": "Add", "readOnlyHint": False}},
    ]
)
WARNINGS = (
    "`cache` names the tool 'serch', which is not in the server's list of tools (did you mean search?)",
    "`cache` names the tool 'add', whose results are not cached, because the server does not declare that "
    "it only reads (`readOnlyHint`)",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file, whose server `docs` was connected before."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    store = StateFile(tmp_path / "state", tmp_path / "cache" / "mcpd")
    store.cache_lists(key_of_docs(file), dump_catalog(CATALOG))

    async def save() -> None:
        await store._save_lists()

    trio.run(save)
    return file


def key_of_docs(file: Path) -> str:
    return definition_key(parse_config(file, file.read_bytes(), {}).specs["docs"])


def test_mcpd_and_mcpctl_warn_when_they_validate_the_file(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert main._main(["--config", str(file), "--validate-config"], environ) == 0
    expected = [f"warning: docs: {each}" for each in WARNINGS]
    assert capsys.readouterr().err.splitlines() == expected
    assert run(["config", "validate", str(file)], environ) == 0
    assert capsys.readouterr().err.splitlines() == expected
    assert run(["config", "validate", str(file), "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [f"docs: {each}" for each in WARNINGS]
