"""The plan of the house, enforced: which way imports point, and which room may say which word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LADDER = (
    ("main", "__main__", "testserver", "client"),
    ("daemon",),
    ("config_watcher",),
    ("api",),
    ("gateway",),
    ("operations",),
    ("usage_report",),
    ("active_config",),
    ("supervision",),
    ("protocol",),
    ("transports",),
    ("state_file", "event_history", "client_registry"),
    ("wire",),
    ("config",),
    ("support",),
    ("model",),
)
"""A module may import what stands further down, never up. Within a package there are no cycles."""

NO_TRIO = ("model", "wire", "config")

FORBIDDEN = {
    "initialize": ("*legacy.py", "protocol/negotiate.py", "testserver/*"),
    "Mcp-Session-Id": ("*legacy.py", "testserver/*"),
    "resources/subscribe": ("*legacy.py", "testserver/*"),
    "logging/setLevel": ("*legacy.py", "testserver/*"),
    "server/discover": ("*modern.py", "protocol/negotiate.py", "testserver/*"),
    "subscriptions/listen": ("*modern.py", "protocol/listen_stream.py", "testserver/*"),
    "io.modelcontextprotocol/": ("*modern.py", "wire/request_meta.py", "testserver/*"),
}
"""Words of one era, and the only rooms that know it. Only string constants count: prose may name them."""

CTL_MAY_IMPORT = ("mcpd", "mcpd.model", "mcpd.config", "mcpd.support")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def rung(name: str) -> int | None:
    """How high `mcpd.<name>…` stands; None for `mcpd` itself."""
    parts = name.split(".")
    if len(parts) < 2 or parts[1].startswith("__version__"):
        return None
    return next((index for index, step in enumerate(LADDER) if parts[1] in step), None)


def upward_imports(source: str, own: int) -> list[str]:
    return [
        f"line {line}: {name}"
        for name, line in imported(ast.parse(source))
        if name.startswith("mcpd") and (there := rung(name)) is not None and there < own
    ]


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of the constants that are docstrings: prose."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def forbidden_words(source: str, place: str) -> list[str]:
    tree = ast.parse(source)
    prose = docstrings(tree)
    said = [
        (node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    return [
        f"line {line}: {word}"
        for word, rooms in FORBIDDEN.items()
        for text, line in said
        if text.startswith(word) and not any(Path(place).match(room) for room in rooms)
    ]


def own_rung(path: Path) -> int | None:
    relative = path.relative_to(ROOT / "mcpd")
    first = relative.parts[0].removesuffix(".py")
    return None if first == "__init__" else rung(f"mcpd.{first}")


@pytest.mark.parametrize("path", modules("mcpd"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    """DESIGN: if you want to import up, pass a value or a callable instead."""
    own = own_rung(path)
    if own is None:
        assert path == ROOT / "mcpd" / "__init__.py", f"{path} stands on no rung of the ladder"
        return
    assert upward_imports(path.read_text(), own) == []


@pytest.mark.parametrize("path", modules("mcpd"), ids=lambda p: str(p.relative_to(ROOT)))
def test_words_of_one_era_stay_in_their_rooms(path: Path) -> None:
    """The day legacy is deleted, it is these files that go."""
    assert forbidden_words(path.read_text(), str(path.relative_to(ROOT / "mcpd"))) == []


def test_a_planted_violation_is_found() -> None:
    """The checks above can fail."""
    wire = rung("mcpd.wire")
    assert wire is not None
    assert upward_imports("from mcpd.operations import Operations", wire) == [
        "line 1: mcpd.operations.Operations"
    ]
    assert forbidden_words('METHOD = "server/discover"', "core.py") == ["line 1: server/discover"]
    assert forbidden_words('METHOD = "server/discover"', "protocol/modern.py") == []


@pytest.mark.parametrize("package", NO_TRIO)
def test_pure_packages_do_not_know_trio(package: str) -> None:
    """Nouns, the wire and the user's words are functions of values: tested without a loop."""
    for path in modules(f"mcpd/{package}"):
        names = [name for name, _ in imported(ast.parse(path.read_text()))]
        assert not any(name.split(".")[0] == "trio" for name in names), path


@pytest.mark.parametrize("path", modules("ctl"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_client_knows_only_what_both_sides_share(path: Path) -> None:
    """mcpctl talks to the daemon over the socket; it never reaches into it."""
    for name, line in imported(ast.parse(path.read_text())):
        if name.split(".")[0] == "mcpd":
            allowed = name in ("mcpd", "mcpd.__version__") or name.startswith(
                tuple(f"{prefix}." for prefix in CTL_MAY_IMPORT[1:])
            )
            assert allowed, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_no_import_cycle_inside_a_package() -> None:
    """Two files that need each other are one idea, or three."""
    graph: dict[str, set[str]] = {}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules("mcpd")}
    for name, path in names.items():
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        found = {
            target if target in names else target.rpartition(".")[0]
            for node in top
            for target, _ in imported(node)
        }
        graph[name] = found & names.keys() - {name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def files_named(page: str) -> Iterator[str]:
    """`gateway/{legacy,modern}.py` is two."""
    for name in re.findall(r"`([\w./{},]+\.py)`", page):
        whole = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        yield from (f"{whole[1]}{each}{whole[3]}" for each in whole[2].split(",")) if whole else (name,)


def test_every_file_that_the_plan_names_is_there() -> None:
    """Whoever moves a line moves its row."""
    named = {*files_named((ROOT / "docs" / "ARCHITECTURE.md").read_text())}
    assert len(named) > 50
    assert [
        name for name in sorted(named) if not ((ROOT / "mcpd" / name).exists() or (ROOT / name).exists())
    ] == []


def test_every_package_has_its_place_in_the_tree_of_the_plan() -> None:
    """The first thing that a newcomer reads."""
    tree = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("```")[1]
    packages = [path.parent for path in (*modules("mcpd"), *modules("ctl")) if path.name == "__init__.py"]
    names = {package.name for package in packages} - {"mcpd"}
    assert [name for name in sorted(names) if f"{name}/ " not in tree] == []


@pytest.mark.parametrize("path", [*modules("mcpd"), *modules("ctl")], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_first_line_says_what_a_file_is_for(path: Path) -> None:
    """Only a package's own file may be empty."""
    said = ast.get_docstring(ast.parse(path.read_text()))
    if said is None:
        assert path.name == "__init__.py"
        assert path.read_text() == ""
    else:
        assert len(said.splitlines()[0].split()) >= 3
