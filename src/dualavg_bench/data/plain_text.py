"""Text in `{train,valid,test}.txt`, one paragraph per line, as examples for masked language modeling.

The tokens come from a byte-level BPE that is learnt from the training text alone. It can encode any text. No
text contains the five special tokens: their numbers come before those of the BPE.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data import byte_pairs
from dualavg_bench.data.reading import find_folder, read_lines, reading
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
        truths = [self.example(i) for i in indices.tolist()]
        longest = max(map(len, truths))
        inputs, positions = [], []
        for row, (i, truth) in enumerate(zip(indices.tolist(), truths, strict=True)):
            tokens, hidden = self._hide(truth, torch.Generator().manual_seed(i) if rng is None else rng)
            inputs.append(tokens)
            positions.append(row * longest + hidden)
        hidden = torch.cat(positions)
        return _padded(inputs), hidden, _padded(truths).flatten()[hidden]

    def text(self, tokens: Tensor) -> str:
        """Decode tokens, without the special ones."""
        return str(self.bpe.decode([token - SPECIAL for token in tokens.tolist() if token >= SPECIAL]))

    def with_gaps(self, i: int, positions: Tensor) -> str:
        """Return the text of an example with gaps at the sorted `positions`."""
        *pieces, last = self.example(i).tensor_split((positions + 1).tolist())
        return " [masked]".join([*(self.text(piece[:-1]) for piece in pieces), self.text(last)])

    def _hide(self, truth: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        candidates = (truth >= SPECIAL).nonzero().flatten()
        order = torch.rand(len(candidates), generator=rng).argsort()
        # Randomly rounded up or down, as in fairseq; at least one, because the mean loss of none is nan.
        count = int(HIDDEN * len(candidates) + torch.rand((), generator=rng).item())
        hidden = candidates[order[: max(1, count)]]
        uniform = torch.rand(len(hidden), generator=rng)
        drawn = torch.randint(SPECIAL, self.vocabulary, (len(hidden),), generator=rng)
        replaced = torch.where(uniform < AS_MASK + AS_RANDOM, drawn, truth[hidden])
        tokens = truth.clone()
        tokens[hidden] = torch.where(uniform < AS_MASK, MASK, replaced)
        return tokens, hidden


def _padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def load(
    folder: Path,
    name: str,
    *,
    length: int,
    vocabulary: int,
    one_in: int = 1,
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
        one_in: read only one training line in `one_in`, to save time.
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
    training = islice(_lines(inner, "train", source), 0, None, one_in)
    bpe = byte_pairs.learn(training, vocabulary - SPECIAL, prefix_space=False)
    selected = {"train": (one_in, None), "valid": (1, valid_examples), "test": (1, test_examples)}
    return Splits(
        **{
            split: _pack(bpe, islice(_lines(inner, split, source), 0, None, step), length, limit)
            for split, (step, limit) in selected.items()
        }
    )


def _pack(bpe: "Tokenizer", lines: Iterator[str], length: int, limit: int | None) -> Masked:
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


def _encoded(bpe: "Tokenizer", lines: Iterator[str]) -> Iterator[NDArray[np.int32]]:
    while chunk := list(islice(lines, CHUNK)):
        for encoding in bpe.encode_batch_fast(chunk, add_special_tokens=False):
            yield np.array([*(number + SPECIAL for number in encoding.ids), END], np.int32)


def _lines(folder: Path, split: str, source: str) -> Iterator[str]:
    """Yield the lines that are not blank, stripped."""
    return filter(None, map(str.strip, read_lines(folder / f"{split}.txt", EXPECTED, source)))
