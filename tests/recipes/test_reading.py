"""Files that are missing, cannot be read or break off: one sentence from every data module."""

import errno
import os
import re
import shutil

import pytest
import torch
from support.small_images import SMALL, write_folders
from support.small_pairs import FILES, LOAD, write_pairs
from support.small_text import loaded, write_texts, written
from support.small_volumes import write_chests, write_small

from dualavg_bench.data import chest_mri, cifar, fastmri, imagenet, translation, wikitext
from dualavg_bench.data.embedded import digits
from dualavg_bench.data.reading import check_count, folder_of, lines, reading

pytestmark = pytest.mark.usefixtures("one_thread")

SPLITS = ("train", "valid", "test")
MODULES = {
    "cifar": (digits.write, cifar.load),
    "imagenet": (write_folders, lambda folder: imagenet.load(folder, **SMALL, in_memory=True)),
    "fastmri": (write_small, lambda folder: fastmri.load(folder, centre=2)),
    "chest_mri": (write_chests, lambda folder: chest_mri.load(folder, centre=6)),
    "translation": (write_pairs, lambda folder: translation.load(folder, **LOAD)),
    "wikitext": (write_texts, lambda folder: wikitext.load(folder, "wikitext-2", length=2)),
    "plain_text": (written, loaded),
}
READ = {  # what each of them reads: files, and folders that are listed
    "cifar": ["data_batch_1", "test_batch"],
    "imagenet": ["train", "val", "train/n01/n01_3.JPEG", "val/n01/n01_1.JPEG"],
    "fastmri": [fastmri.TRAIN, fastmri.VALID, f"{fastmri.TRAIN}/fileain0.h5", f"{fastmri.VALID}/fileval1.h5"],
    "chest_mri": [f"{chest_mri.FOLDER}/{chest_mri.NAME}"],
    "translation": FILES,
    "wikitext": [f"wiki.{split}.tokens" for split in SPLITS],
    "plain_text": [f"{split}.txt" for split in SPLITS],
}
FOLDERS = ("train", "val", fastmri.TRAIN, fastmri.VALID)
EACH = [pytest.param(name, path, id=f"{name}-{path}") for name, paths in READ.items() for path in paths]
TEXTS = [each for each in EACH if each.values[0] in ("translation", "wikitext", "plain_text")]


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_one_sentence(message, path):
    return str(path) in message and "\n" not in message and "; " in message and message.endswith(".")


# Of every data module, every file


@pytest.mark.parametrize(("name", "path"), EACH)
def test_what_cannot_be_read_is_one_sentence_with_path_and_remedy(tmp_path, name, path):
    write, load = MODULES[name]
    place = write(tmp_path) / path
    remove(place)
    place.symlink_to(place)  # a loop, which nobody can follow, root included
    with pytest.raises(ValueError, match=re.escape(f"{place} cannot be read (Too many levels")) as caught:
        load(place.parents[path.count("/")])
    assert is_one_sentence(str(caught.value), place)
    assert "was expected" in str(caught.value)


@pytest.mark.parametrize(("name", "path"), [each for each in EACH if each.values[1] not in FOLDERS])
def test_a_folder_in_place_of_a_file_is_one_sentence(tmp_path, name, path):
    write, load = MODULES[name]
    place = write(tmp_path) / path
    remove(place)
    place.mkdir()
    with pytest.raises(ValueError, match=re.escape(f"{place} cannot be read (Is a directory)")) as caught:
        load(place.parents[path.count("/")])
    assert is_one_sentence(str(caught.value), place)


@pytest.mark.parametrize("name", READ)
def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        MODULES[name][1](tmp_path / "file")
    assert is_one_sentence(str(caught.value), tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "path"), [each for each in EACH if not each.values[1].endswith((".JPEG", ".h5"))]
)
def test_what_is_missing_is_one_sentence_with_path_and_remedy(tmp_path, name, path):
    write, load = MODULES[name]
    place = write(tmp_path) / path
    remove(place)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{place} is missing")) as caught:
        load(place.parents[path.count("/")])
    assert is_one_sentence(str(caught.value), place)


@pytest.mark.parametrize("name", set(READ) - {"fastmri"})
def test_a_missing_folder_is_named(tmp_path, name):
    folder = {
        "cifar": cifar.FOLDER,
        "imagenet": "imagenet",
        "chest_mri": chest_mri.FOLDER,
        "translation": "somewhere",
        "wikitext": "wikitext-2",
        "plain_text": "books-wiki",
    }[name]
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            FileNotFoundError, match=re.escape(f"so is the folder {where / folder}:")
        ) as caught:
            MODULES[name][1](where)
        assert is_one_sentence(str(caught.value), where)


