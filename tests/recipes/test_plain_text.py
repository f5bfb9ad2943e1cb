"""Plain text: how files become tokens and examples, and which tokens are hidden."""

import itertools
import math
import random
import subprocess
import sys

import pytest
import torch
from support.small_text import LINES, generator, load_plain, write_plain

from dualavg_bench.data.plain_text import END, MASK, PAD, SPECIAL, START

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return load_plain(write_plain(tmp_path_factory.mktemp("text")))


# Tokens


def test_a_part_of_the_training_lines_is_random_and_always_the_same(tmp_path):
    folder = write_plain(tmp_path)
    parts = []
    for seed in (0, 1):
        random.seed(seed)
        torch.manual_seed(seed)
        parts.append(text_of(load_plain(folder, train_lines=50).train))
    assert parts[0] == parts[1]
    numbers = [LINES.index(line) for line in parts[0]]
    assert len(numbers) == 50
    assert numbers == sorted(numbers)
    assert len({b - a for a, b in itertools.pairwise(numbers)}) > 3  # not one line in four
    assert text_of(load_plain(folder, train_lines=500).train) == LINES


def test_a_training_text_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"train\.txt has [\d,]+ bytes, expected at least 1,000,000; .*wikimedia"
    ):
        load_plain(write_plain(tmp_path), least_bytes=1_000_000)


def text_of(source):
    """Every line of a split, decoded from its tokens."""
    ends = (source.tokens == END).nonzero().flatten() + 1
    return [source.text(line) for line in source.tokens.tensor_split(ends.tolist())[:-1]]


def test_tokens_decode_to_the_text(splits):
    assert text_of(splits.train) == LINES


def test_any_text_can_be_encoded_and_contains_no_special_token(tmp_path):
    strange = ["<mask> <s></s> <pad> <unk>", "naïve 東京 🙂 \x07", "tab\there"]
    source = load_plain(write_plain(tmp_path, valid="\n".join(strange) + "\n")).valid
    assert text_of(source) == strange
    assert set(source.tokens[source.tokens < SPECIAL].tolist()) == {END}
    assert (source.tokens == END).sum() == 3


def test_the_bpe_is_learnt_from_the_training_text_alone(tmp_path):
    other = "zyzzyva quokka " * 500 + "\n"
    plain = load_plain(write_plain(tmp_path / "plain"))
    changed = load_plain(write_plain(tmp_path / "changed", valid=other, test=other))
    assert plain.train.bpe.to_str() == changed.train.bpe.to_str()
    seen = load_plain(write_plain(tmp_path / "seen", train=other + "\n".join(LINES) + "\n"))
    assert plain.train.bpe.to_str() != seen.train.bpe.to_str()
    assert any("zyzzyva" in token for token in seen.train.bpe.get_vocab())


def test_the_bpe_is_the_same_in_every_process(tmp_path):
    folder = write_plain(tmp_path)
    code = (
        "import sys, pathlib; from dualavg_bench.data import plain_text; "
        "print(plain_text.load(pathlib.Path(sys.argv[1]), '', length=32, vocabulary=300).train.bpe.to_str())"
    )
    printed = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == load_plain(folder).train.bpe.to_str().strip()


def test_the_vocabulary_has_the_requested_size(tmp_path):
    source = load_plain(write_plain(tmp_path), vocabulary=290).train
    assert source.vocabulary == 290
    assert int(source.tokens.max()) < 290


# Examples


def test_no_line_is_split_between_examples(splits):
    source, lines = splits.train, []
    for i in range(len(source)):
        example = source.example(i)
        assert len(example) <= 32
        assert example[0] == START
        assert example[-1] == END
        assert (example[1:] != START).all()
        ends = (example == END).nonzero().flatten() + 1
        lines += [source.text(line) for line in example.tensor_split(ends.tolist())[:-1]]
    assert lines == LINES


def test_examples_are_as_full_as_complete_lines_allow(tmp_path):
    lines = ["q" * (1 + i * i % 13) for i in range(100)]  # a letter that is not in training: one token each
    source = load_plain(write_plain(tmp_path, valid="\n".join(lines) + "\n")).valid
    for i in range(len(source) - 1):
        after = source.example(i + 1)
        first_line = int((after == END).nonzero()[0])
        assert len(source.example(i)) + first_line > 32
    assert max(len(source.example(i)) for i in range(len(source))) == 32


