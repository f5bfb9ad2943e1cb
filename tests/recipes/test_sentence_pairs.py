"""Sentence pairs: files, vocabularies and batches; embedded dates; real data."""

import re

import numpy as np
import pytest
import torch
from support.real_data import REAL, needs
from support.small_pairs import LOAD, write_pairs

from dualavg_bench.data import translation
from dualavg_bench.data.embedded import dates
from dualavg_bench.data.translation import END, MULTIPLE, PAD, Vocabulary
from dualavg_bench.recipes import iwslt14

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def written(embedded):
    return dates.write(embedded)


@pytest.fixture(scope="module")
def splits(embedded):
    return iwslt14.recipe("quick").data(embedded)


# Files


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_text_that_is_already_split_into_pieces_is_refused(tmp_path, split, language):
    write_pairs(tmp_path, **{f"{split}_{language}": "H@@ aus\nHaus\n"})
    message = re.escape(f"{tmp_path / split}.{language} is split into BPE pieces") + ".*https://"
    with pytest.raises(ValueError, match=message) as caught:
        translation.load(tmp_path, **LOAD)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_different_numbers_of_sentences_are_refused(tmp_path, split):
    write_pairs(tmp_path, **{f"{split}_en": "one\ntwo\nthree\n"})
    german, english = (tmp_path / f"{split}.{language}" for language in ("de", "en"))
    message = re.escape(f"{german} has 2 sentences and {english} has 3, expected") + ".*https://"
    with pytest.raises(ValueError, match=message) as caught:
        translation.load(tmp_path, **LOAD)
    assert "\n" not in str(caught.value)


def test_another_number_of_pairs_is_refused(tmp_path):
    assert translation.load(write_pairs(tmp_path), **LOAD, pairs=(2, 2, 2))
    with pytest.raises(ValueError, match=r"test\.de has 2 sentences, expected 6,750; .*https://"):
        translation.load(tmp_path, **LOAD, pairs=(2, 2, 6_750))


def test_a_line_ends_only_at_a_newline(tmp_path):
    write_pairs(tmp_path, test_de="eins\u2028zwei\x0bdrei\r\n\nvier\n", test_en="a\nb\nc\n")
    test = translation.load(tmp_path, **LOAD).test
    assert test.given == ["eins\u2028zwei\x0bdrei", "", "vier"]


def test_validation_and_test_can_be_shortened(written):
    splits = translation.load(written, **{**LOAD, "valid_pairs": 7, "test_pairs": 9})
    assert [len(split.given) for split in (splits.train, splits.valid, splits.test)] == [4000, 7, 9]


def test_long_sentences_can_be_left_out(tmp_path):
    write_pairs(tmp_path, train_de="a b\na b c\nd\n", train_en="a b\na\nb c d\n")
    splits = translation.load(tmp_path, **LOAD, most_words=2)
    assert (splits.train.given, splits.train.wanted) == (["a b"], ["a b"])
    assert len(splits.valid.given) == 2
    with pytest.raises(ValueError, match=r"train\.de has no sentence of at most 0 words .*https://"):
        translation.load(tmp_path, **LOAD, most_words=0)


def test_a_part_of_the_training_pairs_is_random_and_always_the_same(written):
    full, part, again = (translation.load(written, **LOAD, train_pairs=n).train for n in (None, 50, 50))
    assert (part.given, part.wanted) == (again.given, again.wanted)
    numbers = [full.given.index(sentence) for sentence in part.given]
    assert [full.wanted[i] for i in numbers] == part.wanted
    assert len(set(numbers)) == 50
    assert max(numbers) > 3000  # not the first ones


# Vocabularies


def test_vocabularies_are_learnt_from_the_training_text_alone(tmp_path):
    secret = "xylophonquartett " * 50 + "\n"
    vocabularies = []
    for text in ("ein Haus\n", secret):
        write_pairs(tmp_path, valid_de=text, valid_en=text, test_de=text, test_en=text)
        loaded = translation.load(tmp_path, **{**LOAD, "tokens": 10_000})
        vocabularies.append(loaded.train.vocabulary._bpe.to_str())
        assert loaded.valid.vocabulary is loaded.test.vocabulary is loaded.train.vocabulary
        # The German vocabulary is not kept; the encoded German sentences depend on it.
        vocabularies.append(loaded.train.source)
    assert vocabularies[:2] == vocabularies[2:]
    write_pairs(tmp_path, train_de=secret, train_en=secret)
    loaded = translation.load(tmp_path, **{**LOAD, "tokens": 10_000})
    assert loaded.train.vocabulary._bpe.to_str() != vocabularies[0]


