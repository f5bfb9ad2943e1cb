"""WikiText (2 or 103) as its authors publish it: `wiki.{train,valid,test}.tokens`, words between spaces."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualavg_bench.data.reading import check_count, folder_of, lines
from dualavg_bench.recipe import Splits

UNKNOWN, END = "<unk>", "<eos>"
EXPECTED = "UTF-8 text, words between spaces, beside the other two of wiki.{train,valid,test}.tokens"
OFFICIAL = (
    "get the word-level WikiText from "
    "https://www.salesforce.com/blog/the-wikitext-long-term-dependency-language-modeling-dataset/"
)


class Blocks:
    """Running text cut into blocks of `length` words, each with the one word that follows it.

    Block i holds the words i * length to (i + 1) * length, that last one included, so that every word but
    the very first is predicted once; what is left over at the end is left out.
    """

    def __init__(self, words: Tensor, length: int) -> None:
        self.words, self.length = words, length

    def __len__(self) -> int:
        """Return the number of blocks."""
        return max(0, len(self.words) - 1) // self.length

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the numbers of the words, (n, length + 1)."""
        return self.words[indices[:, None] * self.length + torch.arange(self.length + 1)].long()


def load(
    folder: Path,
    name: str,
    *,
    length: int,
    vocabulary: int | None = None,
    whole: bool = False,
    valid_blocks: int | None = None,
    test_blocks: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits, and number their words by how often they are in the training text.

    Args:
        folder: the folder with the three files, or the folder that it is in.
        name: what the folder with the three files is called: wikitext-2 or wikitext-103.
        length: words of a block.
        vocabulary: how many words are kept, `<unk>` among them; all that are in the training text if None.
        whole: the training text must have exactly `vocabulary` words: with fewer, it was cut or is another.
        valid_blocks: read only so many blocks of the validation text, from its start; all if None.
        test_blocks: the same of the test text.
        source: where the data set can be had, for messages.
    """
    inner = folder_of(folder, name, "wiki.train.tokens", EXPECTED, source)
    counts: Counter[str] = Counter()
    for words in _lines(inner, "train", source):
        counts.update(words)
    del counts[UNKNOWN]
    if whole and vocabulary is not None:
        path = inner / "wiki.train.tokens"
        check_count(path, "different words", len(counts) + 1, vocabulary, source)
    kept = counts.most_common(None if vocabulary is None else vocabulary - 1)
    numbers = {UNKNOWN: 0} | {word: i for i, (word, _) in enumerate(kept, start=1)}
    limits = {"train": None, "valid": valid_blocks, "test": test_blocks}
    return Splits(**{split: _read(inner, split, numbers, length, limits[split], source) for split in limits})


def _read(
    folder: Path, split: str, numbers: dict[str, int], length: int, limit: int | None, source: str
) -> Blocks:
    encoded = [
        np.fromiter((numbers.get(word, 0) for word in words), np.int32)
        for words in _lines(folder, split, source)
    ]
    words = torch.from_numpy(np.concatenate(encoded or [np.empty(0, np.int32)]))
    blocks = Blocks(words if limit is None else words[: limit * length + 1], length)
    if len(blocks) == 0:
        raise ValueError(
            f"{folder / f'wiki.{split}.tokens'} has {len(blocks.words)} words where at least {length + 1} "
            f"were expected; {source}."
        )
    return blocks


def _lines(folder: Path, split: str, source: str) -> Iterator[list[str]]:
    for line in lines(folder / f"wiki.{split}.tokens", EXPECTED, source):
        yield [*line.split(), END]