# Text that breaks off


@pytest.mark.parametrize(("name", "path"), TEXTS)
def test_text_that_was_cut_short_is_refused(tmp_path, name, path):
    write, load = MODULES[name]
    place = write(tmp_path) / path
    raw = place.read_bytes()
    for cut in (raw[:-1], raw[:-3], "ein Häuschen".encode()[:6]):
        place.write_bytes(cut)
        words = "does not end with an end of line, and was probably cut short; if it is whole, add one"
        with pytest.raises(ValueError, match=re.escape(f"{place} {words}")) as caught:
            load(tmp_path)
        assert is_one_sentence(str(caught.value), place)


@pytest.mark.parametrize("raw", [b"", b"\n", b" \n\n\t\r\n"])
@pytest.mark.parametrize(("name", "path"), TEXTS)
def test_text_of_blank_lines_is_empty(tmp_path, name, path, raw):
    write, load = MODULES[name]
    place = write(tmp_path) / path
    place.write_bytes(raw)
    with pytest.raises(ValueError, match=re.escape(f"{place} is empty")) as caught:
        load(tmp_path)
    assert is_one_sentence(str(caught.value), place)


def test_lines_are_those_of_the_file_and_end_at_a_newline_alone(tmp_path):
    (tmp_path / "text").write_bytes("a\r\n\u2028\n\n b\x0b\x0c\x85\n".encode())
    assert list(lines(tmp_path / "text", "a text", "ask")) == ["a\r\n", "\u2028\n", "\n", " b\x0b\x0c\x85\n"]


# The words themselves


@pytest.mark.parametrize("code", [errno.EACCES, errno.EISDIR, errno.EIO, errno.ENAMETOOLONG])
def test_every_error_of_the_system_is_told_by_its_own_words(code):
    expected = f"x cannot be read ({os.strerror(code)}): a text, was expected; ask somebody."
    with pytest.raises(ValueError, match=re.escape(expected)), reading("x", "a text", "ask somebody"):
        raise OSError(code, "name = 'x', errno = 13,\n error message = '...'")


def test_what_a_library_does_not_understand_is_not_what_was_expected():
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


def test_a_folder_that_cannot_be_looked_into_is_no_missing_folder(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.stat", refuse)
    expected = re.escape(f"{tmp_path / 'inner'} cannot be read (Permission denied)")
    with pytest.raises(ValueError, match=expected):
        folder_of(tmp_path, "inner", "file", "a file", "ask")


def test_the_inner_folder_goes_before_the_outer(tmp_path):
    (tmp_path / "file").touch()
    assert folder_of(tmp_path, "inner", "file", "", "") == tmp_path
    (tmp_path / "inner").mkdir()
    assert folder_of(tmp_path, "inner", "file", "", "") == tmp_path / "inner"


def test_a_wrong_number_is_told_with_the_right_one(tmp_path):
    check_count(tmp_path, "images", 50_000, 50_000, "ask")
    expected = re.escape(f"{tmp_path} has 20,000 images where 50,000 were expected; ask.")
    with pytest.raises(ValueError, match=expected):
        check_count(tmp_path, "images", 20_000, 50_000, "ask")


def test_a_class_that_cannot_be_looked_into_is_one_sentence(tmp_path, monkeypatch):
    place, entries = write_folders(tmp_path) / "val" / "n02", imagenet._entries

    def refuse(folder):
        if folder == place:
            raise PermissionError(errno.EACCES, "Permission denied")
        return entries(folder)

    monkeypatch.setattr(imagenet, "_entries", refuse)
    with pytest.raises(ValueError, match=re.escape(f"{place} cannot be read (Permission denied)")) as caught:
        imagenet.load(tmp_path, **SMALL)
    assert is_one_sentence(str(caught.value), place)


def test_images_that_vanish_or_lock_up_in_between_are_one_sentence_too(tmp_path):
    source = imagenet.load(write_folders(tmp_path), **SMALL).test
    place = tmp_path / "val" / "n01" / "n01_0.JPEG"
    place.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{place} is missing")):
        source.batch(torch.tensor([0]), None)
    place.symlink_to(place)
    with pytest.raises(ValueError, match=re.escape(f"{place} cannot be read")):
        source.batch(torch.tensor([0]), None)
