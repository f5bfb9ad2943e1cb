"""Plain text: how files become tokens and examples, and which tokens are hidden."""

import math
import subprocess
import sys

import pytest
import torch
from support.small_text import LINES, generator, loaded, written

from dualavg_bench.data.embedded import docstrings
from dualavg_bench.data.plain_text import END, MASK, PAD, SPECIAL, START
from dualavg_bench.recipes import roberta

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return loaded(written(tmp_path_factory.mktemp("text")))


# Files


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_file_that_is_not_what_it_should_be_is_named_in_one_sentence(split, tmp_path):
    spoilt = {"is empty": b"", " is empty": b"\n \n\r\n", "is not UTF-8": "caf\xe9\n".encode("latin-1")}
    for what, raw in spoilt.items():
        written(tmp_path, **{split: raw})
        with pytest.raises(ValueError, match=rf"{split}\.txt {what.strip()}.*a line.*wikimedia") as caught:
            loaded(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert str(caught.value).count("\n") == 0
    (tmp_path / f"{split}.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{split}\.txt is missing.*a line.*wikimedia"):
        loaded(tmp_path)


def test_spoilt_embedded_text_says_how_to_mend_it(tmp_path):
    (docstrings.write_plain(tmp_path) / "valid.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="remove the folder"):
        roberta.recipe("quick").data(tmp_path)


def test_both_the_folder_and_its_parent_will_do(tmp_path):
    inner = written(tmp_path / "books-wiki")
    assert torch.equal(loaded(inner).valid.tokens, loaded(tmp_path).valid.tokens)


def test_one_line_in_so_many_is_read(tmp_path):
    source = loaded(written(tmp_path), one_in=3).train
    assert text_of(source) == LINES[::3]


# Tokens


def text_of(source):
    """Every line of a split, spelt from its tokens."""
    ends = (source.tokens == END).nonzero().flatten() + 1
    return [source.text(line) for line in source.tokens.tensor_split(ends.tolist())[:-1]]


def test_tokens_spell_the_text(splits):
    assert text_of(splits.train) == LINES


def test_any_text_can_be_spelt_and_none_of_it_is_a_special_token(tmp_path):
    strange = ["<mask> <s></s> <pad> <unk>", "naïve 東京 🙂 \x07", "tab\there"]
    source = loaded(written(tmp_path, valid="\n".join(strange) + "\n")).valid
    assert text_of(source) == strange
    assert set(source.tokens[source.tokens < SPECIAL].tolist()) == {END}
    assert (source.tokens == END).sum() == 3


def test_the_bpe_sees_the_training_text_alone(tmp_path):
    other = "zyzzyva quokka " * 500 + "\n"
    plain = loaded(written(tmp_path / "plain"))
    changed = loaded(written(tmp_path / "changed", valid=other, test=other))
    assert plain.train.bpe.to_str() == changed.train.bpe.to_str()
    seen = loaded(written(tmp_path / "seen", train=other + "\n".join(LINES) + "\n"))
    assert plain.train.bpe.to_str() != seen.train.bpe.to_str()
    assert any("zyzzyva" in token for token in seen.train.bpe.get_vocab())


def test_the_bpe_is_the_same_in_every_process(tmp_path):
    folder = written(tmp_path)
    code = (
        "import sys, pathlib; from dualavg_bench.data import plain_text; "
        "print(plain_text.load(pathlib.Path(sys.argv[1]), '', length=32, vocabulary=300).train.bpe.to_str())"
    )
    told = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == loaded(folder).train.bpe.to_str().strip()


def test_the_vocabulary_is_as_large_as_was_asked(tmp_path):
    source = loaded(written(tmp_path), vocabulary=290).train
    assert source.vocabulary == 290
    assert int(source.tokens.max()) < 290


# Examples


def test_no_line_crosses_a_break(splits):
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


def test_examples_are_as_full_as_whole_lines_allow(tmp_path):
    lines = ["q" * (1 + i * i % 13) for i in range(100)]  # a letter that training has not: one token each
    source = loaded(written(tmp_path, valid="\n".join(lines) + "\n")).valid
    for i in range(len(source) - 1):
        after = source.example(i + 1)
        first_line = int((after == END).nonzero()[0])
        assert len(source.example(i)) + first_line > 32
    assert max(len(source.example(i)) for i in range(len(source))) == 32


def test_a_line_that_never_fits_is_cut_and_nothing_is_lost(tmp_path):
    long = "abcdefghij " * 40
    source = loaded(written(tmp_path, valid=f"short\n{long}\nafter\n")).valid
    assert max(len(source.example(i)) for i in range(len(source))) == 32
    together = torch.cat([source.example(i)[1:] for i in range(len(source))])
    assert torch.equal(together, source.tokens.long())
    assert source.text(together) == f"short{long.strip()}after"


def test_validation_and_test_can_be_shortened(tmp_path):
    folder = written(tmp_path)
    whole, short = loaded(folder), loaded(folder, valid_examples=3, test_examples=5)
    assert (len(short.valid), len(short.test)) == (3, 5)
    assert len(short.train) == len(whole.train)
    assert all(torch.equal(short.test.example(i), whole.test.example(i)) for i in range(5))


# What is hidden


def test_fifteen_percent_are_hidden_eight_one_and_one_in_ten(splits):
    source, rng = splits.train, generator(0)
    hidden, words, mask, same = 0, 0, 0, 0
    for _ in range(20):
        tokens, places, truth = source.batch(torch.arange(len(source)), rng)
        shown = tokens.flatten()[places]
        hidden, mask = hidden + len(places), mask + int((shown == MASK).sum())
        same += int((shown == truth).sum())
        words += sum(int((source.example(i) >= SPECIAL).sum()) for i in range(len(source)))

    def near(count, n, p):
        return abs(count - n * p) < 4 * math.sqrt(n * p * (1 - p))

    assert near(hidden, words, 0.15)
    assert near(mask, hidden, 0.8)
    drawn_as_it_was = 0.1 / (300 - SPECIAL)
    assert near(same, hidden, 0.1 + drawn_as_it_was)
    assert near(hidden - mask - same, hidden, 0.1 - drawn_as_it_was)


def test_random_tokens_are_drawn_from_all_but_the_special_ones(splits):
    rng, seen = generator(0), set()
    for _ in range(60):
        tokens, places, truth = splits.train.batch(torch.arange(len(splits.train)), rng)
        shown = tokens.flatten()[places]
        seen |= set(shown[(shown != MASK) & (shown != truth)].tolist())
    assert min(seen) == SPECIAL
    assert max(seen) == 299
    assert len(seen) > 250


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_special_tokens_and_padding_are_never_hidden(splits, seed):
    source = splits.train
    indices = torch.arange(len(source))
    tokens, places, truth = source.batch(indices, None if seed is None else generator(seed))
    assert (truth >= SPECIAL).all()
    untouched = torch.full_like(tokens, PAD)
    for row, i in enumerate(indices.tolist()):
        untouched[row, : len(source.example(i))] = source.example(i)
    assert torch.equal(untouched.flatten()[places], truth)
    special = untouched < SPECIAL
    assert torch.equal(tokens[special], untouched[special])
    elsewhere = torch.ones(tokens.numel(), dtype=torch.bool)
    elsewhere[places] = False
    assert torch.equal(tokens.flatten()[elsewhere], untouched.flatten()[elsewhere])
    assert len(places.unique()) == len(places)


def test_no_example_is_without_a_hidden_token(tmp_path):
    source = loaded(written(tmp_path, valid="a\n" * 3), length=4).valid
    for i in range(len(source)):
        assert len(source.batch(torch.tensor([i]), None)[1]) == 1


def test_what_is_hidden_differs_between_steps_and_is_rngs_alone(splits):
    indices, state = torch.arange(8), torch.get_rng_state()
    first, second = (splits.train.batch(indices, generator(5)) for _ in range(2))
    other = splits.train.batch(indices, generator(6))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(state, torch.get_rng_state())


def test_in_evaluation_an_example_is_hidden_alike_in_every_batch(splits):
    source = splits.valid
    whole = source.batch(torch.arange(10), None)
    longest = whole[0].shape[1]
    for i in range(10):
        tokens, places, truth = source.batch(torch.tensor([i]), None)
        assert torch.equal(whole[0][i, : tokens.shape[1]], tokens[0])
        mine = (whole[1] // longest) == i
        assert torch.equal(whole[1][mine] % longest, places)
        assert torch.equal(whole[2][mine], truth)
    assert not torch.equal(places, source.batch(torch.tensor([8]), None)[1])
