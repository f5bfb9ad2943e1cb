"""The code that a recipe's numbers come from: its file, what it imports, which versions are installed.

Another text, another experiment: an edited network must not be given the runs of the old one. Followed are
the modules that the file imports, and theirs in turn, as long as they lie outside of the standard library and
site-packages, and dualavg's own wherever they lie. Of an installed package, its version counts. Only text is
read: nothing is executed. So of what is imported by `import_module` or loaded from a file, that is followed
whose name stands in the text: "helpers" as the argument of `import_module`, "helpers.py" anywhere, relative
to the file that says so. A name that is put together while the recipe runs is not known.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path

from dualavg_bench.recipe.user_code import is_installed_file

ALWAYS = ("dualavg._mda", "dualavg._dual_averaging", "dualavg_bench.run.training")
OURS = ("dualavg", "dualavg_bench")


@dataclass(frozen=True)
class Code:
    """What `trace` finds: the sha256 of all text, and the versions of the packages that it imports."""

    digest: str
    packages: dict[str, str]


def trace(path: Path, modules: Iterable[str] = ()) -> Code:
    """Follow a recipe's file, and `modules` that it names without importing them."""
    own, imported, named = _read(path.read_bytes(), "")
    digests, packages = {"": own}, dict[str, str]()
    waiting: set[str | Path] = {*ALWAYS, *modules, *imported, *_beside(path, named)}
    seen: set[str | Path] = {"", path.resolve()}
    while waiting:
        item = waiting.pop()
        seen.add(item)
        file: str | Path = item
        package = ""
        if isinstance(file, str):
            spec, installed = _find(file)
            packages |= installed
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                continue
            package = file if spec.submodule_search_locations is not None else file.rpartition(".")[0]
            file = Path(spec.origin)
        digest, imported, named = _read(file.read_bytes(), package)
        digests[item if isinstance(item, str) else f"{file.name} {digest}"] = digest
        waiting |= imported - seen
        if not isinstance(item, str) or item.partition(".")[0] not in OURS:
            waiting |= _beside(file, named) - seen
    whole = hashlib.sha256(f"Python {sys.version_info.major}.{sys.version_info.minor}\n".encode())
    for name in sorted(digests):
        whole.update(f"{name}\0{digests[name]}\n".encode())
    return Code(whole.hexdigest(), dict(sorted(packages.items())))


@functools.lru_cache(maxsize=1000)  # a worker asks before every run
def _read(text: bytes, package: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """Return the digest of a file's text, the names that it imports and that may be modules, and of files."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        tree = ast.parse("")  # whoever executes it will say so
    files = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = (value for value in files if isinstance(value, str) and re.fullmatch(r"[^\n*?]+\.py", value))
    return hashlib.sha256(text).hexdigest(), frozenset(_imported(tree, package)), frozenset(named)


def _beside(file: Path, named: Iterable[str]) -> set[Path]:
    """Return the files that a file's text names, relative to itself, as far as there are such."""
    found = set()
    for name in named:
        with contextlib.suppress(OSError, ValueError):
            if (file.parent / name).is_file():
                found.add((file.parent / name).resolve())
    return found - {file.resolve()}


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Of `from a import b`, both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield f"{package if node.args[0].value.startswith('.') else ''}{node.args[0].value}"


def _find(name: str) -> tuple[ModuleSpec | None, dict[str, str]]:
    """Return where a module's text is, unless it is an installed package's; then that one's version."""
    top = name.partition(".")[0]
    try:
        root = importlib.util.find_spec(top)
        if root is None or top in sys.stdlib_module_names:
            return None, {}
        if top not in OURS and _is_installed(root):
            return None, {found: _version(found) for found in _distributions().get(top, [])[:1]}
        return importlib.util.find_spec(name), {}
    except (ImportError, AttributeError, ValueError):  # no module but a function, say
        return None, {}


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {module: sorted(set(names)) for module, names in packages_distributions().items()}


_version = functools.cache(version)  # those of a process do not change under it


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in (None, "built-in", "frozen"):
        return spec.submodule_search_locations is None
    return is_installed_file(str(spec.origin))
