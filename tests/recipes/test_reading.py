"""Every data module gives a one-line error for files that are missing, unreadable or cut short."""

import errno
import os
import re
import shutil

import numpy as np
import pytest
import torch
from support.small_images import SMALL, write_batches, write_folders
from support.small_pairs import FILES, LOAD, write_pairs
from support.small_text import load_plain, write_plain, write_wikitext
from support.small_volumes import write_chests, write_small

from dualavg_bench.data import chest_mri, cifar, fastmri, imagenet, translation, wikitext
from dualavg_bench.data.reading import check_count, find_folder, read_lines, reading

pytestmark = pytest.mark.usefixtures("one_thread")

SPLITS = ("train", "valid", "test")
MODULES = {
    "cifar": (write_batches, cifar.load),
    "imagenet": (write_folders, lambda folder: imagenet.load(folder, **SMALL, in_memory=True)),
    "fastmri": (write_small, lambda folder: fastmri.load(folder, centre=2)),
    "chest_mri": (
        lambda folder: write_chests(folder, np.zeros(1)),  # never read to the end
        lambda folder: chest_mri.load(folder, centre=6),
    ),
    "translation": (write_pairs, lambda folder: translation.load(folder, **LOAD)),
    "wikitext": (write_wikitext, lambda folder: wikitext.load(folder, "wikitext-2", length=2)),
    "plain_text": (write_plain, load_plain),
}
READ = {  # by module: the files it reads and the folders it lists
    "cifar": ["data_batch_1", "test_batch"],
    "imagenet": ["train", "val", "train/n01/n01_3.JPEG", "val/n01/n01_1.JPEG"],
    "fastmri": [fastmri.TRAIN, fastmri.VALID, f"{fastmri.TRAIN}/fileain0.h5", f"{fastmri.VALID}/fileval1.h5"],
    "chest_mri": [f"{chest_mri.FOLDER}/{chest_mri.NAME}"],
    "translation": FILES,
    "wikitext": [f"wiki.{split}.tokens" for split in SPLITS],
    "plain_text": [f"{split}.txt" for split in SPLITS],
}
LISTED = ("train", "val", fastmri.TRAIN, fastmri.VALID)
FOLDERS = {  # by module: the folder that may be named or not
    "cifar": cifar.FOLDER,
    "imagenet": "imagenet",
    "chest_mri": chest_mri.FOLDER,
    "translation": "somewhere",
    "wikitext": "wikitext-2",
    "plain_text": "books-wiki",
}
EACH = [pytest.param(name, path, id=f"{name}-{path}") for name, paths in READ.items() for path in paths]
TEXTS = [each for each in EACH if each.values[0] in ("translation", "wikitext", "plain_text")]


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_one_line(message, path):
    """One line with the path and, after a semicolon, where to get the data."""
    return str(path) in message and "\n" not in message and "; " in message and message.endswith(".")


# Every file of every data module


@pytest.mark.parametrize(("name", "path"), EACH)
def test_an_unreadable_file_gives_a_one_line_error(tmp_path, name, path):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    remove(location)
    location.symlink_to(location)  # a loop, unreadable even for root
    with pytest.raises(ValueError, match=re.escape(f"{location} cannot be read (Too many levels")) as caught:
        load(location.parents[path.count("/")])
    assert is_one_line(str(caught.value), location)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(("name", "path"), [each for each in EACH if each.values[1] not in LISTED])
def test_a_folder_in_place_of_a_file_gives_a_one_line_error(tmp_path, name, path):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    remove(location)
    location.mkdir()
    with pytest.raises(ValueError, match=re.escape(f"{location} cannot be read (Is a directory)")) as caught:
        load(location.parents[path.count("/")])
    assert is_one_line(str(caught.value), location)


@pytest.mark.parametrize("name", READ)
def test_a_file_in_place_of_the_folder_gives_a_one_line_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        MODULES[name][1](tmp_path / "file")
    assert is_one_line(str(caught.value), tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "path"), [each for each in EACH if not each.values[1].endswith((".JPEG", ".h5"))]
)
def test_a_missing_file_gives_a_one_line_error(tmp_path, name, path):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    remove(location)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{location} is missing")) as caught:
        load(location.parents[path.count("/")])
    assert is_one_line(str(caught.value), location)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_folder_is_named(tmp_path, name):
    for parent in (tmp_path, tmp_path / "nowhere"):
        message = re.escape(f"so is the folder {parent / FOLDERS[name]}:")
        with pytest.raises(FileNotFoundError, match=message) as caught:
            MODULES[name][1](parent)
        assert is_one_line(str(caught.value), parent)


@pytest.mark.parametrize("name", set(FOLDERS) - {"chest_mri"})  # which has its own test, with complete data
def test_both_the_folder_and_its_parent_are_accepted(tmp_path, name):
    write, load = MODULES[name]
    write(tmp_path / FOLDERS[name])
    sizes = [
        [len(split) for split in (splits.train, splits.valid, splits.test)]
        for splits in (load(tmp_path), load(tmp_path / FOLDERS[name]))
    ]
    assert sizes[0] == sizes[1]


