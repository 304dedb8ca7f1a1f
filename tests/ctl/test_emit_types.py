"""`mcpctl emit-types`: whatever servers declare, the files are valid, and their functions call the tools."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mypy import api as mypy

from ctl.emit.python import Python
from ctl.emit.types import Language
from ctl.emit.typescript import TypeScript
from mcpd.model.tool_names import ClientStyle, public_names
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND
from tests.e2e.web import PORT, http_endpoint
from tests.example_server import TEST_SERVER
from tests.interop.clients.drivers import node
from tests.interop.peers import ROOT

__all__ = ["start"]

Json = dict[str, Any]
NASTY = [
    *(
        "",
        "a",
        "a-b",
        "a_b",
        "A",
        "1",
        "class",
        "self",
        "int",
        "str",
        "dict",
        "mcp",
        "Any",
        "__x",
        "日本",
        "\ud800",
    ),
    *(
        '"""',
        '"',
        "'",
        "\\",
        "*/",
        "//",
        "\n",
        "\r",
        "\0",
        "\u202e",
        "\u2028",
        "${x}",
        "`",
        "{",
        "}",
        "$ref",
        "args",
    ),
]
HOSTILE: list[Json] = [
    {"properties": {name: {"description": name} for name in NASTY}, "required": NASTY},
    {"properties": {"int": {"type": "string"}, "x": {"type": "integer"}}},
    {"properties": {"x": {"enum": [*NASTY, None, True, 1, -1]}, "y": {"const": "*/"}}},
    {
        "properties": {
            "x": {"enum": [*range(100_000)]},
            "y": {"enum": [1, 2**70]},
            "z": {"enum": []},
            "f": {"enum": [1.5, {}, []]},
        }
    },
    {"properties": {"x": {"$ref": "#"}, "y": {"type": "array", "items": {"$ref": "#"}}}},
    {"properties": {"x": {"$ref": "file:///etc/passwd"}, "y": {"$ref": "#/$defs/~1/0/-1"}, "z": {"$ref": 3}}},
    {"$ref": "#"},
    {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, True]}}},
    {
        "properties": {"x": {"$ref": "#/$defs/0"}},
        "$defs": {
            str(n): {
                "anyOf": [
                    {"type": "array", "items": {"$ref": f"#/$defs/{n + 1}"}},
                    {"additionalProperties": {"$ref": f"#/$defs/{n + 1}"}, "type": "object"},
                ]
            }
            for n in range(100)
        },
    },
    {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {}}}], "$defs": {"a": {"properties": {"x": {}}}}},
    {"properties": {str(n): {"properties": {"x": {}}} for n in range(6_000)}},
    {"properties": [], "required": {}, "type": ["string", 3, None], "anyOf": {}, "allOf": {}, "enum": 1},
]
TOOLS: list[Json] = [
    *(
        {"server": "s", "name": f"t{n}", "inputSchema": each, "outputSchema": each}
        for n, each in enumerate(HOSTILE)
    ),
    *({"server": "s", "name": name, "description": f"{name}{name}{name} {name}"} for name in NASTY),
    {"server": "call", "name": "tool", "outputSchema": {"properties": {"x": {"type": "null"}}}},
    {"server": "tool", "name": "", "outputSchema": {"properties": {"x": {"type": "null"}}}},
    {"server": "s", "name": "wrong", "inputSchema": [], "outputSchema": 7, "description": {}, "title": []},
]


def emitted(language: Language, tools: list[Json]) -> str:
    by_pair = {(each["server"], each["name"]): each for each in tools}
    for name, pair in public_names(ClientStyle.UNDERSCORES, by_pair).items():
        language.add_tool(by_pair[pair], name)
    return language.file()


def real_tools() -> list[Json]:
    """Return the lists of 37 servers that others have written."""
    data = json.loads(gzip.decompress((ROOT / "benchmarks/context_data/tools.json.gz").read_bytes()))
    return [{**tool, "server": each["name"]} for each in data["servers"] for tool in each["tools"]]


texts = st.sampled_from(NASTY) | st.text(max_size=5)
names = st.sampled_from(
    ["type", "properties", "items", "anyOf", "allOf", "enum", "const", "$ref", "required"]
)
schemas = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from(["object", "array", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | texts, inner, max_size=4)
        | st.fixed_dictionaries({"properties": st.dictionaries(texts, inner, max_size=4)})
    ),
    max_leaves=12,
)


@given(schemas, schemas, texts, texts)
def test_file_of_any_tool_can_be_imported(schema: Any, output: Any, name: str, text: str) -> None:
    tool = {"server": "s", "name": name, "description": text, "inputSchema": schema, "outputSchema": output}
    source = emitted(Python(is_sync=False), [tool, tool | {"server": f"s{name}"}])
    exec(compile(source.encode(), "emitted.py", "exec"), {"__name__": "emitted"})
    emitted(TypeScript(), [tool]).encode()