def test_a_line_longer_than_an_example_is_cut_and_nothing_is_lost(tmp_path):
    long = "abcdefghij " * 40
    source = load_plain(write_plain(tmp_path, valid=f"short\n{long}\nafter\n")).valid
    assert max(len(source.example(i)) for i in range(len(source))) == 32
    together = torch.cat([source.example(i)[1:] for i in range(len(source))])
    assert torch.equal(together, source.tokens.long())
    assert source.text(together) == f"short{long.strip()}after"


def test_validation_and_test_can_be_shortened(tmp_path):
    folder = write_plain(tmp_path)
    full, short = load_plain(folder), load_plain(folder, valid_examples=3, test_examples=5)
    assert (len(short.valid), len(short.test)) == (3, 5)
    assert len(short.train) == len(full.train)
    assert all(torch.equal(short.test.example(i), full.test.example(i)) for i in range(5))


# Hidden tokens


def test_15_percent_are_hidden_as_mask_random_or_unchanged_in_80_10_10(splits):
    source, rng = splits.train, generator(0)
    hidden, words, mask, same = 0, 0, 0, 0
    for _ in range(20):
        tokens, positions, truth = source.batch(torch.arange(len(source)), rng)
        inputs = tokens.flatten()[positions]
        hidden, mask = hidden + len(positions), mask + int((inputs == MASK).sum())
        same += int((inputs == truth).sum())
        words += int((source.tokens >= SPECIAL).sum())

    def near(count, n, p):
        return abs(count - n * p) < 4 * math.sqrt(n * p * (1 - p))

    assert near(hidden, words, 0.15)
    assert near(mask, hidden, 0.8)
    drawn_unchanged = 0.1 / (300 - SPECIAL)
    assert near(same, hidden, 0.1 + drawn_unchanged)
    assert near(hidden - mask - same, hidden, 0.1 - drawn_unchanged)


def test_random_tokens_are_drawn_from_all_but_the_special_ones(splits):
    rng, seen = generator(0), set()
    for _ in range(60):
        tokens, positions, truth = splits.train.batch(torch.arange(len(splits.train)), rng)
        inputs = tokens.flatten()[positions]
        seen |= set(inputs[(inputs != MASK) & (inputs != truth)].tolist())
    assert min(seen) == SPECIAL
    assert max(seen) == 299
    assert len(seen) > 250


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_special_tokens_and_padding_are_never_hidden(splits, seed):
    source = splits.train
    indices = torch.arange(len(source))
    tokens, positions, truth = source.batch(indices, None if seed is None else generator(seed))
    assert (truth >= SPECIAL).all()
    untouched = torch.full_like(tokens, PAD)
    for row, i in enumerate(indices.tolist()):
        untouched[row, : len(source.example(i))] = source.example(i)
    assert torch.equal(untouched.flatten()[positions], truth)
    special = untouched < SPECIAL
    assert torch.equal(tokens[special], untouched[special])
    elsewhere = torch.ones(tokens.numel(), dtype=torch.bool)
    elsewhere[positions] = False
    assert torch.equal(tokens.flatten()[elsewhere], untouched.flatten()[elsewhere])
    assert len(positions.unique()) == len(positions)


def test_every_example_has_a_hidden_token(tmp_path):
    source = load_plain(write_plain(tmp_path, valid="a\n" * 3), length=4).valid
    for i in range(len(source)):
        assert len(source.batch(torch.tensor([i]), None)[1]) == 1


def test_hidden_tokens_are_drawn_from_rng_alone(splits):
    indices, state = torch.arange(8), torch.get_rng_state()
    first, second = (splits.train.batch(indices, generator(5)) for _ in range(2))
    other = splits.train.batch(indices, generator(6))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(state, torch.get_rng_state())


def test_in_evaluation_hidden_tokens_do_not_depend_on_the_batch(splits):
    source = splits.valid
    all_tokens, all_positions, all_truth = source.batch(torch.arange(10), None)
    longest = all_tokens.shape[1]
    for i in range(10):
        tokens, positions, truth = source.batch(torch.tensor([i]), None)
        assert torch.equal(all_tokens[i, : tokens.shape[1]], tokens[0])
        in_row = (all_positions // longest) == i
        assert torch.equal(all_positions[in_row] % longest, positions)
        assert torch.equal(all_truth[in_row], truth)
    assert not torch.equal(positions, source.batch(torch.tensor([8]), None)[1])
