"""WikiText's format: how words become numbers and blocks."""

import pytest
import torch
from support.real_data import REAL, needs
from support.small_text import write_wikitext
from tokenizers import pre_tokenizers

from dualavg_bench.data import wikitext


def test_words_are_numbered_by_frequency_and_lines_have_an_end(tmp_path):
    write_wikitext(tmp_path, train=" a b a <unk> \n \n a b c \n", valid=" c d a \n")
    splits = wikitext.load(tmp_path, "wikitext-2", length=2)
    # <unk> is 0; a and <eos> occur three times, b twice, c once
    assert splits.train.words.tolist() == [1, 3, 1, 0, 2, 2, 1, 3, 4, 2]
    assert splits.valid.words.tolist() == [4, 0, 1, 2]


def test_a_small_vocabulary_keeps_the_frequent_words(tmp_path):
    write_wikitext(tmp_path, train=" a a a b b c \n")
    words = wikitext.load(tmp_path, "wikitext-2", length=2, vocabulary=3).train.words
    assert words.tolist() == [1, 1, 1, 2, 2, 0, 0]


def test_an_exact_vocabulary_refuses_another_number_of_words(tmp_path):
    write_wikitext(tmp_path, train=" a a a b b c \n")  # with <unk> and <eos>, five words
    settings = {"length": 2, "exact_vocabulary": True}
    assert wikitext.load(tmp_path, "wikitext-2", vocabulary=5, **settings)
    with pytest.raises(
        ValueError, match=r"wiki\.train\.tokens has 5 different words, expected 6; .*https://"
    ):
        wikitext.load(tmp_path, "wikitext-2", vocabulary=6, **settings)


def test_blocks_predict_every_word_once():
    source = wikitext.Blocks(torch.arange(11, dtype=torch.int32), 3)
    batch = source.batch(torch.arange(len(source)), None)
    assert batch.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert batch.dtype == torch.long


def test_validation_and_test_can_be_shortened(tmp_path):
    write_wikitext(tmp_path, valid=" a b c \n" * 50, test=" c b a \n" * 50)
    splits = wikitext.load(tmp_path, "wikitext-2", length=2, valid_blocks=3, test_blocks=5)
    assert (len(splits.valid), len(splits.test)) == (3, 5)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_text_shorter_than_a_block_is_refused(tmp_path, split):
    write_wikitext(tmp_path, **{split: " a \n"})
    message = rf"wiki\.{split}\.tokens has 2 words, expected at least 5; .*https://"
    with pytest.raises(ValueError, match=message) as caught:
        wikitext.load(tmp_path, "wikitext-2", length=4)
    assert "\n" not in str(caught.value)


# Pieces


def load_pieces(folder, **settings):
    return wikitext.load_pieces(folder, "wikitext-2", **{"length": 4, "pieces": 300, **settings})


def text_of(blocks):
    """The pieces as text, if each of them is a byte."""
    return "".join(ALPHABET[number] for number in blocks.words.tolist()).replace("Ġ", " ").replace("Ċ", "\n")


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def test_pieces_are_the_text_without_blank_lines_and_brackets(tmp_path):
    write_wikitext(tmp_path, train=" a b \n \n = c = \n \n", valid=" d <unk> e \n \n d d \n")
    splits = load_pieces(tmp_path, pieces=256)  # bytes alone
    assert text_of(splits.train) == " a b\n = c =\n"
    assert text_of(splits.valid) == " d unk e\n d d\n"


def test_pieces_are_learnt_from_the_chosen_training_lines_alone(tmp_path):
    lines = [f" {chr(97 + i % 26) * 3}{i} and some more words \n" for i in range(100)]
    write_wikitext(tmp_path, train="".join(lines), valid=" xylophone \n" * 50)
    full, part, again = (load_pieces(tmp_path, train_lines=n) for n in (None, 20, 20))
    assert len(part.train.words) < len(full.train.words) / 3
    assert torch.equal(part.train.words, again.train.words)
    assert len(part.valid.words) > 50 * 5  # "xylophone" is no piece
    assert int(full.train.words.max()) > 256


def test_a_text_shorter_than_a_block_of_pieces_is_refused(tmp_path):
    write_wikitext(tmp_path, test=" a \n")
    with pytest.raises(ValueError, match=r"wiki\.test\.tokens has 2 pieces, expected at least 5; .*https://"):
        load_pieces(tmp_path)


@needs("wikitext-2")
def test_the_real_wikitext2():
    splits = wikitext.load(REAL, "wikitext-2", length=64)
    sizes = [len(split.words) for split in (splits.train, splits.valid, splits.test)]
    assert sizes == [2_088_628, 217_646, 245_569]
    assert int(splits.train.words.max()) + 1 == 33_278
