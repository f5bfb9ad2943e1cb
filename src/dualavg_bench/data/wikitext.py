"""WikiText-2 or -103 in its official format: `wiki.{train,valid,test}.tokens`, words between spaces.

`load` numbers the words, as the paper does. `load_pieces` is for a miniature: it takes a random part of the
training lines, and encodes all text by a small BPE, which needs no `<unk>` for rare words.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualavg_bench.data import byte_pairs
from dualavg_bench.data.reading import check_count, find_folder, random_part, read_lines
from dualavg_bench.recipe import Splits

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN, END = "<unk>", "<eos>"
EXPECTED = "UTF-8 text, words between spaces, in each of wiki.{train,valid,test}.tokens"
OFFICIAL = (
    "get the word-level WikiText from "
    "https://www.salesforce.com/blog/the-wikitext-long-term-dependency-language-modeling-dataset/"
)


class Blocks:
    """Text cut into blocks of `length` words, each with the one word that follows it.

    Block i has the words i * length to (i + 1) * length, inclusive: every word but the first is predicted
    once. Words after the last full block are dropped.
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
    exact_vocabulary: bool = False,
    valid_blocks: int | None = None,
    test_blocks: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits, and number the words by their frequency in the training text.

    Args:
        folder: the folder with the three files, or its parent folder.
        name: name of the folder with the three files: wikitext-2 or wikitext-103.
        length: words per block.
        vocabulary: number of words to keep, including `<unk>`; all words of the training text if None.
        exact_vocabulary: refuse a training text that does not have exactly `vocabulary` different words.
        valid_blocks: use only the first blocks of the validation text; all if None.
        test_blocks: the same for the test text.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "wiki.train.tokens", EXPECTED, source)
    counts: Counter[str] = Counter()
    for words in _lines(inner, "train", source):
        counts.update(words)
    del counts[UNKNOWN]
    if exact_vocabulary and vocabulary is not None:
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
    words = torch.from_numpy(np.concatenate(encoded))
    return _blocks(folder / f"wiki.{split}.tokens", words, "words", length, limit, source)


def load_pieces(
    folder: Path,
    name: str,
    *,
    length: int,
    pieces: int,
    train_lines: int | None = None,
    valid_blocks: int | None = None,
    test_blocks: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits, and encode them by a byte-level BPE that is learnt from the training lines.

    Blank lines are left out. A line ends with a newline, which is a piece of its own.

    Args:
        folder: the folder with the three files, or its parent folder.
        name: name of the folder with the three files.
        length: pieces per block.
        pieces: size of the vocabulary, including the 256 bytes.
        train_lines: use only so many training lines, a fixed random part; all if None.
        valid_blocks: use only the first blocks of the validation text; all if None.
        test_blocks: the same for the test text.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "wiki.train.tokens", EXPECTED, source)
    limits = {"train": None, "valid": valid_blocks, "test": test_blocks}
    lines = {split: list(_text(inner, split, source)) for split in limits}
    lines["train"] = random_part(lines["train"], train_lines)
    bpe = byte_pairs.learn(lines["train"], pieces, prefix_space=False)
    return Splits(
        **{
            split: _blocks(
                inner / f"wiki.{split}.tokens", _encoded(bpe, lines[split]), "pieces", length, limit, source
            )
            for split, limit in limits.items()
        }
    )


def _encoded(bpe: "Tokenizer", lines: Iterable[str]) -> Tensor:
    encoded = bpe.encode_batch_fast(list(lines), add_special_tokens=False)
    return torch.from_numpy(np.concatenate([np.array(one.ids, np.int32) for one in encoded]))


def _text(folder: Path, split: str, source: str) -> Iterator[str]:
    """Yield the lines that are not blank. `<unk>` loses its brackets, so that BPE makes one piece of it."""
    for line in read_lines(folder / f"wiki.{split}.tokens", EXPECTED, source):
        if not line.isspace():
            yield f" {line.strip()}\n".replace(UNKNOWN, "unk")


def _blocks(path: Path, numbers: Tensor, unit: str, length: int, limit: int | None, source: str) -> Blocks:
    blocks = Blocks(numbers if limit is None else numbers[: limit * length + 1], length)
    if len(blocks) == 0:
        raise ValueError(f"{path} has {len(numbers)} {unit}, expected at least {length + 1}; {source}.")
    return blocks


def _lines(folder: Path, split: str, source: str) -> Iterator[list[str]]:
    for line in read_lines(folder / f"wiki.{split}.tokens", EXPECTED, source):
        yield [*line.split(), END]
