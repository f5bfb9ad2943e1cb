"""Data modules: the official formats, and what happens when a file is not what it should be."""

import io
import os
import pickle
import re
import struct
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from support.real_data import REAL

from dualavg_bench.data import cifar, wikitext
from dualavg_bench.data.embedded import digits, docstrings, once
from dualavg_bench.store.files import StoreError


@pytest.fixture(scope="module")
def written(embedded):
    return digits.write(embedded).parent


@pytest.fixture(scope="module")
def texts(embedded):
    return docstrings.write(embedded).parent


def python2_pickle(value):
    file = io.BytesIO()
    digits._Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def batch_of(data, labels):
    return python2_pickle({b"data": data, b"labels": labels})


def folder_with(path, raw, name="data_batch_1"):
    good = batch_of(np.zeros((20, 3072), np.uint8), [0] * 20)
    for each in ("data_batch_1", "test_batch"):
        (path / each).write_bytes(raw if each == name else good)
    return path


# CIFAR-10


def test_digits_come_back_as_they_went_in(written):
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    test = cifar.load(written).test
    order = np.random.default_rng(0).permutation(len(labels))[: digits.TEST_DIGITS]
    assert test.labels.tolist() == labels[order].tolist()
    back = np.round(test.pixels[:, 1, ::4, 3::4].numpy() / (255 / 16))
    assert np.array_equal(back, small[order].reshape(-1, 8, 8))


def test_digits_are_the_pickles_of_python_2(written):
    raw = (written / cifar.FOLDER / "data_batch_1").read_bytes()
    assert raw.startswith(b"\x80\x02")
    assert b"_codecs" not in raw
    batch = pickle.loads(raw, encoding="bytes")  # ours, just written
    assert batch[b"data"].dtype == np.uint8
    assert batch[b"data"].shape == (len(batch[b"labels"]), 3072)


def test_splits_are_disjoint_and_fixed(tmp_path):
    pixels = np.zeros((20, 3072), np.uint8)
    pixels[:, 0] = np.arange(20)
    folder_with(tmp_path, batch_of(pixels, [0] * 20))
    splits = cifar.load(tmp_path, one_in=5)
    train, valid = (set(split.pixels[:, 0, 0, 0].tolist()) for split in (splits.train, splits.valid))
    assert len(valid) == 4
    assert train | valid == set(range(20))
    assert splits.valid.pixels[:, 0, 0, 0].tolist() == [8, 9, 6, 2]  # today's, and every day's


def test_both_the_folder_and_its_parent_will_do(written, texts):
    inner, outer = cifar.load(written / cifar.FOLDER), cifar.load(written)
    assert torch.equal(inner.valid.pixels, outer.valid.pixels)
    inner, outer = (wikitext.load(each, "wikitext-2", length=8) for each in (texts / "wikitext-2", texts))
    assert torch.equal(inner.valid.words, outer.valid.words)


def test_every_training_batch_that_is_there_is_read(tmp_path):
    folder_with(tmp_path, batch_of(np.zeros((20, 3072), np.uint8), [0] * 20))
    (tmp_path / "data_batch_2").write_bytes(batch_of(np.zeros((10, 3072), np.uint8), [7] * 10))
    splits = cifar.load(tmp_path)
    assert (len(splits.train), len(splits.valid)) == (27, 3)
    assert {0, 7} == set(splits.train.labels.tolist())


def test_fortran_order_is_understood(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(20, 3072), dtype=np.uint8)
    folder_with(tmp_path, batch_of(np.asfortranarray(pixels), [1] * 20), "test_batch")
    assert np.array_equal(cifar.load(tmp_path).test.pixels.flatten(1).numpy(), pixels)


def test_without_rng_images_are_as_they_are_centred_on_one_half():
    pixels = torch.arange(2 * 3072).remainder(256).to(torch.uint8).view(2, 3, 32, 32)
    images, labels = cifar.Images(pixels, torch.tensor([3, 4])).batch(torch.tensor([1]), None)
    assert torch.allclose(images, (pixels[1:] / 255 - 0.5) / 0.5, atol=1e-6)
    assert labels.tolist() == [4]


