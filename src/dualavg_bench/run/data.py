"""A name for the data that a recipe reads: other data, other runs, wherever the folder is.

It is made of the sizes of the splits, of all that they hold in memory (`held.py`), and of some examples,
evenly spread, for what is read from disk when it is asked for: a data set too large to be read before every
run. There, a change between these examples goes unseen.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualavg_bench.recipe import Recipe, RecipeError, Source, Splits
from dualavg_bench.recipe.user_code import user_code
from dualavg_bench.run.held import add_array, add_held, add_tensor

LOOKED_AT = 64  # examples of a split: enough to tell data sets apart, and cheap in all of them


def read(recipe: Recipe, folder: Path) -> Splits:
    """Return the data of a recipe; what is random in how they are made is the same every time."""
    with _seeded(), user_code(recipe.name, "data"):
        splits = recipe.data(folder.absolute())
    if not isinstance(splits, Splits):
        raise RecipeError(
            f"data of recipe {recipe.name} must return Splits(train, valid, test), "
            f"got {type(splits).__name__}."
        )
    for name, source in _parts(splits):
        if not callable(getattr(source, "batch", None)) or not hasattr(source, "__len__"):
            raise RecipeError(
                f"The {name} split of recipe {recipe.name} must have a length and a method "
                f"batch(indices, rng), got {type(source).__name__}; FromDataset, of dualavg_bench.recipe, "
                "makes one of a torch Dataset."
            )
    return splits


def fingerprint(splits: Splits, *, test: bool) -> str:
    """Return a hash of the splits' sizes and contents; of the test split's contents only if told."""
    return _name(_held(splits, test=test), _examples(splits, test=test))


def check(splits: Splits, recipe: Recipe, folder: Path | None = None) -> str:
    """Return the fingerprint without test, or say in a sentence why nothing can be learnt from these data.

    Args:
        splits: what `recipe.data` returned.
        recipe: whose data they are.
        folder: where they were read from, for messages.
    """
    where = f"recipe {recipe.name}" + ("" if folder is None else f", read from {folder},")
    for name, source in _parts(splits):
        if len(source) == 0:
            raise RecipeError(f"The {name} split of {where} is empty.")
    if len(splits.train) < recipe.batch_size:
        raise RecipeError(
            f"The training split of {where} has {len(splits.train)} examples, less than one batch of "
            f"{recipe.batch_size}."
        )
    held = _held(splits, test=False)
    with user_code(recipe.name, "batch"):
        (first, one), (second, other) = (
            (_examples(splits, test=False), _augmented(splits.train)) for _ in range(2)
        )
    if (first, one) != (second, other):
        raise RecipeError(
            f"The data of {where} differ from one reading to the next: what is random in them "
            "must come from the generator that `batch` is given, or from the global one of torch, numpy or "
            "Python."
        )
    return _name(held, first)


def _name(*digests: bytes) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _held(splits: Splits, *, test: bool) -> bytes:
    """Return a hash of what the splits hold in memory when they are first asked for it.

    Later, a source may keep examples that it has read, or notes of which they were.
    """
    known: dict[int, bytes] = {}
    kept: dict[str, bytes] = splits.__dict__.setdefault("_held", {})
    for name, source in _parts(splits):
        if name not in kept and (name != "test" or test):
            whole = hashlib.sha256()
            add_held(whole, source, known)
            kept[name] = whole.digest()
    sizes = [len(source) for _, source in _parts(splits)]
    return repr(sizes).encode() + b"".join(kept[name] for name, _ in _parts(splits) if name != "test" or test)


def _examples(splits: Splits, *, test: bool) -> bytes:
    """Return a hash of some examples, read one by one."""
    whole = hashlib.sha256()
    with _seeded():
        for name, source in _parts(splits):
            if name == "test" and not test:
                continue
            for i in sorted({round(place) for place in np.linspace(0, len(source) - 1, LOOKED_AT)}):
                _add(whole, source.batch(torch.tensor([i]), None))
    return whole.digest()


def _parts(splits: Splits) -> Iterator[tuple[str, Source]]:
    yield from (("train", splits.train), ("valid", splits.valid), ("test", splits.test))


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Let augmentation that draws from global generators draw the same, and put them back."""
    python, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - others may use it
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _augmented(train: Source) -> bytes:
    """Return a hash of a small batch as training is given it."""
    whole = hashlib.sha256()
    with _seeded():
        _add(whole, train.batch(torch.arange(min(4, len(train))), torch.Generator().manual_seed(0)))
    return whole.digest()


def _add(whole: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        add_tensor(whole, value)
    elif isinstance(value, np.ndarray):
        add_array(whole, value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            whole.update(repr(key).encode())
            _add(whole, value[key])
    elif isinstance(value, list | tuple):
        for part in value:
            _add(whole, part)
    elif isinstance(value, str | bytes | int | float | bool | None):
        whole.update(repr(value).encode())
    else:
        whole.update(type(value).__name__.encode())  # an object of the recipe's: its code is traced
