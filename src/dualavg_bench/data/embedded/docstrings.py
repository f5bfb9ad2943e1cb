"""Docstrings of the standard library and of scikit-learn, as WikiText or as plain text."""

import ast
import functools
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from dualavg_bench.data.embedded import once

VERSION = "embedded-2"  # change it with the data: finished runs keep theirs


def write(folder: Path) -> Path:
    """Write them as WikiText unless they exist. Return their folder."""
    return once(folder / VERSION / "wikitext-2", _write)


def write_plain(folder: Path) -> Path:
    """Write them as plain text, one paragraph per line, unless they exist. Return their folder."""
    return once(folder / VERSION / "books-wiki", _write_plain)


def _write(folder: Path) -> None:
    for split, modules in _splits().items():
        parts: list[str] = []
        for module, paragraphs in modules.items():
            parts += [f" \n = {module} = \n \n", *(f" {_tokenized(part)} \n" for part in paragraphs)]
        (folder / f"wiki.{split}.tokens").write_text("".join(parts), encoding="utf-8", newline="\n")


def _write_plain(folder: Path) -> None:
    for split, modules in _splits().items():
        lines = "".join(f"{' '.join(part.split())}\n" for parts in modules.values() for part in parts)
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8", newline="\n")


@functools.cache  # both formats need it, and parsing takes seconds
def _splits() -> dict[str, dict[str, list[str]]]:
    """Return paragraphs by split and module. No docstring is repeated; no paragraph is in two splits.

    All docstrings of a module go to one split. A paragraph that splits would share, such as "Parameters" or
    a common argument, stays in test, else in validation: training contains nothing of what is scored.
    """
    modules: dict[str, dict[str, list[str]]] = {"test": {}, "valid": {}, "train": {}}
    seen: set[str] = set()
    for i, (module, path) in enumerate(_modules()):
        texts = [text for text in _docstrings(path) if text not in seen]
        seen.update(texts)
        paragraphs = [part for text in texts for part in re.split(r"\n\s*\n", text)]
        modules[{7: "valid", 9: "test"}.get(i % 10, "train")][module] = paragraphs
    used = {""}  # tokenized: other spaces and line breaks do not make another paragraph
    splits = {}
    for split, paragraphs_of in modules.items():
        new = {name: [p for p in parts if _tokenized(p) not in used] for name, parts in paragraphs_of.items()}
        splits[split] = {name: parts for name, parts in new.items() if parts}
        used |= {_tokenized(part) for parts in new.values() for part in parts}
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
        warnings.simplefilter("ignore")  # invalid escapes in other people's files
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return []
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return list(dict.fromkeys(text for text in found if text))


def _tokenized(paragraph: str) -> str:
    """Put spaces between words and punctuation marks."""
    return " ".join(re.findall(r"\w+|[^\w\s]", paragraph))
