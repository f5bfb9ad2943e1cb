"""What is on disk: whole or not there, and a sentence for what is not ours."""

import errno
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import pytest
import torch

from dualavg_bench import store
from dualavg_bench.store import RunFolder, StoreError, read_json, write_atomically, write_json


def _write_forever(path: Path) -> None:
    for i in range(10**9):
        write_json(path, {"format": 1, "i": i, "filler": "x" * 200_000})


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_writer_that_is_killed_leaves_a_whole_file_20_times(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    context = multiprocessing.get_context("fork")
    for delay in range(20):
        writer = context.Process(target=_write_forever, args=(path,))
        writer.start()
        while not path.exists():
            time.sleep(0.001)
        time.sleep(0.003 * delay)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert len(read_json(path, "value")["filler"]) == 200_000


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"format": 1, "hash": "ab', "is not a whole result of a run: delete it"),
        (b"\x80\x04\x95", "is not a whole result of a run: delete it"),
        (b"[1, 2]", "is not a result of a run of dualavg: move it away"),
        (b'{"hash": "ab"}', "is not a result of a run of dualavg: move it away"),
        (b'{"format": 2}', "was written by a newer version of dualavg (format 2, this one reads 1)"),
        (b'{"format": 1, "hash": "other"}', "belongs to another run (other): move it away"),
    ],
)
def test_a_truncated_foreign_or_newer_result_gets_a_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.path.mkdir(parents=True)
    (folder.path / "result.json").write_bytes(content)
    with pytest.raises(StoreError) as raised:
        folder.result()
    assert sentence in str(raised.value)
    assert str(folder.path / "result.json") in str(raised.value)


class _Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.path.mkdir(parents=True)
    torch.save({"format": 1, "hash": "0123", "evil": _Evil()}, folder.path / "checkpoint.pt")
    with pytest.raises(StoreError, match="is not a whole checkpoint"):
        folder.load_checkpoint()
    (folder.path / "checkpoint.pt").write_bytes(pickle.dumps(_Evil(), protocol=2))
    with pytest.raises(StoreError, match="is not a whole checkpoint"):
        folder.load_checkpoint()
    assert not Path("executed").exists()


def test_a_truncated_foreign_or_newer_checkpoint_gets_a_sentence(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.save_checkpoint({"x": torch.arange(1000)})
    file = folder.path / "checkpoint.pt"
    whole = file.read_bytes()
    assert torch.equal(folder.load_checkpoint()["x"], torch.arange(1000))
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(StoreError, match="delete it, and the run starts over"):
            folder.load_checkpoint()
    RunFolder.of(tmp_path, "lines", "4567").save_checkpoint({})
    file.write_bytes((folder.path.parent / "4567" / "checkpoint.pt").read_bytes())
    with pytest.raises(StoreError, match="is not this run's checkpoint"):
        folder.load_checkpoint()
    torch.save({"format": 2, "hash": "0123"}, file)
    with pytest.raises(StoreError, match="newer version"):
        folder.load_checkpoint()


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"format": 1, "i": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(StoreError, match=r"The disk is full: .*value\.json was not written"):
        write_json(path, {"format": 1, "i": 2})
    assert read_json(path, "value")["i"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_a_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "value.json", {"format": 1, "loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_finished_run_has_no_checkpoint_left(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.save_checkpoint({})
    folder.finish({"hash": "0123", "x": 1})
    assert folder.result() == {"format": 1, "hash": "0123", "x": 1}
    assert folder.load_checkpoint() is None


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"value\.json cannot be written"):
        write_atomically(tmp_path / "file" / "value.json", b"")


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
