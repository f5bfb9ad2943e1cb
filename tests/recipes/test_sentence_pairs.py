"""Sentence pairs: their files, their pieces and batches; dates in two languages; the real ones."""

import re

import numpy as np
import pytest
import torch
from support.real_data import REAL

from dualavg_bench.data import translation
from dualavg_bench.data.embedded import dates
from dualavg_bench.data.translation import END, MULTIPLE, PAD, Pairs, Vocabulary
from dualavg_bench.recipes import iwslt14

FILES = [f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")]
LOAD = {"name": "somewhere", "pieces": (300, 300), "tokens": 64}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def written(embedded):
    return dates.write(embedded)


@pytest.fixture(scope="module")
def splits(embedded):
    return iwslt14.recipe("quick").data(embedded)


def write_pairs(folder, **texts):
    for name in FILES:
        text = texts.get(name.replace(".", "_"), "ein Haus\nzwei Häuser\n")
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder


# Files


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_one_sentence_with_path_and_remedy(tmp_path, name):
    path = tmp_path / name
    other = path.with_suffix(".de")  # of two that do not fit, the German one is named
    for raw, at, words in (
        (b"", path, "is empty"),
        (b"\xff\xfe\x00\n", path, "is not UTF-8"),
        (b"H@@ aus\n", path, "is cut into pieces"),
        (b"one\ntwo\nthree", path, "does not end with an end of line"),
        (b"one\ntwo\nthree\n", other, f"has {3 if path == other else 2} sentences and"),
    ):
        write_pairs(tmp_path)
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=re.escape(f"{at} {words}") + ".*https://") as caught:
            translation.load(tmp_path, **LOAD)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{path} is missing") + ".*https://") as caught:
        translation.load(tmp_path, **LOAD)
    assert "\n" not in str(caught.value)


def test_both_the_folder_and_its_parent_will_do(tmp_path):
    inner = tmp_path / "somewhere"
    inner.mkdir()
    write_pairs(inner)
    for folder in (inner, tmp_path):
        assert translation.load(folder, **LOAD).valid.given == ["ein Haus", "zwei Häuser"]


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    write_pairs(tmp_path, test_de="eins\u2028zwei\x0bdrei\r\n\nvier\n", test_en="a\nb\nc\n")
    test = translation.load(tmp_path, **LOAD).test
    assert test.given == ["eins\u2028zwei\x0bdrei", "", "vier"]


def test_evaluation_files_can_be_shortened(written):
    splits = translation.load(written, **{**LOAD, "valid_pairs": 7, "test_pairs": 9})
    assert [len(split.given) for split in (splits.train, splits.valid, splits.test)] == [4000, 7, 9]


# Pieces


def test_pieces_are_learnt_from_training_text_alone(tmp_path):
    secret = "xylophonquartett " * 50 + "\n"
    vocabularies = []
    for text in ("ein Haus\n", secret):
        write_pairs(tmp_path, valid_de=text, valid_en=text, test_de=text, test_en=text)
        loaded = translation.load(tmp_path, **{**LOAD, "tokens": 10_000})
        vocabularies.append(loaded.train.vocabulary._pieces.to_str())
        assert loaded.valid.vocabulary is loaded.test.vocabulary is loaded.train.vocabulary
        # The German one is private; its pieces show in how German is cut.
        vocabularies.append(loaded.train.source)
    assert vocabularies[:2] == vocabularies[2:]
    write_pairs(tmp_path, train_de=secret, train_en=secret)
    loaded = translation.load(tmp_path, **{**LOAD, "tokens": 10_000})
    assert loaded.train.vocabulary._pieces.to_str() != vocabularies[0]


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
def test_text_comes_back_from_its_pieces(splits, text):
    vocabulary = splits.train.vocabulary
    (row,) = vocabulary.encode([text])
    assert row[-1] == END
    assert not set(row[:-1]) & {PAD, END}
    assert vocabulary.decode([row]) == vocabulary.decode([[END, *row, PAD, PAD]]) == [text]


def test_a_vocabulary_is_as_large_as_was_asked_for_and_always_the_same(splits):
    sentences = splits.train.given[:1000]
    first, second = (Vocabulary(sentences, 400) for _ in range(2))
    assert len(first) == 400
    assert first._pieces.to_str() == second._pieces.to_str()
    assert len(first.encode(["Donnerstag"])[0]) < 5


# Batches


def test_batches_respect_the_limit_and_hold_every_sentence_once(splits):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, size=(2, 3000))
    lengths[1, ::500] = 300  # short in German, long in English
    groups = translation._grouped(lengths, 512)
    assert sorted(i for group in groups for i in group) == list(range(3000))
    tokens = [len(group) * lengths[:, group].max() for group in groups]
    assert max(tokens) <= 512
    assert np.mean(tokens) > 0.6 * 512
    # Sorted by German length, with few sentences left over from a multiple of eight.
    longest = [lengths[0, group].max() for group in groups]
    assert longest == sorted(longest)
    assert sum(len(group) % MULTIPLE > 0 for group in groups) < 0.5 * len(groups)
    for split in (splits.train, splits.valid, splits.test):
        for i in range(len(split)):
            batch = split.batch(torch.tensor([i]), None)
            n = len(batch["wanted"])
            assert n * max(batch["source"].shape[1], batch["target"].shape[1]) <= iwslt14.TOKENS["quick"]


def test_a_long_sentence_does_not_join_what_a_full_batch_left_over():
    lengths = np.array([[10] * 12 + [11], [10] * 12 + [100]])
    assert [len(group) for group in translation._grouped(lengths, 128)] == [8, 4, 1]


def test_a_sentence_that_fits_no_batch_is_said(tmp_path):
    write_pairs(tmp_path, test_de="ein Haus\nlang" + "er" * 99 + "\n")
    with pytest.raises(ValueError, match=r"test\.de has \d+ tokens in line 2 where 64 at most"):
        translation.load(tmp_path, **LOAD)


def test_several_examples_become_one_batch(splits):
    both = splits.valid.batch(torch.tensor([0, 2]), None)
    parts = [splits.valid.batch(torch.tensor([i]), None) for i in (0, 2)]
    assert both["given"] == parts[0]["given"] + parts[1]["given"]
    for side in ("source", "target"):
        rows = [[n for n in row if n != PAD] for row in both[side].tolist()]
        assert rows == [[n for n in row if n != PAD] for part in parts for row in part[side].tolist()]
        assert all(row[-1] == END for row in rows)
    assert both["vocabulary"].decode(both["target"].tolist()) == both["wanted"]


# Dates


def test_dates_say_the_same_in_both_languages(written):
    months = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober"]
    english = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
    ]
    in_english = dict(zip([*months, "November", "Dezember"], [*english, "November", "December"], strict=True))
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


# The real thing


def test_the_real_tatoeba():
    if not (REAL / "tatoeba.de-en").is_dir():
        pytest.skip(f"no tatoeba.de-en in {REAL}")
    splits = iwslt14.recipe("mini").data(REAL)
    assert [len(split.given) for split in (splits.train, splits.valid, splits.test)] == [80_000, 200, 400]
    assert len(splits.train.vocabulary) == iwslt14.PIECES["mini"][1]
    rows = splits.test.target
    assert splits.test.vocabulary.decode(rows) == splits.test.wanted
    assert isinstance(splits.test, Pairs)
