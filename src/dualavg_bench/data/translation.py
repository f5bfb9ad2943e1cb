"""Sentence pairs in `{train,valid,test}.{de,en}`, one sentence per line, encoded by BPE."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data import byte_pairs
from dualavg_bench.data.reading import check_count, find_folder, random_part, read_lines
from dualavg_bench.recipe import Splits

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # numbered as in fairseq's dictionaries
PAD, END = 1, 2
LANGUAGES = ("de", "en")
EXPECTED = "UTF-8 text, one sentence per line, in each of {train,valid,test}.{de,en}"
MULTIPLE = 8  # batches of at least 8 sentences have a multiple of 8: fairseq's default
OFFICIAL = (
    "for IWSLT'14, run prepare-iwslt14.sh of "
    "https://github.com/facebookresearch/fairseq/tree/main/examples/translation, which writes "
    "iwslt14.tokenized.de-en/tmp; other sentence pairs are at https://tatoeba.org/en/downloads"
)

Rows = list[list[int]]  # the pieces of each sentence


class Vocabulary:
    """A byte-pair encoding, learnt from `sentences`; any text can be encoded."""

    def __init__(self, sentences: Iterable[str], size: int) -> None:
        self._bpe = byte_pairs.learn(sentences, size, prefix_space=True, special=SPECIAL)

    def __len__(self) -> int:
        """Return the number of pieces, including the special ones."""
        return int(self._bpe.get_vocab_size())

    def encode(self, sentences: Sequence[str]) -> Rows:
        """Return the numbers of each sentence's pieces, with END at the end."""
        encoded = self._bpe.encode_batch(list(sentences), add_special_tokens=False)
        return [[*one.ids, END] for one in encoded]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Return the sentences, without special pieces."""
        return [str(self._bpe.decode(list(row))).removeprefix(" ") for row in rows]


class Batch(TypedDict):
    """Sentence pairs as numbers (n, longest), padded at the end with PAD, and as text."""

    source: Tensor
    target: Tensor
    given: list[str]
    wanted: list[str]
    vocabulary: Vocabulary  # of the target language


class Pairs:
    """Sentence pairs, grouped by length: one example is a batch of at most `tokens` tokens with padding.

    Tokens are counted as fairseq's --max-tokens counts them: the number of sentences times the longest of
    them, German or English. The groups are fixed; training shuffles their order.
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

    @property
    def examples(self) -> int:
        """The number of sentence pairs."""
        return len(self.given)

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:  # noqa: ARG002
        """Return the batches at `indices` as one batch."""
        return self.pick([number for i in indices.tolist() for number in self.groups[i]])

    def pick(self, numbers: Sequence[int]) -> Batch:
        """Return the sentence pairs of these lines of the files, counted from 0."""
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
    most_words: int | None = None,
    train_pairs: int | None = None,
    valid_pairs: int | None = None,
    test_pairs: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits. Both vocabularies are learnt from the training text alone.

    Args:
        folder: the folder with the six files, or its parent folder.
        name: name of the folder with the six files.
        pieces: sizes of the German and the English vocabulary.
        tokens: maximum number of tokens of a batch.
        pairs: required numbers of pairs for training, validation and test; any if None.
        most_words: leave out pairs in which a sentence has more words, of all splits; none if None.
        train_pairs: use only so many training pairs, a fixed random part; all if None.
        valid_pairs: use only the first pairs of the validation files; all if None.
        test_pairs: the same for the test files.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "train.de", EXPECTED, source)
    limits = {"train": None, "valid": valid_pairs, "test": test_pairs}
    texts = {split: _read_pair(inner, split, source) for split in limits}
    if pairs is not None:
        for split, count in zip(limits, pairs, strict=True):
            check_count(inner / f"{split}.de", "sentences", len(texts[split][0]), count, source)
    if most_words is not None:
        texts = {split: _short(inner / f"{split}.de", *texts[split], most_words, source) for split in texts}
    if train_pairs is not None:
        part = random_part(list(zip(*texts["train"], strict=True)), train_pairs)
        texts["train"] = [given for given, _ in part], [wanted for _, wanted in part]
    german, english = (Vocabulary(side, size) for side, size in zip(texts["train"], pieces, strict=True))
    splits = {}
    for split, sides in texts.items():
        given, wanted = (side[: limits[split]] for side in sides)
        rows = german.encode(given), english.encode(wanted)
        for language, side in zip(LANGUAGES, rows, strict=True):
            _check_longest(inner / f"{split}.{language}", side, tokens, source)
        splits[split] = Pairs(given, wanted, *rows, english, tokens)
    return Splits(**splits)


def _read_pair(folder: Path, split: str, source: str) -> tuple[list[str], list[str]]:
    paths = [folder / f"{split}.{language}" for language in LANGUAGES]
    given, wanted = (_read(path, source) for path in paths)
    if len(given) != len(wanted):
        raise ValueError(
            f"{paths[0]} has {len(given):,} sentences and {paths[1]} has {len(wanted):,}, expected the same "
            f"number in both; {source}."
        )
    return given, wanted


def _short(
    path: Path, given: list[str], wanted: list[str], most_words: int, source: str
) -> tuple[list[str], list[str]]:
    kept = [
        pair for pair in zip(given, wanted, strict=True) if max(len(s.split()) for s in pair) <= most_words
    ]
    if not kept:
        raise ValueError(f"{path} has no sentence of at most {most_words} words in both languages; {source}.")
    return [pair[0] for pair in kept], [pair[1] for pair in kept]


def _read(path: Path, source: str) -> list[str]:
    sentences = [line.strip() for line in read_lines(path, EXPECTED, source)]
    if any("@@ " in sentence for sentence in sentences):
        raise ValueError(f"{path} is split into BPE pieces ('@@ '), expected complete words; {source}.")
    return sentences


def _check_longest(path: Path, rows: Rows, tokens: int, source: str) -> None:
    lengths = [len(row) for row in rows]
    if (longest := max(lengths)) > tokens:
        raise ValueError(
            f"{path} has {longest:,} tokens in line {lengths.index(longest) + 1}, more than a batch of "
            f"{tokens:,}: remove this pair from both files, or use other sentences; {source}."
        )


def _grouped(lengths: NDArray[np.int64], tokens: int) -> list[list[int]]:
    """Return the sentence numbers of each batch; `lengths` has one row per language."""
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
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD)
