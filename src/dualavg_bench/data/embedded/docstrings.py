"""Docstrings of the standard library and of scikit-learn, written as WikiText or as plain text."""

import ast
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from dualavg_bench.data.embedded import once

VERSION = "embedded-1"  # another text, another number: finished runs keep what they saw


def write(folder: Path) -> Path:
    """Write them as WikiText, once, and return where."""
    return once(folder / VERSION / "wikitext-2", _write)


def write_plain(folder: Path) -> Path:
    """Write them as plain text, one paragraph a line, once, and return where."""
    return once(folder / VERSION / "books-wiki", _write_plain)


def _write(folder: Path) -> None:
    for split, modules in _splits().items():
        parts: list[str] = []
        for module, texts in modules.items():
            parts += [f" \n = {module} = \n \n", *map(_tokenized, texts)]
        (folder / f"wiki.{split}.tokens").write_text("".join(parts), encoding="utf-8", newline="\n")


def _write_plain(folder: Path) -> None:
    for split, modules in _splits().items():
        paragraphs = (
            " ".join(paragraph.split())
            for texts in modules.values()
            for text in texts
            for paragraph in _paragraphs(text)
        )
        lines = "".join(f"{paragraph}\n" for paragraph in paragraphs if paragraph)
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8", newline="\n")


def _splits() -> dict[str, dict[str, list[str]]]:
    """Docstrings by split and module: whole modules go to one split, and no docstring stands twice."""
    splits: dict[str, dict[str, list[str]]] = {"train": {}, "valid": {}, "test": {}}
    seen: set[str] = set()
    for i, (module, path) in enumerate(_modules()):
        own = [text for text in _docstrings(path) if text not in seen]
        seen.update(own)
        if own:
            splits[{7: "valid", 9: "test"}.get(i % 10, "train")][module] = own
    return splits


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.stem, path
    package = importlib.util.find_spec("sklearn")
    for root in (package and package.submodule_search_locations) or []:
        for path in sorted(Path(root, "linear_model").glob("*.py")):
            yield f"sklearn . linear_model . {path.stem}", path


def _docstrings(path: Path) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in somebody else's file
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return []
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return list(dict.fromkeys(text for text in found if text))


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text)


def _tokenized(text: str) -> str:
    """One paragraph a line, words and signs between spaces."""
    paragraphs = (re.findall(r"\w+|[^\w\s]", part) for part in _paragraphs(text))
    return "".join(f" {' '.join(words)} \n" for words in paragraphs if words)
