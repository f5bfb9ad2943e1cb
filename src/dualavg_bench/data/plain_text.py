"""Running text in `{train,valid,test}.txt`, one paragraph a line, as examples for masked language modeling.

Text becomes tokens by a byte-level BPE that is learnt from the training text alone. It can spell any text,
and no text can spell the five special tokens: they come before the BPE's own numbers.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data.reading import folder_of, lines, reading
from dualavg_bench.recipe import Splits

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, PAD, END, UNKNOWN, MASK = range(5)  # in the order of fairseq's and transformers' RoBERTa
SPECIAL = 5
HIDDEN = 0.15  # of an example's tokens
AS_MASK, AS_RANDOM = 0.8, 0.1  # of the hidden ones; the others stay as they are
CHUNK = 10_000  # lines that are encoded at a time
EXPECTED = "UTF-8 text, one paragraph a line, beside the other two of {train,valid,test}.txt"
OFFICIAL = (
    "write Wikipedia's articles (https://dumps.wikimedia.org) and BookCorpus' books "
    "(https://huggingface.co/datasets/bookcorpus/bookcorpus) there in this form"
)

Batch = tuple[Tensor, Tensor, Tensor]


class Masked:
    """Examples of whole lines: `<s>`, then lines, each with `</s>` after it; some of their tokens hidden.

    Of an example's tokens, 15% are hidden: eight in ten of them become `<mask>`, one a token drawn from all,
    one stays. `rng` hides others at every step; without it, an example's number decides, whatever the batch.

    Args:
        tokens: the lines, one after the other, each with its `</s>`.
        breaks: where in `tokens` examples begin, and where the last one ends.
        bpe: what the tokens were made by.
    """

    def __init__(self, tokens: Tensor, breaks: Tensor, bpe: "Tokenizer") -> None:
        self.tokens, self.breaks, self.bpe = tokens, breaks, bpe
        self.vocabulary = SPECIAL + bpe.get_vocab_size()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.breaks) - 1

    def example(self, i: int) -> Tensor:
        """Return the tokens of an example, none of them hidden."""
        begin, end = self.breaks[i : i + 2].tolist()
        return torch.cat([torch.tensor([START]), self.tokens[begin:end].long()])

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:
        """Return padded tokens (n, longest), the places of hidden ones in them laid flat, and the truth."""
        truths = [self.example(i) for i in indices.tolist()]
        longest = max(map(len, truths))
        shown, places = [], []
        for row, (i, truth) in enumerate(zip(indices.tolist(), truths, strict=True)):
            own = torch.Generator().manual_seed(i) if rng is None else rng
            tokens, hidden = self._hide(truth, own)
            shown.append(tokens)
            places.append(row * longest + hidden)
        where = torch.cat(places)
        return _padded(shown), where, _padded(truths).flatten()[where]

    def text(self, tokens: Tensor) -> str:
        """Return what tokens spell; special ones are left out."""
        return str(self.bpe.decode([token - SPECIAL for token in tokens.tolist() if token >= SPECIAL]))

    def with_gaps(self, i: int, places: Tensor) -> str:
        """Return the text of an example, with gaps at `places`, which are in order."""
        *pieces, last = self.example(i).tensor_split((places + 1).tolist())
        return " [masked]".join([*(self.text(piece[:-1]) for piece in pieces), self.text(last)])

    def _hide(self, truth: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        candidates = (truth >= SPECIAL).nonzero().flatten()
        order = torch.rand(len(candidates), generator=rng).argsort()
        # Rounded up or down by chance, as fairseq does; never none, whose mean loss would be no number.
        count = int(HIDDEN * len(candidates) + torch.rand((), generator=rng).item())
        hidden = candidates[order[: max(1, count)]]
        fate = torch.rand(len(hidden), generator=rng)
        drawn = torch.randint(SPECIAL, self.vocabulary, (len(hidden),), generator=rng)
        replaced = torch.where(fate < AS_MASK + AS_RANDOM, drawn, truth[hidden])
        tokens = truth.clone()
        tokens[hidden] = torch.where(fate < AS_MASK, MASK, replaced)
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
        folder: the folder with the three files, or the folder that it is in.
        name: what the folder with the three files is called.
        length: most tokens of an example, `<s>` and `</s>` among them.
        vocabulary: how many tokens there are, at most, the five special ones and the 256 bytes among them.
        one_in: read one training line in so many, where all would take too long.
        least_bytes: refuse a training text that is shorter.
        valid_examples: keep only so many examples of the validation text, from its start; all if None.
        test_examples: the same of the test text.
        source: where the data set can be had, for messages.
    """
    inner = folder_of(folder, name, "train.txt", EXPECTED, source)
    with reading(path := inner / "train.txt", EXPECTED, source):
        size = path.stat().st_size
    if size < least_bytes:
        raise ValueError(f"{path} has {size:,} bytes where {least_bytes:,} at least were expected; {source}.")
    bpe = _learn(islice(_lines(inner, "train", source), 0, None, one_in), vocabulary)
    wanted = {"train": (one_in, None), "valid": (1, valid_examples), "test": (1, test_examples)}
    return Splits(
        **{
            split: _pack(bpe, islice(_lines(inner, split, source), 0, None, step), length, limit)
            for split, (step, limit) in wanted.items()
        }
    )


def _learn(lines: Iterator[str], vocabulary: int) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(lines, trainer)
    return bpe


def _pack(bpe: "Tokenizer", lines: Iterator[str], length: int, limit: int | None) -> Masked:
    """Fill each example with whole lines while they fit; only a line that never fits is cut."""
    room = length - 1  # beside <s>
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
    """Cut a line into pieces that fit; the last has a token beside `</s>`, which alone cannot be hidden."""
    sizes = [min(room, size - begin) for begin in range(0, size, room)]
    if sizes[-1] == 1 and len(sizes) > 1:
        sizes[-2:] = [room - 1, 2]
    return sizes


def _encoded(bpe: "Tokenizer", lines: Iterator[str]) -> Iterator[NDArray[np.int32]]:
    while chunk := list(islice(lines, CHUNK)):
        for encoding in bpe.encode_batch_fast(chunk, add_special_tokens=False):
            yield np.array([*(number + SPECIAL for number in encoding.ids), END], np.int32)


def _lines(folder: Path, split: str, source: str) -> Iterator[str]:
    """Lines that have something in them."""
    return filter(None, map(str.strip, lines(folder / f"{split}.txt", EXPECTED, source)))