def test_augmentation_is_a_flip_and_a_shift_and_nothing_else():
    pixels = torch.randint(1, 256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    source = cifar.Images(pixels, torch.tensor([0]))
    images, _ = source.batch(torch.zeros(400, dtype=torch.long), torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(pixels[0], 4 * [4]).float() / 127.5 - 1
    expected = {
        (flip, top, left): (window.flip(2) if flip else window)
        for flip in (False, True)
        for top in range(9)
        for left in range(9)
        for window in [padded[:, top : top + 32, left : left + 32]]
    }
    seen = {
        next(key for key, window in expected.items() if torch.allclose(image, window, atol=1e-6))
        for image in images
    }
    assert len(seen) > 100
    assert {flip for flip, _, _ in seen} == {False, True}
    assert {top for _, top, _ in seen} == {left for _, _, left in seen} == set(range(9))


def test_augmentation_is_drawn_from_rng_alone(written):
    source, indices = cifar.load(written).train, torch.arange(16)
    state = torch.get_rng_state()
    first, second = (source.batch(indices, torch.Generator().manual_seed(5))[0] for _ in range(2))
    other = source.batch(indices, torch.Generator().manual_seed(6))[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_that_wants_to_run_code_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "was_run"
    for nasty in (Malicious(os.mkdir, str(mark)), Malicious(exec, f"open({str(mark)!r}, 'w')")):
        folder_with(tmp_path, pickle.dumps({b"data": nasty, b"labels": []}, protocol=2))
        with pytest.raises(ValueError, match=r"data_batch_1 .*was not run.*cs\.toronto\.edu"):
            cifar.load(tmp_path)
        assert not mark.exists()


@pytest.mark.parametrize("name", ["eval", "getattr"])
def test_nothing_is_imported_by_name(name):
    raw = b"\x80\x02cbuiltins\n" + name.encode() + b"\n."
    with pytest.raises(pickle.UnpicklingError, match=f"builtins.{name}"):
        cifar._Unpickler(io.BytesIO(raw)).load()


def test_a_stand_in_cannot_be_reshaped_by_a_pickle():
    # BUILD on the admitted classes themselves, with a dict that would become their attributes.
    for name in cifar._Unpickler.ADMITTED:
        raw = b"\x80\x02c" + "\n".join(name).encode() + b"\n}U\x05valueK\x01s"
        with pytest.raises(TypeError):
            cifar._Unpickler(io.BytesIO(raw + b"b."), encoding="bytes").load()


GOOD = batch_of(np.zeros((20, 3072), np.uint8), [0] * 20)
SPOILT = {
    "empty": b"",
    "truncated": GOOD[:-1000],
    "text": b"<html>404</html>",
    "no dict": python2_pickle([1, 2]),
    "no data": python2_pickle({b"labels": [1]}),
    "no labels": python2_pickle({b"data": np.zeros((20, 3072), np.uint8)}),
    "wrong width": batch_of(np.zeros((20, 3071), np.uint8), [0] * 20),
    "wrong dimensions": batch_of(np.zeros((20, 3, 32, 32), np.uint8), [0] * 20),
    "no images": batch_of(np.zeros((0, 3072), np.uint8), []),
    "wrong type": batch_of(np.zeros((20, 3072), np.float32), [0] * 20),
    "too few labels": batch_of(np.zeros((20, 3072), np.uint8), [0] * 19),
    "a label of CIFAR-100": batch_of(np.zeros((20, 3072), np.uint8), [0] * 19 + [10]),
    "a label that is no number": batch_of(np.zeros((20, 3072), np.uint8), [0] * 19 + [b"cat"]),
    "a shape that lies": GOOD.replace(struct.pack("<BH", 0x4D, 3072), struct.pack("<BH", 0x4D, 3073)),
    "a memo bomb": b"\x80\x02}r\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch"])
@pytest.mark.parametrize("raw", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_batch_is_one_sentence_with_path_and_remedy(tmp_path, raw, name):
    with pytest.raises(ValueError, match="is not a pickled dict") as caught:
        cifar.load(folder_with(tmp_path, raw, name))
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert "(n, 3072)" in message
    assert "https://www.cs.toronto.edu" in message
    assert "\n" not in message


@pytest.mark.parametrize("missing", ["everything", "data_batch_1", "test_batch"])
def test_a_missing_batch_is_one_sentence_with_path_and_remedy(tmp_path, missing):
    folder = tmp_path / "nowhere" if missing == "everything" else folder_with(tmp_path, GOOD)
    name = "data_batch_1" if missing == "everything" else missing
    (folder / name).unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=re.escape(str(folder / name)) + r".*cs\.toronto\.edu"):
        cifar.load(folder)


# WikiText


def write_texts(folder, **texts):
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(texts.get(split, " a b a c \n"), encoding="utf-8")
    return folder


def test_words_are_numbered_by_frequency_and_lines_have_an_end(tmp_path):
    write_texts(tmp_path, train=" a b a <unk> \n \n a b c \n", valid=" c d a \n")
    splits = wikitext.load(tmp_path, "wikitext-2", length=2)
    # <unk> 0; a and <eos> are there three times, b twice, c once
    assert splits.train.words.tolist() == [1, 3, 1, 0, 2, 2, 1, 3, 4, 2]
    assert splits.valid.words.tolist() == [4, 0, 1, 2]


def test_a_small_vocabulary_keeps_the_frequent_words(tmp_path):
    write_texts(tmp_path, train=" a a a b b c \n")
    words = wikitext.load(tmp_path, "wikitext-2", length=2, vocabulary=3).train.words
    assert words.tolist() == [1, 1, 1, 2, 2, 0, 0]


def test_blocks_predict_every_word_once():
    source = wikitext.Blocks(torch.arange(11, dtype=torch.int32), 3)
    batch = source.batch(torch.arange(len(source)), None)
    assert batch.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert batch.dtype == torch.long


def test_evaluation_texts_can_be_shortened(texts):
    splits = wikitext.load(texts, "wikitext-2", length=8, valid_blocks=3, test_blocks=5)
    assert (len(splits.valid), len(splits.test)) == (3, 5)


def test_a_bad_text_is_one_sentence_with_path_and_remedy(tmp_path):
    load = {"name": "wikitext-2", "length": 4}
    for split in ("train", "valid", "test"):
        path = tmp_path / f"wiki.{split}.tokens"
        for raw, words in (
            (b"", "is empty"),
            (b" \n \n", "is empty"),
            (b" a \n", "has 2 words"),
            (b" a b c d e f g h", "does not end with an end of line"),
            (b"\xff\xfe\x00\n", "is not UTF-8"),
        ):
            write_texts(tmp_path)
            path.write_bytes(raw)
            with pytest.raises(ValueError, match=re.escape(f"{path} {words}") + ".*https://") as caught:
                wikitext.load(tmp_path, **load)
            assert "\n" not in str(caught.value)
        write_texts(tmp_path)
        path.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(f"{path} is missing") + ".*https://"):
            wikitext.load(tmp_path, **load)
    with pytest.raises(FileNotFoundError, match=r"nowhere.wiki\.train\.tokens is missing"):
        wikitext.load(tmp_path / "nowhere", **load)


# Embedded data


def test_docstrings_read_like_wikitext(texts):
    lines = (texts / "wikitext-2" / "wiki.train.tokens").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(" ") and line.endswith(" ") for line in lines)
    assert any(line.startswith(" = ") for line in lines)
    splits = wikitext.load(texts, "wikitext-2", length=32, vocabulary=2000)
    assert len(splits.train.words) > 100_000
    assert min(len(splits.valid.words), len(splits.test.words)) > 10_000


