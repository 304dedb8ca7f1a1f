"""Check the architecture: the direction of imports, and which modules may contain which words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent

LADDER = (
    ("main", "__main__", "client"),
    ("daemon",),
    ("deferred", "upgrade"),
    ("api",),
    ("gateway",),
    ("calls",),
    ("operations",),
    ("supervision",),
    ("protocol",),
    ("auth",),
    ("transports",),
    ("state",),
    ("wire",),
    ("config",),
    ("io", "process", "files", "privacy"),
    ("model",),
)
"""A module may import what stands further down, never up. Within a package there are no cycles."""

NO_TRIO = ("model", "wire", "config", "auth/oauth")

FORBIDDEN = {
    "initialize": ("*legacy.py", "protocol/negotiate.py"),
    "Mcp-Session-Id": ("*legacy.py",),
    "resources/subscribe": ("*legacy.py",),
    "logging/setLevel": ("*legacy.py",),
    "server/discover": ("*modern.py", "protocol/negotiate.py"),
    "subscriptions/listen": ("*modern.py", "protocol/listen_stream.py"),
    "io.modelcontextprotocol/": ("*modern.py", "wire/message.py"),
}
"""Words of one era, and the only modules that may contain them. Docstrings do not count."""

ERA_TEST = re.compile(r"\.(era|modern|prefers_legacy)\b|\bis_legacy\b")
MAY_TEST_ERAS = ("protocol/*", "gateway/legacy.py", "gateway/modern.py", "api/mcp/*", "config/*")
ERA_TESTS_ELSEWHERE = 46
"""Lines of other modules that tell the eras apart. What differs should be asked of the object that speaks the
protocol, so this number only falls."""

LINES = {
    "mcpd": 1_687,
    "mcpd/api": 7_434,
    "mcpd/auth": 5_720,
    "mcpd/calls": 7_963,
    "mcpd/client": 1_793,
    "mcpd/config": 5_093,
    "mcpd/files": 620,
    "mcpd/gateway": 5_356,
    "mcpd/io": 896,
    "mcpd/model": 4_267,
    "mcpd/privacy": 575,
    "mcpd/process": 2_132,
    "mcpd/protocol": 2_368,
    "mcpd/state": 1_684,
    "mcpd/supervision": 4_639,
    "mcpd/transports": 5_218,
    "mcpd/wire": 1_327,
    "ctl": 6_251,
    "ctl/bridge": 1_879,
    "ctl/commands": 5_106,
    "ctl/editors": 4_557,
}
"""What each package may have, with those inside it that are not named. A commit that raises a number says
what a user gets for it."""

CTL_MAY_IMPORT = (
    "mcpd",
    "mcpd.model",
    "mcpd.config",
    "mcpd.files",
    "mcpd.privacy",
    "mcpd.process",
    "mcpd.wire",
)


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
    """Return the position of `mcpd.<name>…` on the ladder; None for `mcpd` itself."""
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
    """Return the ids of the constants that are docstrings."""
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


def test_imports_point_down() -> None:
    """Code that needs something from a higher package receives it as a value or a callable."""
    offenders = []
    for path in modules("mcpd"):
        own = own_rung(path)
        if own is not None:
            offenders += [
                f"{path.relative_to(ROOT)} {each}" for each in upward_imports(path.read_text(), own)
            ]
        elif path != ROOT / "mcpd" / "__init__.py":
            offenders.append(f"{path.relative_to(ROOT)} is not in LADDER")
    assert offenders == []


def test_a_feature_of_calls_is_a_file() -> None:
    """Only the gateway, which lists the stages, and those who show what one keeps import stages."""
    offenders = []
    for path in modules("mcpd/calls"):
        for imported in re.findall(r"mcpd\.calls\.stages\.\w+", path.read_text()):
            if (path.name, imported) != (
                "call_log.py",
                "mcpd.calls.stages.spans",
            ):  # it writes the log's lines
                offenders.append(f"{path.name} imports {imported}")
    assert offenders == []


def test_only_the_modules_of_an_era_contain_its_words() -> None:
    """Deleting the legacy era means deleting these modules."""
    offenders = [
        f"{path.relative_to(ROOT)} {each}"
        for path in modules("mcpd")
        for each in forbidden_words(path.read_text(), str(path.relative_to(ROOT / "mcpd")))
    ]
    assert offenders == []


def test_a_planted_violation_is_found() -> None:
    """The checks above detect violations."""
    wire = rung("mcpd.wire")
    assert wire is not None
    assert upward_imports("from mcpd.operations import Operations", wire) == [
        "line 1: mcpd.operations.Operations"
    ]
    assert forbidden_words('METHOD = "server/discover"', "core.py") == ["line 1: server/discover"]
    assert forbidden_words('METHOD = "server/discover"', "protocol/modern.py") == []


def test_processes_are_started_in_one_module() -> None:
    """Elsewhere, they might inherit the label of a server that is started at the same time."""
    starters = {"open_process", "run_process", "Popen", "fork", "posix_spawn"}
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno} {name}"
        for path in modules("mcpd")
        if path.parts[-2:] != ("process", "labels.py")
        and path.parent.name != "client"  # runs in other programs
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (name := getattr(node.func, "attr", getattr(node.func, "id", ""))) in starters
    ]
    assert offenders == []


def test_pure_packages_do_not_import_trio() -> None:
    """Pure packages contain functions of values, which are tested without an event loop."""
    offenders = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in NO_TRIO
        for path in modules(f"mcpd/{package}")
        for name, line in imported(ast.parse(path.read_text()))
        if name.split(".")[0] == "trio"
    ]
    assert offenders == []


def test_mcpctl_imports_only_the_packages_that_both_sides_share() -> None:
    """mcpctl talks to the daemon over the socket and never imports it."""
    shared = tuple(f"{package}." for package in CTL_MAY_IMPORT[1:])
    offenders = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules("ctl")
        for name, line in imported(ast.parse(path.read_text()))
        if name.split(".")[0] == "mcpd"
        and name not in ("mcpd", "mcpd.__version__")
        and not name.startswith(shared)
    ]
    assert offenders == []


def import_cycle(sources: Mapping[str, str]) -> str:
    """Return a cycle of modules that import each other; empty if there is none."""
    graph = {
        name: {
            target if target in sources else target.rpartition(".")[0]
            for target, _ in imported(ast.parse(source))
        }
        & sources.keys() - {name}
        for name, source in sources.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> str:
        if name in trail:
            return " → ".join((*trail, name))
        found = ""
        if name not in done:
            found = next(filter(None, (visit(each, (*trail, name)) for each in sorted(graph[name]))), "")
            done.add(name)
        return found

    return next(filter(None, (visit(name, ()) for name in sorted(sources))), "")


def test_no_import_cycle_inside_a_package() -> None:
    """Modules that import each other belong in one module, or need a third one.

    Imports for annotations and imports inside functions count: modules that know each other cannot be
    understood one by one either.
    """
    for package in ("mcpd", "ctl"):
        sources = {
            ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
            for path in modules(package)
        }
        assert import_cycle(sources) == ""


def test_a_planted_cycle_is_found() -> None:
    up = "if TYPE_CHECKING:\n    from mcpd.b import B"
    assert import_cycle({"mcpd.a": up, "mcpd.b": "from mcpd.a import A"}) == "mcpd.a → mcpd.b → mcpd.a"
    inside = "def f():\n    from mcpd.a import A"
    assert import_cycle({"mcpd.a": up, "mcpd.b": inside}) == "mcpd.a → mcpd.b → mcpd.a"
    assert import_cycle({"mcpd.a": up, "mcpd.b": "import mcpd.c", "mcpd.c": ""}) == ""


def test_start_imports_nothing_for_http() -> None:
    """Most daemons have no remote servers and no HTTP clients; httpx would take 0.1 s and 4 MB."""
    program = "import sys, mcpd.daemon; print(*{'httpx', 'httpcore2', 'anyio', 'h11'} & sys.modules.keys())"
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert started.stdout == "\n"


def fields_filled_from_outside(sources: Mapping[str, str]) -> list[str]:
    """Return the fields of classes without a useful type (`object`, or a callable with `Any`) that another
    module assigns. What a higher package adds to an object of a lower one needs a Protocol or a typed key.
    """
    vague: dict[str, str] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name | ast.Attribute):
                kind = ast.unparse(node.annotation)
                if kind.removesuffix(" | None") in ("object", "Any") or re.search(r"Callable.*\bAny\b", kind):
                    name = node.target.id if isinstance(node.target, ast.Name) else node.target.attr
                    vague[name] = path
    return [
        f"{path}:{target.lineno} {target.attr} of {vague[target.attr]}"
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and ast.unparse(target.value) != "self"
        and vague.get(target.attr, path) != path
    ]


def test_no_field_without_a_type_is_filled_from_outside() -> None:
    """Neither mypy nor the checks of imports would see such an arrow."""
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in modules("mcpd")}
    assert fields_filled_from_outside(sources) == []
    low = {"low.py": "class Low:\n    more: object = None", "high.py": "low.more = 1"}
    assert fields_filled_from_outside(low) == ["high.py:1 more of low.py"]


def test_few_other_modules_tell_the_eras_apart() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules("mcpd")
        if not any(path.relative_to(ROOT / "mcpd").match(room) for room in MAY_TEST_ERAS)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ERA_TEST.search(line)
    ]
    assert len(found) <= ERA_TESTS_ELSEWHERE, found


def package_of(path: Path) -> str:
    """Return the package that a module counts for: the innermost that has a budget."""
    parts = path.relative_to(ROOT).parts[:-1]
    names = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(name for name in names if name in LINES)


def test_packages_keep_within_their_lines() -> None:
    """A package that nobody can hold in mind is divided, or loses something."""
    counts = dict.fromkeys(LINES, 0)
    for path in (*modules("mcpd"), *modules("ctl")):
        counts[package_of(path)] += len(path.read_text().splitlines())
    assert {name: count for name, count in counts.items() if count > LINES[name]} == {}


def files_named(page: str) -> Iterator[str]:
    """Return the files that a page names; `gateway/{legacy,modern}.py` are two."""
    for name in re.findall(r"`([\w./{},]+\.py)`", page):
        whole = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        yield from (f"{whole[1]}{each}{whole[3]}" for each in whole[2].split(",")) if whole else (name,)


def test_every_file_that_the_documentation_names_exists() -> None:
    """Moving code includes updating the pages for contributors."""
    docs = ROOT / "docs"
    assert len({*files_named((docs / "ARCHITECTURE.md").read_text())}) > 25
    pages = [docs / "ARCHITECTURE.md", docs / "development.md", *(docs / "design").glob("*.md")]
    named = {name for page in pages for name in files_named(page.read_text())}
    assert [
        name for name in sorted(named) if not ((ROOT / "mcpd" / name).exists() or (ROOT / name).exists())
    ] == []


def test_every_package_is_in_the_documented_tree() -> None:
    """The tree is the first thing that a newcomer reads."""
    tree = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("```")[1]
    packages = [path.parent for path in (*modules("mcpd"), *modules("ctl")) if path.name == "__init__.py"]
    names = {package.name for package in packages} - {"mcpd"}
    assert [name for name in sorted(names) if f"{name}/ " not in tree] == []


def test_every_module_has_a_docstring() -> None:
    """The first line says what the module is for. Only `__init__.py` may be empty."""
    offenders = []
    for path in (*modules("mcpd"), *modules("ctl")):
        text = path.read_text()
        docstring = ast.get_docstring(ast.parse(text))
        if docstring is None:
            is_fine = path.name == "__init__.py" and text == ""
        else:
            is_fine = len(docstring.splitlines()[0].split()) >= 3
        if not is_fine:
            offenders.append(str(path.relative_to(ROOT)))
    assert offenders == []
