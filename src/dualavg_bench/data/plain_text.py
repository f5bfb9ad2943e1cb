"""Text in `{train,valid,test}.txt`, one paragraph per line, as examples for masked language modeling.

The tokens come from a byte-level BPE that is learnt from the training text alone. It can encode any text. No
text contains the five special tokens: their numbers come before those of the BPE.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data import byte_pairs
from dualavg_bench.data.reading import find_folder, random_part, read_lines, reading
from dualavg_bench.recipe import Splits

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, PAD, END, UNKNOWN, MASK = range(5)  # in the order of fairseq's and transformers' RoBERTa
SPECIAL = 5
HIDDEN = 0.15  # fraction of an example's tokens
AS_MASK, AS_RANDOM = 0.8, 0.1  # fractions of the hidden tokens; the rest is unchanged
CHUNK = 10_000  # lines encoded at a time
EXPECTED = "UTF-8 text, one paragraph per line, in each of {train,valid,test}.txt"
OFFICIAL = (
    "get Wikipedia's articles from https://dumps.wikimedia.org and BookCorpus from "
    "https://huggingface.co/datasets/bookcorpus/bookcorpus and write them in this format"
)

Batch = tuple[Tensor, Tensor, Tensor]


class Masked:
    """Examples of complete lines, `<s>` and then each line with `</s>` after it, with some tokens hidden.

    15% of an example's tokens are hidden: of these 80% become `<mask>`, 10% a random token, 10% stay. `rng`
    chooses them anew at every step; without it, the choice depends on the example's number alone.

    Args:
        tokens: all lines, each with its `</s>`.
        breaks: the positions in `tokens` where examples begin, and where the last one ends.
        bpe: the encoding of the tokens.
    """

    def __init__(self, tokens: Tensor, breaks: Tensor, bpe: "Tokenizer") -> None:
        self.tokens, self.breaks, self.bpe = tokens, breaks, bpe
        self.vocabulary = SPECIAL + bpe.get_vocab_size()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.breaks) - 1

    def example(self, i: int) -> Tensor:
        """Return the tokens of an example, with none hidden."""
        begin, end = self.breaks[i : i + 2].tolist()
        return torch.cat([torch.tensor([START]), self.tokens[begin:end].long()])

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:
        """Return padded tokens (n, longest), the hidden positions in the flattened tokens, and the truth."""
        begin, sizes = self.breaks[indices], self.breaks[indices + 1] - self.breaks[indices]
        columns = torch.arange(int(sizes.max()))
        numbers = (begin[:, None] + columns).clamp(max=len(self.tokens) - 1)
        lines = torch.where(columns < sizes[:, None], self.tokens[numbers].long(), PAD)
        truth = torch.cat([torch.full_like(begin, START)[:, None], lines], dim=1)
        if rng is None:
            rows = [
                torch.rand(1 + n, 3, generator=_seeded(i))
                for i, n in zip(indices.tolist(), sizes, strict=True)
            ]
            uniform = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        else:
            uniform = torch.rand(*truth.shape, 3, generator=rng)
        tokens, hidden = self._hide(truth, uniform)
        positions = hidden.flatten().nonzero().flatten()
        return tokens, positions, truth.flatten()[positions]

    def text(self, tokens: Tensor) -> str:
        """Decode tokens, without the special ones."""
        return str(self.bpe.decode([token - SPECIAL for token in tokens.tolist() if token >= SPECIAL]))

    def with_gaps(self, i: int, positions: Tensor) -> str:
        """Return the text of an example with gaps at the sorted `positions`."""
        *pieces, last = self.example(i).tensor_split((positions + 1).tolist())
        return " [masked]".join([*(self.text(piece[:-1]) for piece in pieces), self.text(last)])

    def _hide(self, truth: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens, some of them replaced, and which ones; `uniform` has three numbers per token."""
        order, kind, drawn = uniform.unbind(2)
        candidates = truth >= SPECIAL
        # Randomly rounded up or down, as in fairseq; at least one, because the mean loss of none is nan. The
        # random number is that of <s>, which is no candidate.
        count = (HIDDEN * candidates.sum(dim=1) + order[:, 0]).long().clamp(min=1)
        rank = torch.where(candidates, order, 1.0).argsort(dim=1).argsort(dim=1)
        hidden = rank < count[:, None]
        other = SPECIAL + (drawn * (self.vocabulary - SPECIAL)).long()
        replaced = torch.where(kind < AS_MASK + AS_RANDOM, other, truth)
        replaced = torch.where(kind < AS_MASK, MASK, replaced)
        return torch.where(hidden, replaced, truth), hidden


