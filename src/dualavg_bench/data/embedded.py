"""The data of the quick scale, from what pip already installed, written in the official formats."""

import ast
import importlib.util
import io
import pickle
import re
import shutil
import struct
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np

from dualavg_bench.data import cifar

VERSION = "embedded-1"  # another text or picture, another number: finished runs keep what they saw
SOURCE = "remove the folder it is in, and it is written again"
TEST_DIGITS = 297


def digits(folder: Path) -> Path:
    """Write scikit-learn's 1,797 handwritten digits as CIFAR-10, once, and return where."""
    return _once(folder / VERSION / cifar.FOLDER, _write_digits)


def docstrings(folder: Path) -> Path:
    """Write docstrings of the standard library and of scikit-learn as WikiText, once, and return where."""
    return _once(folder / VERSION / "wikitext-2", _write_docstrings)


def _once(target: Path, write: Callable[[Path], None]) -> Path:
    if target.is_dir():
        return target
    draft = target.with_name(f".{target.name}-{uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        write(draft)
        draft.rename(target)  # atomic, and refused where another process was faster
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _write_digits(folder: Path) -> None:
    from sklearn.datasets import load_digits  # slow to import, and needed once

    small, labels = load_digits(return_X_y=True)
    grey = np.round(small.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels = grey.repeat(3, axis=1).repeat(4, axis=2).repeat(4, axis=3).reshape(-1, 3072)
    order = np.random.default_rng(0).permutation(len(labels))  # neighbours are of one writer
    test, train = order[:TEST_DIGITS], order[TEST_DIGITS:]
    for name, part in (("data_batch_1", train), ("test_batch", test)):
        batch = {b"batch_label": name.encode(), b"labels": labels[part].tolist(), b"data": pixels[part]}
        file = io.BytesIO()
        _Python2Pickler(file, protocol=2).dump(batch)
        (folder / name).write_bytes(file.getvalue())


_Pickler: Any = pickle._Pickler  # the one in Python, whose parts can be replaced; type stubs hide its methods


class _Python2Pickler(_Pickler):  # type: ignore[misc]
    """Writes bytes as Python 2 wrote its strings; Python 3 would write a call of `_codecs.encode`."""

    dispatch: ClassVar[dict[type, Any]] = dict(_Pickler.dispatch)

    def _save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = _save_bytes


def _write_docstrings(folder: Path) -> None:
    texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for i, (module, path) in enumerate(_modules()):
        # Whole modules go to one split, and no docstring stands twice.
        split = {7: "valid", 9: "test"}.get(i % 10, "train")
        own = [text for text in _docstrings(path) if text not in seen]
        seen.update(own)
        if own:
            texts[split].append(f" \n = {module} = \n \n")
        texts[split] += [_tokenized(text) for text in own]
    for split, parts in texts.items():
        (folder / f"wiki.{split}.tokens").write_text("".join(parts), encoding="utf-8", newline="\n")


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


def _tokenized(text: str) -> str:
    """One paragraph a line, words and signs between spaces."""
    paragraphs = (re.findall(r"\w+|[^\w\s]", part) for part in re.split(r"\n\s*\n", text))
    return "".join(f" {' '.join(words)} \n" for words in paragraphs if words)
