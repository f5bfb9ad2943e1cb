"""Two kinds of text in `{train,valid,test}.txt`, one paragraph per line: first the old kind, then the new.

books-wiki has Wikipedia first and novels after it, and nothing in the files marks the change. It is found by
a fixed rule: count the lines that contain a mark of the new kind, such as a personal pronoun, and cut where
two rates, one before the cut and one after it, explain the counts best (maximum likelihood). In this
project's copy of books-wiki all three cuts are exact: the line after each is the first one of a novel.

The BPE is learnt from the old kind alone: a pretrained network comes with its vocabulary.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dualavg_bench.data import byte_pairs
from dualavg_bench.data.plain_text import EXPECTED, OFFICIAL
from dualavg_bench.data.reading import find_folder, random_part, read_lines
from dualavg_bench.data.wikitext import Blocks
from dualavg_bench.recipe import Splits

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NOVEL = re.compile(
    r"\b(?:I|you|said|me|my|she|her|your|him)\b"
)  # in 84% of a novel's lines, 15% of Wikipedia's
LEAST_LINES = 10  # of either kind, in each file


class TwoKinds:
    """Blocks of the new kind, then blocks of the old kind. `batch` returns them and which ones are old."""

    def __init__(self, new: Blocks | None, old: Blocks | None) -> None:
        self.new, self.old = new, old
        self.count_new = len(new or ())

    def __len__(self) -> int:
        """Return the number of blocks."""
        return self.count_new + len(self.old or ())

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return the numbers of the pieces (n, length + 1), and (n,) whether a block is of the old kind."""
        is_old = indices >= self.count_new
        parts = ((self.new, ~is_old, 0), (self.old, is_old, self.count_new))
        found = [
            (chosen, kind.batch(indices[chosen] - first, rng))
            for kind, chosen, first in parts
            if kind is not None
        ]
        blocks = found[0][1].new_empty(len(indices), found[0][1].shape[1])
        for chosen, rows in found:
            blocks[chosen] = rows
        return blocks, is_old


@dataclass(frozen=True)
class Text:
    """Both kinds of text as blocks of pieces, by split."""

    new: dict[str, Blocks]
    old: dict[str, Blocks]

    def pretraining(self) -> Splits:
        """Return the splits of the old kind."""
        return Splits(**{split: TwoKinds(None, blocks) for split, blocks in self.old.items()})

    def fine_tuning(self) -> Splits:
        """Return the new kind to train on, and both kinds to evaluate on."""
        scored = {split: TwoKinds(self.new[split], self.old[split]) for split in ("valid", "test")}
        return Splits(train=TwoKinds(self.new["train"], None), **scored)


def load(
    folder: Path,
    name: str,
    *,
    length: int,
    pieces: int,
    old_lines: int | None,
    new_lines: int | None,
    blocks: dict[str, int],
    mark: re.Pattern[str] = NOVEL,
    source: str = OFFICIAL,
) -> Text:
    """Read both kinds, and encode them by a byte-level BPE that is learnt from the old training lines.

    Args:
        folder: the folder with the three files, or its parent folder.
        name: name of the folder with the three files.
        length: pieces per block.
        pieces: size of the vocabulary, including the 256 bytes.
        old_lines: use only so many old training lines, a fixed random part; all if None.
        new_lines: the same for the new ones.
        blocks: how many blocks of each kind to use at most, by split: valid and test.
        mark: matches most lines of the new kind and few of the old one.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "train.txt", EXPECTED, source)
    old: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    for split in ("train", "valid", "test"):
        path = inner / f"{split}.txt"
        lines = [line.strip() for line in read_lines(path, EXPECTED, source) if not line.isspace()]
        cut = change(lines, mark)
        if cut is None:
            raise ValueError(f"{path} does not have two kinds of text, one after the other; {source}.")
        old[split], new[split] = lines[:cut], lines[cut:]
    old["train"], new["train"] = random_part(old["train"], old_lines), random_part(new["train"], new_lines)
    bpe = byte_pairs.learn(map(_ended, old["train"]), pieces, prefix_space=False)
    limits = {"train": None, **blocks}
    new_blocks, old_blocks = (
        {split: _blocks(bpe, kind[split], length, limits[split]) for split in kind} for kind in (new, old)
    )
    return Text(new_blocks, old_blocks)


def change(lines: Sequence[str], mark: re.Pattern[str]) -> int | None:
    """Return the number of lines before the cut; None unless marks are more frequent after it than before.

    With m marks in n lines, the log-likelihood of the best rate is m log(m/n) + (n - m) log((n - m)/n). The
    cut maximizes the sum of both sides.

    Examples:
        >>> change([*("It is.",) * 20, *("I am.",) * 15], re.compile("I am"))
        20
    """
    marks = [mark.search(line) is not None for line in lines]
    total, n, before = sum(marks), len(marks), 0
    best, cut = -math.inf, None
    for k, marked in enumerate(marks[:-LEAST_LINES], start=1):
        before += marked
        after = total - before
        if k < LEAST_LINES or before / k >= after / (n - k):
            continue
        likelihood = _log_likelihood(before, k) + _log_likelihood(after, n - k)
        if likelihood > best:
            best, cut = likelihood, k
    return cut


def _log_likelihood(marks: int, n: int) -> float:
    return sum(count * math.log(count / n) for count in (marks, n - marks) if count)


def _ended(line: str) -> str:
    return f" {line}\n"


def _blocks(bpe: "Tokenizer", lines: Sequence[str], length: int, limit: int | None) -> Blocks:
    encoded = bpe.encode_batch_fast([_ended(line) for line in lines], add_special_tokens=False)
    numbers = torch.from_numpy(np.concatenate([np.array(one.ids, np.int32) for one in encoded]))
    return Blocks(numbers if limit is None else numbers[: limit * length + 1], length)
