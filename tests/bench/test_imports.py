"""Imports go one way: which room may know which, no cycles, none inside a function to dodge one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dualavg
import dualavg_bench

BENCH, LIBRARY = Path(dualavg_bench.__file__).parent, Path(dualavg.__file__).parent

# Whom the modules of a room may import, besides each other. A room is a folder or a module at the top.
ALLOWED = {
    "scales": set(),
    "recipe": {"scales"},
    "store": {"recipe", "scales"},
    "run": {"recipe", "store"},
    "analysis": {"recipe", "store"},
    "study": {"recipe", "store", "run", "analysis"},
    "report": {"recipe", "store", "analysis", "scales"},
    "data": {"recipe", "store"},
    "models": {"data"},
    "recipes": {"recipe", "models", "data"},
    "terminal": {"recipe", "recipes", "store", "analysis", "scales"},
    "commands": {"recipe", "store", "run", "study", "report", "terminal"},
    "reproduction": {"commands", "scales", "store", "analysis", "study", "report", "terminal"},
    "horizon": {"commands", "scales", "store", "analysis", "study", "terminal"},
    "cli": {"scales", "store", "study", "terminal", "commands", "reproduction", "horizon"},
    "__main__": {"cli"},
}
LAZY = {"cli", "__main__"}  # `dualavg --help` must not load torch; a missing extra gets one line


def modules() -> dict[str, Path]:
    """Our modules by their dotted names in the package; the package itself is not a room."""
    found = {}
    for path in BENCH.rglob("*.py"):
        parts = path.relative_to(BENCH).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and "templates" not in parts:
            found[name] = path
    return found


MODULES = modules()


def imports(path: Path, package: str = "dualavg_bench") -> Iterator[tuple[str, bool]]:
    """The modules of the package that a file imports, and whether it does so inside a function."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{path} has a relative import"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    yield (whole if whole.partition(".")[2] in MODULES else str(child.module)), inside
            else:
                yield from visit(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    for name, inside in visit(ast.parse(path.read_text()), inside=False):
        if name.partition(".")[0] == package:
            yield name.partition(".")[2], inside


GRAPH = {name: {target for target, _ in imports(path)} for name, path in MODULES.items()}


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_room_has_its_rule() -> None:
    assert {room(name) for name in MODULES} == ALLOWED.keys()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_rooms_that_its_own_may_know(name: str) -> None:
    known = {room(target) for target in GRAPH[name]} - {room(name)}
    assert known <= ALLOWED[room(name)]


def test_rooms_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(ALLOWED):
        ready = [name for name in ALLOWED if name not in order and ALLOWED[name] <= set(order)]
        assert ready, f"a cycle among {sorted(set(ALLOWED) - set(order))}"
        order += ready


def test_modules_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in GRAPH[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in GRAPH:
        visit(name, ())


@pytest.mark.parametrize("name", sorted(MODULES.keys() - LAZY))
def test_no_module_of_ours_is_imported_inside_a_function(name: str) -> None:
    assert not [target for target, inside in imports(MODULES[name]) if inside]


def test_data_sets_know_of_the_store_only_how_to_write_files() -> None:
    of_store = {target for name in GRAPH if room(name) == "data" for target in GRAPH[name]}
    assert {target for target in of_store if room(target) == "store"} == {"store.files"}


def test_nothing_that_trains_is_reached_from_reports_and_their_figures() -> None:
    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(target) for target in GRAPH[name]))

    for name in GRAPH:
        if room(name) in ("report", "analysis", "store"):
            assert not {room(target) for target in reached(name)} & {"run", "study", "models", "recipes"}


def test_the_library_does_not_know_the_benchmark() -> None:
    for path in LIBRARY.rglob("*.py"):
        assert not list(imports(path)), path
