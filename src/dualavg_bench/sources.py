"""The code that a recipe's numbers come from: its file, what it imports, which versions are installed.

Another text, another experiment: an edited network must not be given the runs of the old one. Followed are
the modules that the file imports, and theirs in turn, as long as they lie outside of the standard library and
site-packages, and dualavg's own wherever they lie. Of an installed package, its version counts. Only text is
read: nothing is executed.
"""

import ast
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path

ALWAYS = ("dualavg._mda", "dualavg._dual_averaging", "dualavg_bench.runner")
OURS = ("dualavg", "dualavg_bench")


@dataclass(frozen=True)
class Code:
    """What `trace` finds: the sha256 of all text, and the versions of the packages that it imports."""

    digest: str
    packages: dict[str, str]


def trace(path: Path, modules: Iterable[str] = ()) -> Code:
    """Follow a recipe's file, and `modules` that it names without importing them."""
    own, imported = _read(path.read_bytes(), "")
    digests, packages = {"": own}, dict[str, str]()
    waiting = {*ALWAYS, *modules, *imported}
    seen = {""}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        spec, installed = _find(name)
        packages |= installed
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        digests[name], imported = _read(Path(spec.origin).read_bytes(), package)
        waiting |= imported - seen
    whole = hashlib.sha256(f"Python {sys.version_info.major}.{sys.version_info.minor}\n".encode())
    for name in sorted(digests):
        whole.update(f"{name}\0{digests[name]}\n".encode())
    return Code(whole.hexdigest(), dict(sorted(packages.items())))


@functools.lru_cache(maxsize=1000)  # a worker asks before every run
def _read(text: bytes, package: str) -> tuple[str, frozenset[str]]:
    """Return the digest of a file's text, and the names that it imports and that may be modules."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        tree = ast.parse("")  # whoever executes it will say so
    return hashlib.sha256(text).hexdigest(), frozenset(_imported(tree, package))


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


@functools.cache
def _installed_in() -> set[str]:
    return {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in (None, "built-in", "frozen"):
        return spec.submodule_search_locations is None
    return any(str(spec.origin).startswith(f"{root}{os.sep}") for root in _installed_in())
