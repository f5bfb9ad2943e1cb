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
    texts, packages = {"": path.read_bytes()}, dict[str, str]()
    waiting = [*ALWAYS, *modules, *_imported(texts[""], "")]
    while waiting:
        name = waiting.pop()
        if name in texts:
            continue
        spec, installed = _find(name)
        packages |= installed
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        texts[name] = Path(spec.origin).read_bytes()
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        waiting += _imported(texts[name], package)
    whole = hashlib.sha256(f"Python {sys.version_info.major}.{sys.version_info.minor}\n".encode())
    for name in sorted(texts):
        whole.update(f"{name}\0{hashlib.sha256(texts[name]).hexdigest()}\n".encode())
    return Code(whole.hexdigest(), dict(sorted(packages.items())))


def _imported(text: bytes, package: str) -> Iterator[str]:
    """Names that may be modules: of `from a import b`, both a and a.b."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # whoever executes it will say so
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
            return None, {found: version(found) for found in _distributions().get(top, [])[:1]}
        return importlib.util.find_spec(name), {}
    except (ImportError, AttributeError, ValueError):  # no module but a function, say
        return None, {}


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {module: sorted(set(names)) for module, names in packages_distributions().items()}


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in (None, "built-in", "frozen"):
        return spec.submodule_search_locations is None
    roots = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(str(spec.origin)).is_relative_to(root) for root in roots)
