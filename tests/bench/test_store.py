"""What is on disk: whole or not there, and a sentence for what is not ours."""

import errno
import json
import multiprocessing
import os
import pickle
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import make_recipe, make_spec
from support.synthetic_runs import run

from dualavg_bench.store.files import StoreError, read_json, write_atomically, write_json
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import FIELDS, spec_hash


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


def _written(folder: Path, result: dict[str, Any]) -> RunFolder:
    made = RunFolder.of(folder, "lines", result["hash"])
    write_json(made.path / "result.json", result)
    return made


@pytest.mark.parametrize("phase", ["tune", "confirm"])
@pytest.mark.parametrize("diverged_at", [None, 112])
def test_a_sound_result_is_read_as_it_is(phase: str, diverged_at: int | None, tmp_path: Path) -> None:
    result = run(phase=phase, diverged_at=diverged_at)
    assert _written(tmp_path, result).result() == result


@pytest.mark.parametrize("name", FIELDS)
def test_a_result_that_lacks_a_field_or_has_another_kind_gets_a_sentence(name: str, tmp_path: Path) -> None:
    sound = run(phase="confirm")
    lacking = {key: value for key, value in sound.items() if key != name}
    for damaged, said in ((lacking, f"lacks '{name}'"), ({**sound, name: [[1]]}, f"as its '{name}', where")):
        folder = _written(tmp_path, damaged)
        with pytest.raises(StoreError) as raised:
            folder.result()
        sentence = str(raised.value)
        assert sentence.startswith(f"{folder.path / 'result.json'} is damaged, it ")
        assert said in sentence
        assert sentence.endswith(": delete it, and the same command does the run again.")
        assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec": {"optimizer": "sgd"}}, "has the spec of another run"),
        ({"lr": 3.0}, "is of another setting than its spec"),
        ({"optimizer": "sgd"}, "is of another setting than its spec"),
        ({"seed": True}, "has True as its 'seed', where a whole number was expected"),
        (
            {"valid": {"step": [0, 1], "loss": [1.0, 2.0], "accuracy": [1.0]}},
            "has {'accuracy': [1.0], 'loss': [1.0, 2.0],",
        ),
        ({"valid": {"step": [0], "loss": [1.0]}}, "has no validation accuracy"),
        ({"train": {"step": [], "loss": []}}, "has no training loss"),
        ({"train": {"step": [1], "loss": [None]}}, "has {'loss': [None], 'step': [1]} as its 'train'"),
        ({"test": {"loss": 1.0}}, "has no test accuracy"),
        ({"test": None}, "has no test accuracy"),
        ({"status": "diverged"}, "does not say when it diverged"),
        ({"status": "lost"}, "has 'lost' as its 'status', where 'finished' or 'diverged' was expected"),
    ],
)
def test_a_result_that_contradicts_itself_gets_a_sentence(changes: Any, said: str, tmp_path: Path) -> None:
    folder = _written(tmp_path, run(phase="confirm") | changes)
    with pytest.raises(StoreError, match=re.escape(f"is damaged, it {said}")):
        folder.result()


def test_the_hash_of_a_stored_spec_is_that_of_the_spec() -> None:
    spec = make_spec(make_recipe())
    assert spec_hash(json.loads(json.dumps(spec.to_json()))) == spec.hash


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
    damaged = [whole[:size] for size in (0, 10, len(whole) // 2, len(whole) - 1)]
    old = b"\x80\x02"  # as pickles begin, which old checkpoints are
    damaged += [old, old + b"}.", old + b"X\xff", old + b"\x8a\nl", b"K", b"(", b"\x89PNG\r\n", bytes(100)]
    for content in damaged:
        file.write_bytes(content)
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

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"The disk is full: .*value\.json was not written"):
        write_json(path, {"format": 1, "i": 2})
    assert read_json(path, "value")["i"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_a_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "value.json", {"format": 1, "loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_finished_run_has_no_checkpoint_left(tmp_path: Path) -> None:
    result = run()
    folder = RunFolder.of(tmp_path, "lines", result["hash"])
    folder.save_checkpoint({})
    folder.finish(result)
    assert folder.result() == result
    assert folder.load_checkpoint() is None


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"value\.json cannot be written"):
        write_atomically(tmp_path / "file" / "value.json", b"")


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