def test_no_paragraph_is_in_two_splits(texts):
    """Else a model that learns by heart would be rewarded; titles apart, which say where a module begins."""
    train, valid, test = (
        set((texts / "wikitext-2" / f"wiki.{split}.tokens").read_text("utf-8").splitlines()) - {" "}
        for split in ("train", "valid", "test")
    )
    assert min(map(len, (train, valid, test))) > 500
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)


def test_embedded_data_is_written_once(tmp_path):
    path = digits.write(tmp_path) / "test_batch"
    before = path.stat().st_mtime_ns
    digits.write(tmp_path)
    assert path.stat().st_mtime_ns == before


def test_two_processes_at_once_write_it_once(tmp_path):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        paths = list(pool.map(digits.write, [tmp_path] * 4))
    assert len(set(paths)) == 1
    assert [path.name for path in (tmp_path / digits.VERSION).iterdir()] == [cifar.FOLDER]
    cifar.load(tmp_path / digits.VERSION)


def test_who_comes_second_takes_what_the_first_wrote(tmp_path):
    target = tmp_path / "data"

    def overtaken(draft):
        (draft / "file").write_text("second")
        once(target, lambda first: (first / "file").write_text("first"))

    assert once(target, overtaken) == target
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    def full_disk(draft):
        (draft / "file").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="cannot be written \\(No space left on device\\): make room"):
        once(tmp_path / "data", full_disk)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        once(tmp_path / "file" / "data", lambda _: None)


# The real thing


def test_the_real_cifar10():
    if not (REAL / cifar.FOLDER).is_dir():
        pytest.skip(f"no {cifar.FOLDER} in {REAL}")
    splits = cifar.load(REAL)
    assert len(splits.test) == 10_000
    assert torch.bincount(splits.test.labels).tolist() == [1000] * 10
    assert len(splits.train) + len(splits.valid) in {10_000 * n for n in range(1, 6)}
    # The means of CIFAR-10's channels that everybody knows: 0.491, 0.482, 0.447.
    means = splits.train.pixels.float().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.005)


def test_the_real_wikitext2():
    if not (REAL / "wikitext-2").is_dir():
        pytest.skip(f"no wikitext-2 in {REAL}")
    splits = wikitext.load(REAL, "wikitext-2", length=64)
    assert [len(split.words) for split in (splits.train, splits.valid, splits.test)] == [
        2_088_628,
        217_646,
        245_569,
    ]
    assert int(splits.train.words.max()) + 1 == 33_278
