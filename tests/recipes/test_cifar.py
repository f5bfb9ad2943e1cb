"""CIFAR-10's format: what is read, how images are augmented, and which pickles are refused."""

import io
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from support.real_data import REAL, needs
from support.small_images import cifar_batch, python2_pickle, write_batches

from dualavg_bench.data import cifar
from dualavg_bench.data.embedded import digits
from dualavg_bench.recipes import cifar10


@pytest.fixture(scope="module")
def written(embedded):
    return digits.write(embedded)


# What is read


def test_digits_are_read_back_unchanged(written):
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    test = cifar.load(written).test
    order = np.random.default_rng(0).permutation(len(labels))[: digits.TEST_DIGITS]
    assert test.labels.tolist() == labels[order].tolist()
    back = np.round(test.pixels[:, 1, ::4, 3::4].numpy() / (255 / 16))
    assert np.array_equal(back, small[order].reshape(-1, 8, 8))


def test_digits_are_written_as_python_2_pickles(written):
    raw = (written / "data_batch_1").read_bytes()
    assert raw.startswith(b"\x80\x02")
    assert b"_codecs" not in raw
    batch = pickle.loads(raw, encoding="bytes")  # written by us
    assert batch[b"data"].dtype == np.uint8
    assert batch[b"data"].shape == (len(batch[b"labels"]), 3072)


def test_splits_are_disjoint_and_fixed(tmp_path):
    pixels = np.zeros((20, 3072), np.uint8)
    pixels[:, 0] = np.arange(20)
    write_batches(tmp_path, data_batch_1=cifar_batch(pixels, [0] * 20))
    splits = cifar.load(tmp_path, one_in=5)
    train, valid = (set(split.pixels[:, 0, 0, 0].tolist()) for split in (splits.train, splits.valid))
    assert len(valid) == 4
    assert train | valid == set(range(20))
    assert splits.valid.pixels[:, 0, 0, 0].tolist() == [8, 9, 6, 2]  # must never change


def test_all_training_batches_are_read(tmp_path):
    write_batches(tmp_path, data_batch_2=cifar_batch(np.zeros((10, 3072), np.uint8), [7] * 10))
    splits = cifar.load(tmp_path)
    assert (len(splits.train), len(splits.valid)) == (27, 3)
    assert {0, 7} == set(splits.train.labels.tolist())


def numbered_batches(folder, batches):
    """Training batches of 20 images; the first pixel of each image is its number."""
    pixels = np.zeros((20 * batches, 3072), np.uint8)
    pixels[:, 0] = np.arange(20 * batches)
    parts = np.split(pixels, batches)
    files = {f"data_batch_{i}": cifar_batch(part, [0] * 20) for i, part in enumerate(parts, start=1)}
    return write_batches(folder, **files)


def numbers(split):
    return split.pixels[:, 0, 0, 0].tolist()


def test_a_part_of_the_training_images_is_fixed_and_random_and_leaves_validation_as_it_is(tmp_path):
    numbered_batches(tmp_path, 1)
    part, complete = cifar.load(tmp_path, one_in=5, part=6), cifar.load(tmp_path, one_in=5)
    assert numbers(part.train) == numbers(cifar.load(tmp_path, one_in=5, part=6).train)
    assert set(numbers(part.train)) < set(numbers(complete.train))
    assert len(part.train) == 6
    assert sorted(numbers(part.train)) != list(range(6))
    assert numbers(part.valid) == numbers(complete.valid)
    assert len(part.test) == len(complete.test)


def test_a_part_larger_than_the_data_is_refused(tmp_path):
    numbered_batches(tmp_path, 1)
    assert len(cifar.load(tmp_path, one_in=5, part=16).train) == 16
    with pytest.raises(ValueError, match=r"has 16 images for training, expected 17; .*cs\.toronto\.edu"):
        cifar.load(tmp_path, one_in=5, part=17)


def test_later_batches_can_be_left_unread(tmp_path):
    two = cifar.load(numbered_batches(tmp_path / "two", 2), part=10)
    five = numbered_batches(tmp_path / "five", 5)
    assert numbers(cifar.load(five, batches=2, part=10).train) == numbers(two.train)
    assert numbers(cifar.load(five, part=10).train) != numbers(two.train)


def test_a_gap_between_training_batches_is_refused(tmp_path):
    write_batches(tmp_path, data_batch_3=cifar_batch(np.zeros((10, 3072), np.uint8), [7] * 10))
    with pytest.raises(FileNotFoundError, match="data_batch_2 is missing"):
        cifar.load(tmp_path)


@pytest.mark.parametrize(("images", "unit"), [((21, 20), "training"), ((20, 21), "test")])
def test_another_number_of_images_is_refused(tmp_path, images, unit):
    assert cifar.load(write_batches(tmp_path), images=(20, 20))
    with pytest.raises(ValueError, match=f"has 20 {unit} images, expected 21"):
        cifar.load(tmp_path, images=images)


