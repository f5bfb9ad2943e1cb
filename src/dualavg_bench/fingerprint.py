"""A name for the data that a recipe reads: other data, other runs, wherever the folder is."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualavg_bench.recipe import Recipe, RecipeError, Source, Splits

LOOKED_AT = 16  # examples of a split, evenly spread: enough to tell data sets apart, and cheap in all of them


def fingerprint(splits: Splits, *, test: bool) -> str:
    """Return a hash of the splits' sizes and of some of their examples; the test split's only if told."""
    whole = hashlib.sha256()
    with _seeded():
        for name, source in _parts(splits):
            n = len(source)
            whole.update(f"{name} {n}\n".encode())
            if name == "test" and not test:
                continue
            for i in sorted({round(place) for place in np.linspace(0, n - 1, LOOKED_AT)}):
                _add(whole, source.batch(torch.tensor([i]), None))
    return whole.hexdigest()[:16]


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
    first, second = (fingerprint(splits, test=False) for _ in range(2))
    if first != second:
        raise RecipeError(
            f"The data of {where} differ from one reading to the next: what is random in them "
            "must come from the generator that `batch` is given, or from torch's own."
        )
    return first


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


def _add(whole: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu().contiguous()
        whole.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
        whole.update(dense.flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b"")
    elif isinstance(value, np.ndarray):
        whole.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
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
