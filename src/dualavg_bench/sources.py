"""The code that a recipe's numbers come from: its file, and whatever of it is not an installed package.

Another text, another experiment: an edited network must not be given the runs of the old one. Followed are
the modules that the file imports, and theirs in turn, as long as they lie outside of the standard library and
site-packages, and dualavg's own wherever they lie. Only the text is read: nothing is executed.
"""

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

ALWAYS = ("dualavg._mda", "dualavg._dual_averaging", "dualavg_bench.runner")
OURS = ("dualavg", "dualavg_bench")


def digest(path: Path) -> str:
    """Return the sha256 of a recipe's file and of all the code that it brings along."""
    texts = {"": path.read_bytes()}
    waiting = [*ALWAYS, *_imported(texts[""], "")]
    while waiting:
        name = waiting.pop()
        spec = None if name in texts else _find(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        texts[name] = Path(spec.origin).read_bytes()
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        waiting += _imported(texts[name], package)
    whole = hashlib.sha256()
    for name in sorted(texts):
        whole.update(f"{name}\0{hashlib.sha256(texts[name]).hexdigest()}\n".encode())
    return whole.hexdigest()


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


def _find(name: str) -> ModuleSpec | None:
    top = name.partition(".")[0]
    try:
        root = importlib.util.find_spec(top)
        if root is None or (top not in OURS and _is_installed(root)):
            return None
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # no module but a function, say
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in (None, "built-in", "frozen"):
        return spec.submodule_search_locations is None
    roots = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(str(spec.origin)).is_relative_to(root) for root in roots)
