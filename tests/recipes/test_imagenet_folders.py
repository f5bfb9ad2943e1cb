"""ImageNet's folders: what is read, in which order, and what is refused."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_images import SMALL, smooth, unnormalized, write_folders

from dualavg_bench.data import imagenet
from dualavg_bench.data.embedded import digit_folders, digits

pytestmark = pytest.mark.usefixtures("one_thread")


def test_digits_are_read_back_almost_unchanged(embedded):
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    test = np.random.default_rng(0).permutation(len(labels))[: digits.TEST_DIGITS]
    expected = sorted((labels[i], i) for i in test)
    source = imagenet.load(
        digit_folders.write(embedded), classes=10, valid_of_class=30, size=32, resize=32, in_memory=True
    ).test
    images, labels_read = source.batch(torch.arange(len(source)), None)
    assert labels_read.tolist() == [label for label, _ in expected]
    grey = unnormalized(images)[:, 1].unflatten(2, (8, 4)).unflatten(1, (8, 4)).mean(dim=(2, 4))
    wanted = torch.tensor(np.array([small[i] for _, i in expected]).reshape(-1, 8, 8) * (255 / 16))
    assert (grey - wanted).abs().max() < 8  # JPEG is not exact
    assert torch.equal(images, source.batch(torch.arange(len(source)), None)[0])


def test_images_are_floats_and_labels_integers(tmp_path):
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


def test_images_from_files_and_from_memory_are_equal(tmp_path):
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


def test_validation_is_fixed_disjoint_and_balanced(tmp_path):
    splits = imagenet.load(write_folders(tmp_path), **SMALL)
    train, valid = ([Path(p).name for p in source.images] for source in (splits.train, splits.valid))
    assert not set(train) & set(valid)
    assert len(set(train) | set(valid)) == 18
    assert torch.bincount(splits.valid.labels).tolist() == [2, 2, 2]
    assert all(
        name.startswith(("n01", "n02", "n10")[label])
        for name, label in zip(valid, splits.valid.labels, strict=True)
    )
    fixed = ["n01_2", "n01_0", "n02_1", "n02_0", "n10_0", "n10_1"]  # must never change
    assert [name.removesuffix(".JPEG") for name in valid] == fixed
    assert all("val" in Path(p).parts for p in splits.test.images)


def test_files_are_sorted_by_name(tmp_path, monkeypatch):
    write_folders(tmp_path)
    entries = imagenet._entries
    loaded = []
    for direction in (1, -1):
        monkeypatch.setattr(
            imagenet,
            "_entries",
            lambda folder, step=direction: sorted(entries(folder), key=lambda e: e.name)[::step],
        )
        loaded.append(imagenet.load(tmp_path, **SMALL))
    for part in ("train", "valid", "test"):
        one, other = (getattr(splits, part) for splits in loaded)
        assert one.images == other.images
        assert torch.equal(one.labels, other.labels)


def test_other_files_are_ignored(tmp_path):
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
def test_other_image_modes_become_rgb(tmp_path, save):
    save(write_folders(tmp_path) / "val" / "n01" / "n01_0.JPEG")
    source = imagenet.load(tmp_path, **SMALL).test
    pixels = unnormalized(source.batch(torch.tensor([0]), None)[0])
    plain = smooth(20, 24)
    if save is ODD["grey"]:
        plain = plain.convert("L").convert("RGB")
    expected = torch.from_numpy(imagenet.centre(np.asarray(plain), 18, 16).copy()).permute(2, 0, 1)
    assert (pixels[0] - expected).abs().mean() < 4


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


DAMAGED = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "a web page": lambda path: path.write_text("<html>404</html>\n"),
    "a header alone": lambda path: path.write_bytes(path.read_bytes()[:30]),
}


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_image_gives_a_one_line_error(tmp_path, damage, part):
    damage(path := write_folders(tmp_path) / part / "n02" / "n02_1.JPEG")
    lazy = imagenet.load(tmp_path, **SMALL)
    sources = (lazy.train, lazy.valid) if part == "train" else (lazy.test,)

    def read_all():
        for source in sources:
            source.batch(torch.arange(len(source)), None)

    for read in (read_all, lambda: imagenet.load(tmp_path, **SMALL, in_memory=True)):
        with pytest.raises(
            ValueError, match=re.escape(f"{path} is not a readable JPEG") + ".*https://image-net"
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
    "no class folders in val": (move_out_of_classes, "val has no class folders"),
    "a class without images": (empty_class, "train/n02 has no images"),
    "a class only in val": (
        lambda folder: (folder / "train" / "n02").rename(folder / "n02"), "train/n02 is missing"
    ),
    "a class only in train": (
        lambda folder: (folder / "val" / "n10").rename(folder / "n10"), "val/n10 is missing"
    ),
    "too few for validation": (too_few, "train/n02 has 2 images, expected more than the 2"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_folders_give_a_one_line_error(tmp_path, damage, words):
    folder = write_folders(tmp_path / "images")
    damage(folder)
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        imagenet.load(folder, **SMALL)
    message = str(caught.value)
    assert message.startswith(f"{folder}/{words}".replace("/", os.sep))
    assert "https://image-net.org" in message
    assert "expected" in message
    assert "\n" not in message


@pytest.mark.parametrize(("images", "part", "found"), [((19, 6), "train", 18), ((18, 7), "val", 6)])
def test_another_number_of_images_is_refused(tmp_path, images, part, found):
    assert imagenet.load(write_folders(tmp_path), **SMALL, images=(18, 6))
    with pytest.raises(ValueError, match=f"{part} has {found} images, expected {found + 1}; .*https://"):
        imagenet.load(tmp_path, **SMALL, images=images)
