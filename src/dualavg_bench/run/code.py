"""The code that names a run: the recipe's file, the modules it imports, the versions of installed packages.

Code is compared by its syntax tree, without comments, docstrings and formatting. Rewording, reformatting or
moving a module keeps the names of runs. Changing a constant, a default or a function's body changes them.

We follow the modules that the recipe, the training loop and the optimizer's class import, and the modules
that these import: of `dualavg`, of `dualavg_bench`, and all outside of the standard library and
site-packages. Of an installed package, the version counts. Two parts are not followed. How a result is
written (`store`) changes no number. The table of named optimizers only fills in the spec.

Files are read, never executed. So a module that is loaded by name counts only if its name is in the text: as
the argument of `import_module`, or as a string such as "helpers.py" or "kernel.cpp", relative to that file.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions, packages_distributions, version
from pathlib import Path

from dualavg_bench.recipe.user_code import is_installed_file

ALWAYS = ("dualavg_bench.run.pretraining",)  # which imports `training`
NOT_FOLLOWED = ("dualavg_bench.store", "dualavg_bench.recipe.optimizers")
BUILDS_KERNELS = "dualavg._fused"  # the C++ in its folder counts wherever it is followed
OWN_PACKAGES = ("dualavg", "dualavg_bench")
_FILE = re.compile(r"[^\n*?]+\.(py|cpp|cu|h)")
_CPP_COMMENT = re.compile(rb'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


@dataclass(frozen=True)
class Code:
    """The code that names a run.

    Args:
        digest: sha256 of the Python version and of all files that were followed.
        packages: versions of the installed packages that these import.
        modules: what was followed besides the recipe's own file: modules, and files by their paths.
    """

    digest: str
    packages: dict[str, str]
    modules: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class _Import:
    """One imported name: all of `import module`, or `name` of `from module import name`."""

    module: str
    name: str = ""

    @property
    def is_not_followed(self) -> bool:
        return f"{self.module}.".startswith(tuple(f"{module}." for module in NOT_FOLLOWED))


@dataclass(frozen=True)
class _Text:
    """What a file says: a digest of its tree without imported modules, its imports, files that it names."""

    digest: str
    imports: tuple[_Import, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    """A file to follow, and the package that its relative imports start from."""

    path: Path
    module: str = ""
    package: str = ""

    def read(self) -> _Text:
        text = self.path.read_bytes()
        return _read(text, self.package) if self.path.suffix == ".py" else _Text(_cpp_digest(text), (), ())

    def beside(self, names: Iterable[str]) -> Iterator[tuple[str, "_File"]]:
        """Return the files of these names, relative to this one, as far as they exist."""
        if self.module == BUILDS_KERNELS:
            sources = (path for path in self.path.parent.rglob("*") if path.suffix in (".cpp", ".h"))
            yield from ((path.name, _File(path)) for path in sorted(sources))
        elif self.module.partition(".")[0] not in OWN_PACKAGES:
            for name in names:
                with contextlib.suppress(OSError, ValueError):  # too long for a path, or with a NUL in it
                    if (path := (self.path.parent / name).resolve()).is_file():
                        yield name, _File(path)


def trace(path: Path, modules: Iterable[str] = ()) -> Code:
    """Follow a recipe's file, and `modules` that it names without importing them."""
    packages: dict[str, str] = {}
    own_file = _File(path.resolve())
    own_digest, waiting = _follow(own_file, packages)
    for name in (*ALWAYS, *modules):
        waiting += _modules_of(_Import(name), packages)
    digests: dict[_File, str] = {own_file: own_digest}
    while waiting:
        file = waiting.pop()
        if file not in digests:
            digests[file], further = _follow(file, packages)
            waiting += further
    followed = {file: digest for file, digest in digests.items() if file != own_file}
    digest = hashlib.sha256(f"Python {sys.version_info.major}.{sys.version_info.minor}".encode())
    for line in (own_digest, *sorted({*followed.values()} - {""})):
        digest.update(f"\n{line}".encode())
    names = sorted(file.module or str(file.path) for file in followed)
    return Code(digest.hexdigest(), dict(sorted(packages.items())), tuple(names))


def _follow(file: _File, packages: dict[str, str]) -> tuple[str, list[_File]]:
    """Return the digest of a file ("" if it is empty) and the files it leads to; add packages it imports.

    An imported module counts by the text that it has, not by its name.
    """
    text = file.read()
    digest = hashlib.sha256(text.digest.encode())
    found: list[_File] = []
    for imported in text.imports:
        modules = _modules_of(imported, packages)
        found += modules
        if not modules:
            meaning = f"{'' if imported.is_not_followed else imported.module} {imported.name}"
        elif modules[0].module == f"{imported.module}.{imported.name}":
            meaning = modules[0].read().digest
        else:
            meaning = f"{modules[0].read().digest} {imported.name}"
        digest.update(f"\n{meaning}".encode())
    for name, beside in file.beside(text.files):
        digest.update(f"\n{name} {beside.read().digest}".encode())
        found.append(beside)
    return ("" if text == _read(b"", "") else digest.hexdigest()), found