def _seeded(i: int) -> torch.Generator:
    return torch.Generator().manual_seed(i)


def load(
    folder: Path,
    name: str,
    *,
    length: int,
    vocabulary: int,
    train_lines: int | None = None,
    least_bytes: int = 0,
    valid_examples: int | None = None,
    test_examples: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits, learn the BPE from the training lines, and pack lines into examples.

    Args:
        folder: the folder with the three files, or its parent folder.
        name: name of the folder with the three files.
        length: maximum number of tokens of an example, including `<s>` and `</s>`.
        vocabulary: maximum number of tokens, including the five special ones and the 256 bytes.
        train_lines: use only so many training lines, a fixed random part; all if None.
        least_bytes: refuse a shorter training text.
        valid_examples: use only the first examples of the validation text; all if None.
        test_examples: the same for the test text.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "train.txt", EXPECTED, source)
    with reading(path := inner / "train.txt", EXPECTED, source):
        size = path.stat().st_size
    if size < least_bytes:
        raise ValueError(f"{path} has {size:,} bytes, expected at least {least_bytes:,}; {source}.")
    part = None if train_lines is None else random_part(list(_lines(inner, "train", source)), train_lines)

    def training() -> Iterable[str]:
        return _lines(inner, "train", source) if part is None else part

    bpe = byte_pairs.learn(training(), vocabulary - SPECIAL, prefix_space=False)
    return Splits(
        train=_pack(bpe, training(), length, None),
        valid=_pack(bpe, _lines(inner, "valid", source), length, valid_examples),
        test=_pack(bpe, _lines(inner, "test", source), length, test_examples),
    )


def _pack(bpe: "Tokenizer", lines: Iterable[str], length: int, limit: int | None) -> Masked:
    """Fill each example with complete lines. Only a line that is longer than an example is cut."""
    room = length - 1  # without <s>
    parts: list[NDArray[np.int32]] = []
    breaks, used, end = [0], 0, 0
    for line in _encoded(bpe, lines):
        parts.append(line)
        for size in _pieces(len(line), room):
            if used + size > room:
                breaks.append(end)
                used = 0
            used, end = used + size, end + size
        if limit is not None and len(breaks) > limit:
            break
    breaks = [*breaks, end][: None if limit is None else limit + 1]
    return Masked(torch.from_numpy(np.concatenate(parts)), torch.tensor(breaks), bpe)


def _pieces(size: int, room: int) -> list[int]:
    """Return the sizes of a line's pieces. None is a lone `</s>`, which would have no token to hide."""
    sizes = [min(room, size - begin) for begin in range(0, size, room)]
    if sizes[-1] == 1 and len(sizes) > 1:
        sizes[-2:] = [room - 1, 2]
    return sizes


def _encoded(bpe: "Tokenizer", lines: Iterable[str]) -> Iterator[NDArray[np.int32]]:
    remaining = iter(lines)
    while chunk := list(islice(remaining, CHUNK)):
        for encoding in bpe.encode_batch_fast(chunk, add_special_tokens=False):
            yield np.array([*(number + SPECIAL for number in encoding.ids), END], np.int32)


def _lines(folder: Path, split: str, source: str) -> Iterator[str]:
    """Yield the lines that are not blank, stripped."""
    return filter(None, map(str.strip, read_lines(folder / f"{split}.txt", EXPECTED, source)))