@pytest.mark.parametrize(
    "text",
    [
        "Plain ASCII, 3.14 -- and (brackets)!",
        "Grüße aus Köln, äöüß ÄÖÜ",
        "two  spaces",
        "</s> <pad> <unk> are only letters",
        "日本語 and 🙂 that no training text had",
        "",
    ],
)
def test_text_is_decoded_unchanged(splits, text):
    vocabulary = splits.train.vocabulary
    (row,) = vocabulary.encode([text])
    assert row[-1] == END
    assert not set(row[:-1]) & {PAD, END}
    assert vocabulary.decode([row]) == vocabulary.decode([[END, *row, PAD, PAD]]) == [text]


def test_a_vocabulary_has_the_requested_size_and_is_deterministic(splits):
    sentences = splits.train.given[:1000]
    first, second = (Vocabulary(sentences, 400) for _ in range(2))
    assert len(first) == 400
    assert first._bpe.to_str() == second._bpe.to_str()
    assert len(first.encode(["Donnerstag"])[0]) < 5


# Batches


def test_batches_respect_the_limit_and_contain_every_sentence_once(splits):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, size=(2, 3000))
    lengths[1, ::500] = 300  # short in German, long in English
    groups = translation._grouped(lengths, 512)
    assert sorted(i for group in groups for i in group) == list(range(3000))
    tokens = [len(group) * lengths[:, group].max() for group in groups]
    assert max(tokens) <= 512
    assert np.mean(tokens) > 0.6 * 512
    # Sorted by German length; most batches have a multiple of eight sentences.
    longest = [lengths[0, group].max() for group in groups]
    assert longest == sorted(longest)
    assert sum(len(group) % MULTIPLE > 0 for group in groups) < 0.5 * len(groups)
    for split in (splits.train, splits.valid, splits.test):
        for i in range(len(split)):
            batch = split.batch(torch.tensor([i]), None)
            n = len(batch["wanted"])
            assert n * max(batch["source"].shape[1], batch["target"].shape[1]) <= iwslt14.TOKENS["quick"]


def test_a_long_sentence_does_not_join_the_rest_of_a_full_batch():
    lengths = np.array([[10] * 12 + [11], [10] * 12 + [100]])
    assert [len(group) for group in translation._grouped(lengths, 128)] == [8, 4, 1]


def test_a_sentence_longer_than_a_batch_is_refused(tmp_path):
    write_pairs(tmp_path, test_de="ein Haus\nlang" + "er" * 99 + "\n")
    with pytest.raises(
        ValueError, match=r"test\.de has \d+ tokens in line 2, more than a batch of 64: remove this pair"
    ):
        translation.load(tmp_path, **LOAD)


def test_several_groups_become_one_batch(splits):
    both = splits.valid.batch(torch.tensor([0, 2]), None)
    parts = [splits.valid.batch(torch.tensor([i]), None) for i in (0, 2)]
    assert both["given"] == parts[0]["given"] + parts[1]["given"]
    for side in ("source", "target"):
        rows = [[n for n in row if n != PAD] for row in both[side].tolist()]
        assert rows == [[n for n in row if n != PAD] for part in parts for row in part[side].tolist()]
        assert all(row[-1] == END for row in rows)
    assert both["vocabulary"].decode(both["target"].tolist()) == both["wanted"]


# Dates


def test_dates_are_the_same_in_both_languages(written):
    german = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
    english = "January February March April May June July August September October November December"
    in_english = dict(zip(german.split(), english.split(), strict=True))
    lines = [(written / f"train.{x}").read_text("utf-8").splitlines() for x in ("de", "en")]
    for given, wanted in zip(*lines, strict=True):
        day, month, year = re.match(r"\w+, (\d+)\. (\w+) (\d{4}): \w+$", given).groups()
        assert re.match(rf"\w+, {in_english[month]} {day}, {year}: [\w-]+$", wanted), (given, wanted)
    pairs = dict(zip([line.split(": ")[1] for line in lines[0]], lines[1], strict=True))
    assert pairs["siebenundzwanzig"].endswith(": twenty-seven")


def test_no_sentence_is_in_two_splits(written):
    sentences = [
        line for split in dates.PAIRS for line in (written / f"{split}.de").read_text("utf-8").splitlines()
    ]
    assert len(sentences) == len(set(sentences)) == sum(dates.PAIRS.values())


# Real data


@pytest.mark.slow
@needs("tatoeba.de-en")
def test_the_real_tatoeba():
    splits = iwslt14.recipe("mini").data(REAL)
    assert [len(split.given) for split in (splits.train, splits.valid, splits.test)] == [7_500, 800, 1_281]
    assert len(splits.train.vocabulary) == iwslt14.PIECES["mini"][1]
    assert splits.test.vocabulary.decode(splits.test.target) == splits.test.wanted