@functools.lru_cache(maxsize=1000)  # a worker asks before every run
def _read(text: bytes, package: str) -> _Text:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # loading the recipe reports it
        return _Text(hashlib.sha256(text).hexdigest(), (), ())
    calls = tuple(_loaded_by_name(tree, package))
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    files = {value for value in constants if isinstance(value, str) and _FILE.fullmatch(value)}
    imports: list[_Import] = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, _normalised(statements, package, imports))
    digest = hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()
    return _Text(digest, (*imports, *calls), tuple(sorted(files)))


def _normalised(body: list[ast.stmt], package: str, imports: list[_Import]) -> list[ast.stmt]:
    """Return statements without docstrings, and with imports as `import <number> as name`, sorted by name.

    What a number stands for is added to `imports`.
    """
    kept: list[ast.stmt] = []
    group: list[tuple[str, _Import]] = []
    for statement in (*body, None):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            group += _bindings(statement, package)
            continue
        for bound, imported in sorted(group, key=lambda item: (item[0], item[1].module)):
            kept.append(ast.Import([ast.alias(str(len(imports)), bound)]))
            imports.append(imported)
        group = []
        if statement is not None and not _is_text(statement):
            kept.append(statement)
    return kept


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a string and nothing else: a docstring."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _bindings(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, _Import]]:
    """Return the names that an import binds, each with what it stands for."""
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            yield alias.asname or alias.name, _Import(alias.name)
        else:
            above = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
            base = ".".join(part for part in (above, statement.module) if part)
            yield alias.asname or alias.name, _Import(base, alias.name)


def _loaded_by_name(tree: ast.AST, package: str) -> Iterator[_Import]:
    """Return the modules that are the first argument of `import_module` or `__import__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str):
                yield _Import(f"{package}{name}" if name.startswith(".") else name)


def _modules_of(imported: _Import, packages: dict[str, str]) -> list[_File]:
    """Return the module that an import leads to and, of foreign code, the packages around it.

    Our own packages' `__init__` only collect names, so a submodule is followed without them. Nothing is
    returned for what is not followed; an installed package is added to `packages`.
    """
    top = imported.module.partition(".")[0]
    if not top or top in sys.stdlib_module_names or imported.is_not_followed:
        return []
    root = None
    with contextlib.suppress(ImportError, ValueError):
        root = importlib.util.find_spec(top)
    if root is None:
        return []
    if top not in OWN_PACKAGES and _is_installed(root):
        packages.update({found: _version(found) for found in _distributions().get(top, [])[:1]})
        return []
    path = f"{imported.module}.{imported.name}" if imported.name else imported.module
    found = list(_along(root, path.split(".")))
    return found[:1] if top in OWN_PACKAGES else found


def _along(root: ModuleSpec, parts: list[str]) -> list[_File]:
    """Return the file of a dotted path, or of as much of it as is a module, and those of its parents."""
    found: list[_File] = []
    spec: ModuleSpec | None = root
    for depth in range(1, len(parts) + 1):
        if spec is None:
            break
        name = ".".join(parts[:depth])
        if spec.origin is not None and spec.origin.endswith(".py"):
            package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            found.insert(0, _File(Path(spec.origin).resolve(), name, package))
        inner = spec.submodule_search_locations
        following = ".".join(parts[: depth + 1])
        spec = PathFinder.find_spec(following, list(inner)) if inner is not None else None
    return found


@functools.lru_cache(maxsize=100)
def _cpp_digest(text: bytes) -> str:
    """Return the digest of C++ without comments and line breaks."""
    code = _CPP_COMMENT.sub(lambda found: found[1] or b" ", text)
    return hashlib.sha256(b" ".join(code.split())).hexdigest()


@functools.cache
def _distributions() -> dict[str, list[str]]:
    found = {module: set(names) for module, names in packages_distributions().items()}
    if sys.version_info < (3, 11):  # there it leaves out packages without top_level.txt, such as numpy
        for package in distributions():
            if package.read_text("top_level.txt") is None:
                for file in package.files or ():
                    found.setdefault(file.parts[0].removesuffix(".py"), set()).add(package.metadata["Name"])
    return {module: sorted(names) for module, names in found.items()}


_version = functools.cache(version)  # those of a process do not change under it


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in (None, "built-in", "frozen"):
        return spec.submodule_search_locations is None
    return is_installed_file(str(spec.origin))