SAMPLE = """
from mcpd.client.sync import connect

with connect() as mcp:
    for tool in mcp.list_tools():
        name: str = tool.name
        wrong: int = tool.execute({"a": 1}).output  # type: ignore[assignment]
        tool.nosuch  # type: ignore[attr-defined]
    mcp.nosuch  # type: ignore[attr-defined]
    pid: int = mcp.status()["daemon"]["pid"]
    mcp.status()["daemon"]["pid"].nosuch  # type: ignore[attr-defined]
"""


@pytest.mark.slow
def test_python_passes_the_checker(tmp_path: Path) -> None:
    """The tools of 37 real servers and hostile ones, with mypy --strict. It also knows the attributes of the
    library without `await`: an ignored error that it does not find is an error."""
    for name, language in (("agent.py", Python(is_sync=False)), ("script.py", Python(is_sync=True))):
        (tmp_path / name).write_text(emitted(language, [*TOOLS, *real_tools()]))
    (tmp_path / "sample.py").write_text(SAMPLE)
    cache = str(tmp_path / "cache")
    found, _, status = mypy.run(["--strict", "--cache-dir", cache, *map(str, tmp_path.glob("*.py"))])
    assert status == 0, found[-4000:]


def compiled(directory: Path) -> subprocess.CompletedProcess[str]:
    """Let the TypeScript compiler check the files there, with the official SDK."""
    compiler = ROOT / "tests/interop/clients/node_modules/.bin/tsc"
    if not compiler.exists():
        pytest.skip("the TypeScript compiler is not there: `make interop` installs it")
    (directory / "node_modules").symlink_to(compiler.parent.parent)
    (directory / "package.json").write_text('{"type": "module"}')
    options = ["--noEmit", "--strict", "--skipLibCheck", "--allowImportingTsExtensions"]
    options += ["--module", "nodenext", "--target", "es2022"]
    files = [*directory.glob("*.ts")]
    command = [node(), str(compiler.resolve()), *options, *map(str, files)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_typescript_passes_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "tools.ts").write_text(emitted(TypeScript(), [*TOOLS, *real_tools()]))
    done = compiled(tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]


PROGRAM = """
import asyncio
import tools, tools_sync
from mcpd.client import connect
from mcpd.client import sync

async def main() -> None:
    async with connect() as mcp:
        now = await tools.time__convert_time(
            mcp, {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, timeout=60
        )
        print(now["target"]["timezone"], (await tools.test__add(mcp, {"a": 1, "b": 2})).output)

asyncio.run(main())
with sync.connect() as mcp:
    print(tools_sync.test__echo(mcp, {"text": "hi"}).output)
"""


TIME = {
    "command": str(Path(sys.executable).with_name("mcp-server-time")),
    "args": ["--local-timezone", "UTC"],
}


def test_program_of_the_manual_runs(start: Any, tmp_path: Path) -> None:
    """The page for TypeScript: the compiler accepts its program, and Node runs it."""
    program = (ROOT / "docs/how-to/typescript-client.md").read_text().split("```typescript\n")[1]
    daemon = start({"time": TIME}, *PORT)
    daemon.wait_connected("time")
    endpoint = http_endpoint(daemon)
    token = tmp_path / ".local/state/mcpd/http-token"
    token.parent.mkdir(parents=True)
    token.write_text(endpoint.token)
    (tmp_path / "tools.ts").write_text(daemon.mcpctl("emit-types", "--typescript", "time").stdout)
    program = program.split("```")[0].replace("http://127.0.0.1:8931", endpoint.base)
    (tmp_path / "agent.ts").write_text(program)
    (tmp_path / "node.d.ts").write_text('declare module "node:fs";\ndeclare module "node:os";\n')
    done = compiled(tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    version = subprocess.run([node(), "-p", "process.features.typescript"], capture_output=True, text=True)
    if version.stdout.strip() != "strip":
        pytest.skip("this node does not run TypeScript: `make interop` installs one that does")
    environ = {**daemon.environ, "HOME": str(tmp_path)}
    run = subprocess.run(
        [node(), "agent.ts"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=BOUND
    )
    assert run.stdout == "UTC\n", run.stderr


def test_functions_call_the_tools_of_real_servers(start: Any, tmp_path: Path) -> None:
    test = {"command": sys.executable, "args": [TEST_SERVER]}
    profile = {"servers": ["test"], "excludeTools": ["add"]}
    daemon = start({"time": TIME, "test": test}, settings={"profiles": {"small": profile}})
    daemon.wait_connected("time", "test")
    options = ("emit-types", "--python")
    (tmp_path / "tools.py").write_text(daemon.mcpctl(*options).stdout)
    selected = daemon.mcpctl(*options, "--sync", "--profile", "small").stdout
    (tmp_path / "tools_sync.py").write_text(selected)
    assert "time__convert" not in selected
    assert "test__add" not in selected
    environ = {**daemon.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.split() == ["Asia/Tokyo", "3", "hi"], run.stderr
    assert daemon.mcpctl("emit-types").returncode == 2
    assert daemon.mcpctl("emit-types", "--python", "nosuch").returncode == 5
