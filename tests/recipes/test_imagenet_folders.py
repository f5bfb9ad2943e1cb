"""ImageNet's folders: what is read of them, in which order, and what is refused."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_images import SMALL, pixels_of, smooth, write_folders

from dualavg_bench.data import imagenet
from dualavg_bench.data.embedded import digit_folders

pytestmark = pytest.mark.usefixtures("one_thread")


def test_digits_come_back_as_they_went_in(tmp_path):
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    test = np.random.default_rng(0).permutation(len(labels))[: digit_folders.TEST_DIGITS]
    expected = sorted((labels[i], i) for i in test)
    source = imagenet.load(
        digit_folders.write(tmp_path), classes=10, valid_of_class=30, size=32, resize=32, in_memory=True
    ).test
    images, read = source.batch(torch.arange(len(source)), None)
    assert read.tolist() == [label for label, _ in expected]
    grey = pixels_of(images)[:, 1].unflatten(2, (8, 4)).unflatten(1, (8, 4)).mean(dim=(2, 4))
    wanted = torch.tensor(np.array([small[i] for _, i in expected]).reshape(-1, 8, 8) * (255 / 16))
    assert (grey - wanted).abs().max() < 8  # a JPEG is not exact
    assert torch.equal(images, source.batch(torch.arange(len(source)), None)[0])


def test_images_are_floats_and_labels_whole_numbers(tmp_path):
    splits = imagenet.load(write_folders(tmp_path), **SMALL)
    for source, count in ((splits.train, 12), (splits.valid, 6), (splits.test, 6)):
        assert len(source) == count
        for rng in (None, torch.Generator().manual_seed(0)):
            images, labels = source.batch(torch.arange(count), rng)
            assert images.shape == (count, 3, 16, 16)
            assert images.dtype == torch.float32
            assert labels.dtype == torch.long
            assert images.is_contiguous()
        assert torch.bincount(labels).tolist() == [count // 3] * 3


def test_files_and_memory_give_the_same(tmp_path):
    write_folders(tmp_path)
    lazy, kept = (imagenet.load(tmp_path, **SMALL, in_memory=m).train for m in (False, True))
    assert isinstance(lazy.images[0], str)
    for seed in (None, 3):
        a, b = (
            source.batch(torch.arange(12).flip(0), None if seed is None else torch.Generator().manual_seed(3))
            for source in (lazy, kept)
        )
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_validation_is_fixed_disjoint_and_the_same_number_of_each_class(tmp_path):
    splits = imagenet.load(write_folders(tmp_path), **SMALL)
    train, valid = ([Path(p).name for p in source.images] for source in (splits.train, splits.valid))
    assert not set(train) & set(valid)
    assert len(set(train) | set(valid)) == 18
    assert torch.bincount(splits.valid.labels).tolist() == [2, 2, 2]
    assert all(
        name.startswith(("n01", "n02", "n10")[label])
        for name, label in zip(valid, splits.valid.labels, strict=True)
    )
    today = ["n01_2", "n01_0", "n02_1", "n02_0", "n10_0", "n10_1"]  # and every day
    assert [name.removesuffix(".JPEG") for name in valid] == today
    assert all("val" in Path(p).parts for p in splits.test.images)


def test_order_is_that_of_names_and_not_of_the_disk(tmp_path, monkeypatch):
    write_folders(tmp_path)
    entries = imagenet._entries
    found = []
    for turn in (1, -1):
        monkeypatch.setattr(
            imagenet,
            "_entries",
            lambda folder, turn=turn: sorted(entries(folder), key=lambda e: e.name)[::turn],
        )
        found.append(imagenet.load(tmp_path, **SMALL))
    for part in ("train", "valid", "test"):
        one, other = (getattr(splits, part) for splits in found)
        assert one.images == other.images
        assert torch.equal(one.labels, other.labels)


def test_both_the_folder_and_its_parent_will_do(tmp_path):
    write_folders(tmp_path / "imagenet")
    inner, outer = (imagenet.load(each, **SMALL) for each in (tmp_path / "imagenet", tmp_path))
    assert inner.valid.images == outer.valid.images


def test_what_is_no_image_is_passed_over(tmp_path):
    write_folders(tmp_path)
    for stray in ("train/n01/notes.txt", "train/n01/._n01_0.JPEG", "train/LICENSE", "val/.DS_Store"):
        (tmp_path / stray).write_bytes(b"no image")
    (tmp_path / "train" / ".cache").mkdir()
    assert len(imagenet.load(tmp_path, **SMALL, in_memory=True).train) == 12


def broken_exif(path):
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 9, 0x0112, 3, 1, 6) + b"\xff" * 20
    smooth(20, 24).save(path, format="JPEG", quality=95, subsampling=0, exif=exif)
    with pytest.warns(UserWarning, match="EXIF"):
        Image.open(path).close()


ODD = {
    "grey": lambda path: smooth(20, 24).convert("L").save(path, format="JPEG", quality=95),
    "CMYK": lambda path: smooth(20, 24).convert("CMYK").save(path, format="JPEG", quality=95),
    "a PNG by its content": lambda path: smooth(20, 24).save(path, format="PNG"),
    "with transparency": lambda path: smooth(20, 24).convert("RGBA").save(path, format="PNG"),
    "with broken EXIF": broken_exif,
}


@pytest.mark.parametrize("save", ODD.values(), ids=ODD.keys())
def test_odd_images_become_red_green_and_blue(tmp_path, save):
    save(write_folders(tmp_path) / "val" / "n01" / "n01_0.JPEG")
    source = imagenet.load(tmp_path, **SMALL).test
    made = pixels_of(source.batch(torch.tensor([0]), None)[0])
    plain = smooth(20, 24)
    if save is ODD["grey"]:
        plain = plain.convert("L").convert("RGB")
    wanted = torch.from_numpy(imagenet.centre(np.asarray(plain), 18, 16).copy()).permute(2, 0, 1)
    assert (made[0] - wanted).abs().mean() < 4


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


SPOILT = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "a web page": lambda path: path.write_text("<html>404</html>\n"),
    "a header alone": lambda path: path.write_bytes(path.read_bytes()[:30]),
}


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_image_is_one_sentence_with_path_and_remedy(tmp_path, spoil, part):
    spoil(path := write_folders(tmp_path) / part / "n02" / "n02_1.JPEG")
    lazy = imagenet.load(tmp_path, **SMALL)
    sources = (lazy.train, lazy.valid) if part == "train" else (lazy.test,)

    def read_all():
        for source in sources:
            source.batch(torch.arange(len(source)), None)

    for read in (read_all, lambda: imagenet.load(tmp_path, **SMALL, in_memory=True)):
        with pytest.raises(
            ValueError, match=re.escape(f"{path} is not a JPEG") + ".*https://image-net"
        ) as caught:
            read()
        assert "\n" not in str(caught.value)


def move_out_of_classes(folder):
    for path in sorted((folder / "val").glob("*/*")):
        path.rename(folder / "val" / path.name)
    for path in (folder / "val").glob("n??"):
        path.rmdir()


def empty_class(folder):
    for path in (folder / "train" / "n02").iterdir():
        path.unlink()


def too_few(folder):
    for i in range(4):
        (folder / "train" / "n02" / f"n02_{i}.JPEG").unlink()


WRONG = {
    "nothing": (lambda folder: folder.rename(folder.with_name("away")), "train is missing"),
    "no train": (lambda folder: (folder / "train").rename(folder / "training"), "train is missing"),
    "no val": (lambda folder: (folder / "val").rename(folder / "valid"), "val is missing"),
    "val in one heap": (move_out_of_classes, "val has no folders of classes"),
    "a class without images": (empty_class, "train/n02 has no images"),
    "a class that is in val alone": (
        lambda folder: (folder / "train" / "n02").rename(folder / "n02"), "train/n02 is missing"
    ),
    "a class that is in train alone": (
        lambda folder: (folder / "val" / "n10").rename(folder / "n10"), "val/n10 is missing"
    ),
    "too few for validation": (too_few, "train/n02 has 2 images where more than the 2"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_folders_are_one_sentence_with_path_and_remedy(tmp_path, spoil, words):
    folder = write_folders(tmp_path / "images")
    spoil(folder)
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        imagenet.load(folder, **SMALL)
    message = str(caught.value)
    assert message.startswith(f"{folder}/{words}".replace("/", os.sep))
    assert "https://image-net.org" in message
    assert "expected" in message
    assert "\n" not in message


def test_another_number_of_classes_is_refused(tmp_path):
    write_folders(tmp_path)
    with pytest.raises(ValueError, match=r"train has 3 classes where 1,000 were expected; .*https://"):
        imagenet.load(tmp_path)
