"""What a recipe's `data` returns: three splits, each read in batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

Batch = Any


class Source(Protocol):
    """A split of a data set, read in batches.

    If its items are no single examples but, say, batches of sentences, an attribute `examples` may give the
    number of examples in it; the report names it.
    """

    def __len__(self) -> int:
        """Return the number of examples."""

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:
        """Return the examples at `indices`: augmented with `rng` in training, as they are if it is None."""


class FromDataset:
    """A map-style torch data set as a `Source`. Its augmentation draws from the global generators."""

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Batch] = default_collate
    ) -> None:
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.dataset)  # type: ignore[arg-type]

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:  # noqa: ARG002
        """Return the examples at `indices`, collated."""
        return self.collate([self.dataset[i] for i in indices.tolist()])


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set. Tuning reads `valid` only; `test` is read once, for the winners."""

    train: Source
    valid: Source
    test: Source
