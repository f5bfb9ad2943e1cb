"""The fingerprint of the data, part of a run's name: a hash of the examples that `batch` returns.

A small split is hashed completely. Of a split with more than `MANY` examples or `MANY_BYTES`, only an evenly
spaced sample is, and a change between the examples of the sample is not noticed. The fingerprint is computed
for the study and again in every run, so it has to be cheap.
"""

import contextlib
import dataclasses
import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualavg_bench.recipe import Recipe, RecipeError, Source, Splits
from dualavg_bench.recipe.user_code import user_code

MANY, MANY_BYTES = 10_000, 2**28  # a split with more of either is sampled
SAMPLE = 1_000  # examples of a sample; fewer if they exceed MANY_BYTES
SMALL_SAMPLE = 64  # the fewest examples of a sample
CHUNK, CHUNK_BYTES = 250, 2**24  # the most that `batch` is asked for at once
PLAIN = (str, bytes, int, float, type(None))


def read(recipe: Recipe, folder: Path) -> Splits:
    """Return the data of a recipe. Global generators are seeded, so random splits are the same every time."""
    with _seeded(), user_code(recipe.name, "data"):
        splits = recipe.data(folder.absolute())
    if not isinstance(splits, Splits):
        raise RecipeError(
            f"data of recipe {recipe.name} must return Splits(train, valid, test), "
            f"got {type(splits).__name__}."
        )
    for name, source in _sources(splits):
        if not callable(getattr(source, "batch", None)) or not hasattr(source, "__len__"):
            raise RecipeError(
                f"The {name} split of recipe {recipe.name} must have a length and a method "
                f"batch(indices, rng), got {type(source).__name__}; FromDataset, of dualavg_bench.recipe, "
                "makes one of a torch Dataset."
            )
    return splits


def fingerprint(splits: Splits, *, test: bool) -> str:
    """Return a hash of the splits' sizes and examples; of the test split, the size alone unless `test`."""
    digest = hashlib.sha256(repr([len(source) for _, source in _sources(splits)]).encode())
    for name, source in _sources(splits):
        if test or name != "test":
            digest.update(_examples(source))
    return digest.hexdigest()[:16]


def check(splits: Splits, recipe: Recipe) -> str:
    """Return the fingerprint without test, or raise a one-line error if the data cannot be trained on."""
    for name, source in _sources(splits):
        if len(source) == 0:
            raise RecipeError(f"The {name} split of recipe {recipe.name} is empty.")
    if len(splits.train) < recipe.batch_size:
        raise RecipeError(
            f"The training split of recipe {recipe.name} has {len(splits.train)} examples, less than one "
            f"batch of {recipe.batch_size}."
        )
    with user_code(recipe.name, "batch"):
        if _small_sample(splits) != _small_sample(splits):
            raise RecipeError(
                f"The data of recipe {recipe.name} differ from one reading to the next: what is random in "
                "them must come from the generator that `batch` gets, or from the global one of torch, numpy "
                "or Python."
            )
        return fingerprint(splits, test=False)


def _sources(splits: Splits) -> Iterator[tuple[str, Source]]:
    yield from (("train", splits.train), ("valid", splits.valid), ("test", splits.test))


def _examples(source: Source, most: int = MANY) -> bytes:
    """Return a hash of all examples, or of an even sample if there are more than `most`, or many bytes."""
    if len(source) == 0:
        return b""
    with _seeded():
        size = max(1, _add(hashlib.sha256(), source.batch(torch.tensor([len(source) // 2]), None)))
    count = len(source)
    if count > most or count * size > MANY_BYTES:
        count = min(count, max(SMALL_SAMPLE, min(most, SAMPLE, MANY_BYTES // size)))
    indices = torch.from_numpy(np.linspace(0, len(source) - 1, count).round().astype(np.int64))
    at_once = max(1, min(CHUNK, CHUNK_BYTES // size))
    digest = hashlib.sha256()
    with _seeded():
        for start in range(0, count, at_once):
            _add(digest, source.batch(indices[start : start + at_once], None))
    return digest.digest()


def _small_sample(splits: Splits) -> tuple[bytes, ...]:
    """Return hashes of a few examples, in training with augmentation too."""
    augmented = hashlib.sha256()
    with _seeded():
        rng = torch.Generator().manual_seed(0)
        _add(augmented, splits.train.batch(torch.arange(min(4, len(splits.train))), rng))
    plain = (_examples(source, SMALL_SAMPLE) for source in (splits.train, splits.valid))
    return augmented.digest(), *plain


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed the global generators in the block, for augmentation that draws from them; then restore them."""
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


def _add(digest: Any, value: Any) -> int:
    """Add a batch, or a part of one, to a hash; return how many bytes it has."""
    if isinstance(value, Mapping):
        value = sorted(value.items(), key=lambda item: str(item[0]))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    if isinstance(value, list | tuple) and not all(isinstance(part, PLAIN) for part in value):
        digest.update(f"list {len(value)}".encode())
        return sum(_add(digest, part) for part in value)
    if isinstance(value, torch.Tensor):
        dense = value.detach()
        dense = (dense.to_dense() if dense.layout != torch.strided else dense).resolve_conj().resolve_neg()
        digest.update(f"tensor {dense.dtype} {tuple(dense.shape)}".encode())
        flat = dense.cpu().contiguous().flatten()  # as bytes: numpy lacks some of torch's types
        return _add_bytes(digest, flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    if isinstance(value, np.ndarray | np.generic):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        return _add_bytes(digest, value.tobytes())
    # An object of the recipe's own counts by its type, whose code is traced.
    text = repr(value) if isinstance(value, (*PLAIN, list, tuple)) else type(value).__name__
    return _add_bytes(digest, text.encode("utf-8", "surrogatepass"))


def _add_bytes(digest: Any, data: Any) -> int:
    digest.update(f" {len(data)} ".encode())
    digest.update(data)
    return len(data)
