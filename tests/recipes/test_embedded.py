"""Embedded data are written once and atomically; errors say how to repair them."""

import importlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dualavg_bench.data import fastmri, wikitext
from dualavg_bench.data.embedded import dates, digit_folders, digits, docstrings, once, phantoms
from dualavg_bench.recipes import builtin
from dualavg_bench.store.files import StoreError

pytestmark = pytest.mark.usefixtures("one_thread")

WRITTEN = {  # by recipe: what writes its data, and a file to damage
    "cifar10": (digits.write, "test_batch"),
    "imagenet": (digit_folders.write, "train/3"),
    "fastmri": (phantoms.write, f"{fastmri.VALID}/phantom040.h5"),
    "iwslt14": (dates.write, "valid.de"),
    "roberta": (docstrings.write_plain, "valid.txt"),
    "wikitext103": (docstrings.write, "wiki.valid.tokens"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_damaged_data_say_how_to_repair_them(name, embedded, tmp_path):
    write, file = WRITTEN[name]
    written = write(embedded)
    copy = shutil.copytree(written, tmp_path / written.relative_to(embedded))
    if (copy / file).is_dir():
        shutil.rmtree(copy / file)
    else:
        (copy / file).write_bytes(b"")
    with pytest.raises((ValueError, FileNotFoundError), match=f"{file}.* remove the folder"):
        importlib.import_module(builtin()[name]).recipe("quick").data(tmp_path)


def test_data_are_written_once(tmp_path):
    path = dates.write(tmp_path) / "test.de"
    before = path.stat().st_mtime_ns
    dates.write(tmp_path)
    assert path.stat().st_mtime_ns == before


def test_two_writers_at_once_leave_one_complete_folder(tmp_path):
    target, both_have_begun = tmp_path / "data", Barrier(2, timeout=10)

    def write(draft):
        (draft / "first").write_text("")
        both_have_begun.wait()
        (draft / "second").write_text("")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(once, [target] * 2, [write] * 2)) == [target] * 2
    assert list(tmp_path.iterdir()) == [target]
    assert sorted(path.name for path in target.iterdir()) == ["first", "second"]


def test_the_second_writer_keeps_the_data_of_the_first(tmp_path):
    target = tmp_path / "data"

    def overtaken(draft):
        (draft / "file").write_text("second")
        once(target, lambda first: (first / "file").write_text("first"))

    assert once(target, overtaken) == target
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    def full_disk(draft):
        (draft / "file").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="cannot be written \\(No space left on device\\): free space"):
        once(tmp_path / "data", full_disk)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_gives_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        once(tmp_path / "file" / "data", lambda _: None)
    assert "\n" not in str(caught.value)


# Docstrings


@pytest.fixture(scope="module")
def texts(embedded):
    return docstrings.write(embedded)


def test_docstrings_have_the_format_of_wikitext(texts):
    lines = (texts / "wiki.train.tokens").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(" ") and line.endswith(" ") for line in lines)
    assert any(line.startswith(" = ") for line in lines)
    splits = wikitext.load(texts, "wikitext-2", length=32, vocabulary=2000)
    assert len(splits.train.words) > 100_000
    assert min(len(splits.valid.words), len(splits.test.words)) > 10_000


def test_no_paragraph_is_in_two_splits(texts):
    """A paragraph in two splits would reward memory."""
    train, valid, test = (
        set((texts / f"wiki.{split}.tokens").read_text("utf-8").splitlines()) - {" "}
        for split in ("train", "valid", "test")
    )
    assert min(map(len, (train, valid, test))) > 500
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)
