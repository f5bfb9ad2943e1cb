"""Sentence pairs as `{train,valid,test}.{de,en}`, one sentence a line, and the pieces they are cut into."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data.reading import check_count, folder_of, lines
from dualavg_bench.recipe import Splits

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # numbered as in fairseq's dictionaries
PAD, END = 1, 2
LANGUAGES = ("de", "en")
EXPECTED = "UTF-8 text, one sentence a line, beside the others of {train,valid,test}.{de,en}"
MULTIPLE = 8  # sentences of a batch, where there are that many: fairseq's default
OFFICIAL = (
    "prepare-iwslt14.sh of https://github.com/facebookresearch/fairseq/tree/main/examples/translation writes "
    "IWSLT'14 to iwslt14.tokenized.de-en/tmp, https://tatoeba.org/en/downloads has other sentences"
)


Rows = list[list[int]]  # the pieces of each sentence


class Vocabulary:
    """Pieces of words, learnt from `sentences` by byte-pair encoding; any text can be written in them."""

    def __init__(self, sentences: Iterable[str], size: int) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        self._pieces = Tokenizer(models.BPE())
        # A space before the first word too, so that a word is written alike wherever it stands.
        self._pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        self._pieces.decoder = decoders.ByteLevel()
        self._pieces.train_from_iterator(sentences, trainer)
        self._pieces.encode_special_tokens = True  # "</s>" in a sentence is four letters, not its end

    def __len__(self) -> int:
        """Return the number of pieces, the special ones included."""
        return int(self._pieces.get_vocab_size())

    def encode(self, sentences: Sequence[str]) -> Rows:
        """Return the numbers of each sentence's pieces, with END at the end."""
        encoded = self._pieces.encode_batch(list(sentences), add_special_tokens=False)
        return [[*one.ids, END] for one in encoded]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Return the sentences; whatever is special is left out."""
        return [str(self._pieces.decode(list(row))).removeprefix(" ") for row in rows]


class Batch(TypedDict):
    """Sentences as numbers, (n, longest) with PAD behind the shorter ones, and as text."""

    source: Tensor
    target: Tensor
    given: list[str]
    wanted: list[str]
    vocabulary: Vocabulary  # of the target


class Pairs:
    """Sentence pairs, grouped by length: an example is a whole batch of at most `tokens`, padding included.

    Tokens are counted as fairseq's --max-tokens does: sentences times the longest of all of them, German or
    English. The groups are fixed; who reads them shuffles their order.
    """

    def __init__(
        self,
        given: list[str],
        wanted: list[str],
        source: Rows,
        target: Rows,
        vocabulary: Vocabulary,
        tokens: int,
    ) -> None:
        self.given, self.wanted, self.vocabulary = given, wanted, vocabulary
        self.source, self.target = source, target
        self.groups = _grouped(np.array([[len(row) for row in rows] for rows in (source, target)]), tokens)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.groups)

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:  # noqa: ARG002
        """Return the batches at `indices`, padded together as one."""
        return self.pick([number for i in indices.tolist() for number in self.groups[i]])

    def pick(self, numbers: Sequence[int]) -> Batch:
        """Return the sentences of these lines of the files, counted from 0."""
        return Batch(
            source=_padded([self.source[i] for i in numbers]),
            target=_padded([self.target[i] for i in numbers]),
            given=[self.given[i] for i in numbers],
            wanted=[self.wanted[i] for i in numbers],
            vocabulary=self.vocabulary,
        )


def load(
    folder: Path,
    name: str,
    *,
    pieces: tuple[int, int],
    tokens: int,
    pairs: tuple[int, int, int] | None = None,
    valid_pairs: int | None = None,
    test_pairs: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits; both vocabularies are learnt from the training text alone.

    Args:
        folder: the folder with the six files, or the folder that it is in.
        name: what the folder with the six files is called.
        pieces: sizes of the German and the English vocabulary.
        tokens: of a batch, at most.
        pairs: how many there must be for training, validation and test; any number if None.
        valid_pairs: read only so many pairs of the validation files, from their start; all if None.
        test_pairs: the same of the test files.
        source: where the data set can be had, for messages.
    """
    inner = folder_of(folder, name, "train.de", EXPECTED, source)
    limits = {"train": None, "valid": valid_pairs, "test": test_pairs}
    texts = {split: _read_pair(inner, split, source) for split in limits}
    for split, count in zip(limits, pairs or (), strict=False):
        check_count(inner / f"{split}.de", "sentences", len(texts[split][0]), count, source)
    german, english = (Vocabulary(side, size) for side, size in zip(texts["train"], pieces, strict=True))
    made = {}
    for split, sides in texts.items():
        given, wanted = (side[: limits[split]] for side in sides)
        rows = german.encode(given), english.encode(wanted)
        for language, side in zip(LANGUAGES, rows, strict=True):
            _check_longest(inner / f"{split}.{language}", side, tokens, source)
        made[split] = Pairs(given, wanted, *rows, english, tokens)
    return Splits(**made)


def _read_pair(folder: Path, split: str, source: str) -> tuple[list[str], list[str]]:
    paths = [folder / f"{split}.{language}" for language in LANGUAGES]
    given, wanted = (_read(path, source) for path in paths)
    if len(given) != len(wanted):
        raise ValueError(
            f"{paths[0]} has {len(given):,} sentences and {paths[1]} {len(wanted):,}, where as many were "
            f"expected in both; {source}."
        )
    return given, wanted


def _read(path: Path, source: str) -> list[str]:
    sentences = [line.strip() for line in lines(path, EXPECTED, source)]
    if any("@@ " in sentence for sentence in sentences):
        raise ValueError(f"{path} is cut into pieces ('@@ ') where whole words were expected; {source}.")
    return sentences


def _check_longest(path: Path, rows: Rows, tokens: int, source: str) -> None:
    lengths = [len(row) for row in rows]
    if (longest := max(lengths)) > tokens:
        raise ValueError(
            f"{path} has {longest:,} tokens in line {lengths.index(longest) + 1} where {tokens:,} at most, a "
            f"whole batch, were expected: take this pair out of both files, or other sentences; {source}."
        )


def _grouped(lengths: NDArray[np.int64], tokens: int) -> list[list[int]]:
    """Return the batches; `lengths` has a row for each language."""
    size = lengths.max(axis=0).tolist()
    groups: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for number in np.lexsort((lengths[1], lengths[0])).tolist():  # by German, then by English length
        longest = max(longest, size[number])
        while current and (len(current) + 1) * longest > tokens:
            cut = len(current) // MULTIPLE * MULTIPLE or len(current)
            groups.append(current[:cut])
            current = current[cut:]
            longest = max(size[i] for i in (*current, number))
        current.append(number)
    return [*groups, current]


def _padded(rows: Rows) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), PAD)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = torch.tensor(row)
    return padded