# Text


@pytest.mark.parametrize(("name", "path"), TEXTS)
def test_a_text_that_was_cut_short_is_refused(tmp_path, name, path):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    raw = location.read_bytes()
    for cut in (raw[:-1], raw[:-3], "ein Häuschen".encode()[:6]):
        location.write_bytes(cut)
        words = "does not end with a newline and was probably cut short; if it is complete, add one"
        with pytest.raises(ValueError, match=re.escape(f"{location} {words}")) as caught:
            load(tmp_path)
        assert is_one_line(str(caught.value), location)


@pytest.mark.parametrize("raw", [b"", b"\n", b" \n\n\t\r\n"])
@pytest.mark.parametrize(("name", "path"), TEXTS)
def test_a_text_of_blank_lines_is_empty(tmp_path, name, path, raw):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    location.write_bytes(raw)
    with pytest.raises(ValueError, match=re.escape(f"{location} is empty")) as caught:
        load(tmp_path)
    assert is_one_line(str(caught.value), location)


@pytest.mark.parametrize(("name", "path"), TEXTS)
def test_a_text_that_is_not_utf8_is_refused(tmp_path, name, path):
    write, load = MODULES[name]
    location = write(tmp_path) / path
    location.write_bytes("café\n".encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(f"{location} is not UTF-8 text")) as caught:
        load(tmp_path)
    assert is_one_line(str(caught.value), location)


def test_lines_end_only_at_a_newline(tmp_path):
    (tmp_path / "text").write_bytes("a\r\n\u2028\n\n b\x0b\x0c\x85\n".encode())
    assert list(read_lines(tmp_path / "text", "a text", "ask")) == [
        "a\r\n",
        "\u2028\n",
        "\n",
        " b\x0b\x0c\x85\n",
    ]


# The messages


@pytest.mark.parametrize("code", [errno.EACCES, errno.EISDIR, errno.EIO, errno.ENAMETOOLONG])
def test_system_errors_keep_their_own_words(code):
    expected = f"x cannot be read ({os.strerror(code)}): expected a text; ask somebody."
    with pytest.raises(ValueError, match=re.escape(expected)), reading("x", "a text", "ask somebody"):
        raise OSError(code, "name = 'x', errno = 13,\n error message = '...'")


def test_errors_of_libraries_mean_a_malformed_file():
    for error in (
        OSError("truncated\n file"),
        KeyError("data"),
        UnicodeDecodeError("utf-8", b"", 0, 1, "bad"),
    ):
        with (
            pytest.raises(ValueError, match=r"^x is not a picture \(.*\); ask\.$"),
            reading("x", "a picture", "ask"),
        ):
            raise error


def test_an_unreadable_folder_is_not_reported_as_missing(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.stat", refuse)
    expected = re.escape(f"{tmp_path / 'inner'} cannot be read (Permission denied)")
    with pytest.raises(ValueError, match=expected):
        find_folder(tmp_path, "inner", "file", "a file", "ask")


def test_the_inner_folder_is_preferred(tmp_path):
    (tmp_path / "file").touch()
    assert find_folder(tmp_path, "inner", "file", "", "") == tmp_path
    (tmp_path / "inner").mkdir()
    assert find_folder(tmp_path, "inner", "file", "", "") == tmp_path / "inner"


def test_a_wrong_count_is_reported_with_the_right_one(tmp_path):
    check_count(tmp_path, "images", 50_000, 50_000, "ask")
    expected = re.escape(f"{tmp_path} has 20,000 images, expected 50,000; ask.")
    with pytest.raises(ValueError, match=expected):
        check_count(tmp_path, "images", 20_000, 50_000, "ask")


def test_an_unreadable_class_folder_gives_a_one_line_error(tmp_path, monkeypatch):
    location, entries = write_folders(tmp_path) / "val" / "n02", imagenet._entries

    def refuse(folder):
        if folder == location:
            raise PermissionError(errno.EACCES, "Permission denied")
        return entries(folder)

    monkeypatch.setattr(imagenet, "_entries", refuse)
    with pytest.raises(
        ValueError, match=re.escape(f"{location} cannot be read (Permission denied)")
    ) as caught:
        imagenet.load(tmp_path, **SMALL)
    assert is_one_line(str(caught.value), location)


def test_images_that_vanish_after_loading_give_a_one_line_error(tmp_path):
    source = imagenet.load(write_folders(tmp_path), **SMALL).test
    location = tmp_path / "val" / "n01" / "n01_0.JPEG"
    location.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{location} is missing")):
        source.batch(torch.tensor([0]), None)
    location.symlink_to(location)
    with pytest.raises(ValueError, match=re.escape(f"{location} cannot be read")):
        source.batch(torch.tensor([0]), None)