def test_fortran_order_is_understood(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(20, 3072), dtype=np.uint8)
    write_batches(tmp_path, test_batch=cifar_batch(np.asfortranarray(pixels), [1] * 20))
    assert np.array_equal(cifar.load(tmp_path).test.pixels.flatten(1).numpy(), pixels)


# Augmentation


def test_without_rng_images_are_only_scaled():
    pixels = torch.arange(2 * 3072).remainder(256).to(torch.uint8).view(2, 3, 32, 32)
    images, labels = cifar.Images(pixels, torch.tensor([3, 4])).batch(torch.tensor([1]), None)
    assert torch.allclose(images, (pixels[1:] / 255 - 0.5) / 0.5, atol=1e-6)
    assert labels.tolist() == [4]


def test_augmentation_is_a_flip_and_a_shift_and_nothing_else():
    pixels = torch.randint(1, 256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    source = cifar.Images(pixels, torch.tensor([0]))
    images, _ = source.batch(torch.zeros(400, dtype=torch.long), torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(pixels[0], 4 * [4])
    expected = {
        (window.flip(2) if flip else window).numpy().tobytes(): (flip, top, left)
        for flip in (False, True)
        for top in range(9)
        for left in range(9)
        for window in [padded[:, top : top + 32, left : left + 32]]
    }
    seen = {expected[image.numpy().tobytes()] for image in ((images + 1) * 127.5).round().byte()}
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


# Pickles


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "was_run"
    for value in (Malicious(os.mkdir, str(mark)), Malicious(exec, f"open({str(mark)!r}, 'w')")):
        raw = pickle.dumps({b"data": value, b"labels": []}, protocol=2)
        with pytest.raises(ValueError, match=r"data_batch_1 .*was not run.*cs\.toronto\.edu"):
            cifar.load(write_batches(tmp_path, data_batch_1=raw))
        assert not mark.exists()


@pytest.mark.parametrize("name", ["eval", "getattr"])
def test_nothing_is_imported_by_name(name):
    raw = b"\x80\x02cbuiltins\n" + name.encode() + b"\n."
    with pytest.raises(pickle.UnpicklingError, match=f"builtins.{name}"):
        cifar._Unpickler(io.BytesIO(raw)).load()


def test_a_pickle_cannot_set_attributes_of_the_accepted_classes():
    # BUILD on the accepted classes themselves, with a dict that would become their attributes.
    for name in cifar._Unpickler.ACCEPTED:
        raw = b"\x80\x02c" + "\n".join(name).encode() + b"\n}U\x05valueK\x01s"
        with pytest.raises(TypeError):
            cifar._Unpickler(io.BytesIO(raw + b"b."), encoding="bytes").load()


GOOD = cifar_batch(np.zeros((20, 3072), np.uint8), [0] * 20)
MALFORMED = {
    "empty": b"",
    "truncated": GOOD[:-1000],
    "text": b"<html>404</html>",
    "no dict": python2_pickle([1, 2]),
    "no data": python2_pickle({b"labels": [1]}),
    "no labels": python2_pickle({b"data": np.zeros((20, 3072), np.uint8)}),
    "wrong width": cifar_batch(np.zeros((20, 3071), np.uint8), [0] * 20),
    "wrong dimensions": cifar_batch(np.zeros((20, 3, 32, 32), np.uint8), [0] * 20),
    "no images": cifar_batch(np.zeros((0, 3072), np.uint8), []),
    "wrong type": cifar_batch(np.zeros((20, 3072), np.float32), [0] * 20),
    "too few labels": cifar_batch(np.zeros((20, 3072), np.uint8), [0] * 19),
    "a label of CIFAR-100": cifar_batch(np.zeros((20, 3072), np.uint8), [0] * 19 + [10]),
    "a label that is no number": cifar_batch(np.zeros((20, 3072), np.uint8), [0] * 19 + [b"cat"]),
    "a wrong shape": GOOD.replace(struct.pack("<BH", 0x4D, 3072), struct.pack("<BH", 0x4D, 3073)),
    "a memo bomb": b"\x80\x02}r\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch"])
@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_batch_gives_a_one_line_error_with_path_and_source(tmp_path, raw, name):
    with pytest.raises(ValueError, match="is not a pickled dict") as caught:
        cifar.load(write_batches(tmp_path, **{name: raw}))
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert "(n, 3072)" in message
    assert "https://www.cs.toronto.edu" in message
    assert "\n" not in message


@needs(cifar.FOLDER)
def test_the_mini_scale_of_the_real_cifar10():
    splits = cifar10.recipe("mini").data(REAL)
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [4500, 5000, 10_000]
    assert torch.bincount(splits.train.labels).min() > 400


@needs(cifar.FOLDER)
def test_the_real_cifar10():
    splits = cifar.load(REAL)
    assert len(splits.test) == 10_000
    assert torch.bincount(splits.test.labels).tolist() == [1000] * 10
    assert len(splits.train) + len(splits.valid) in {10_000 * n for n in range(1, 6)}
    # The well-known means of CIFAR-10's channels.
    means = splits.train.pixels.float().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.005)
