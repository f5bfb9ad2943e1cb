"""What is on disk: complete or not there, and a one-line error for every damaged or foreign file."""

import errno
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.lines import make_recipe, make_spec
from support.synthetic_runs import run, study, summarize
from support.writer import write_forever

from dualavg_bench.recipe.settings import AXES
from dualavg_bench.store.documents import Setting, read_document, write_document
from dualavg_bench.store.files import StoreError, write_atomically
from dualavg_bench.store.folder import Crashes, RunFolder
from dualavg_bench.store.results import Curve, PictureSample, RunResult, spec_hash
from dualavg_bench.store.summaries import Summary

REDO = "delete it, and run the command again to redo the run."


def test_a_writer_that_is_killed_leaves_a_complete_file_20_times(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    context = multiprocessing.get_context(
        "forkserver"
    )  # a fork of this process would copy its threads' locks
    for delay in range(20):
        writer = context.Process(target=write_forever, args=(path,))
        writer.start()
        while not path.exists():
            time.sleep(0.001)
        time.sleep(0.003 * delay)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert len(read_document(path, Crashes).by_study) == 2


# Results


def _written(root: Path, values: dict[str, Any]) -> RunFolder:
    """A run's folder whose result.json has these values."""
    folder = RunFolder.of(root, "lines", run(phase="confirm").hash)
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / "result.json").write_text(json.dumps(values))
    return folder


def _values(**changes: Any) -> dict[str, Any]:
    return run(phase="confirm").model_dump(mode="json") | changes


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", run().hash)
    folder.finish(run())
    assert folder.result() == run()


def test_every_float_survives_writing_and_reading(tmp_path: Path) -> None:
    rng = random.Random(0)
    drawn = [struct.unpack("d", rng.randbytes(8))[0] for _ in range(2000)]
    finite = [value for value in drawn if abs(value) < float("inf")]
    curve = Curve.model_validate({"step": list(range(len(finite))), "loss": finite})
    folder = RunFolder.of(tmp_path, "lines", run().hash)
    folder.finish(run(train=curve))
    assert folder.result().train["loss"] == finite


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": 1, "hash": "ab', f"is not a complete result of a run: {REDO}"),
        (b"\x80\x04\x95", f"is not a complete result of a run: {REDO}"),
        (b"[1, 2]", "is not a result of a run of dualavg: move it away."),
        (b'{"hash": "ab"}', "is not a result of a run of dualavg: move it away."),
        (b'{"format": 2}', "was written by a newer version of dualavg (format 2, this one reads 1): update"),
        (b'{"format": 1}', f"is damaged (lr: field required): {REDO}"),
    ],
)
def test_a_truncated_foreign_or_newer_result_raises_a_one_line_error(
    content: bytes, message: str, tmp_path: Path
) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.path.mkdir(parents=True)
    file = folder.path / "result.json"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=re.escape(f"{file} {message}")) as raised:
        folder.result()
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("version", "message"), [(2, "newer version of dualavg (format 2"), (0, "reads format 1")]
)
def test_a_complete_result_of_another_format_is_refused(version: int, message: str, tmp_path: Path) -> None:
    folder = _written(tmp_path, _values(format=version))
    with pytest.raises(StoreError, match=re.escape(message)):
        folder.result()


def test_the_result_of_another_run_is_refused(tmp_path: Path) -> None:
    other = RunFolder.of(tmp_path, "lines", "0123")
    other.finish(run())
    with pytest.raises(StoreError, match=f"is the result of another run .{run().hash}.: move it away"):
        other.result()


@pytest.mark.parametrize("name", [name for name in RunResult.model_fields if name != "format"])
def test_a_result_with_a_missing_or_wrong_field_names_it_in_one_line(name: str, tmp_path: Path) -> None:
    missing, wrong = _values(), _values(**{name: [[1]]})
    cases = [(wrong, name)]
    if RunResult.model_fields[name].is_required():  # others were added later: older results lack them
        del missing[name]
        cases.append((missing, f"{name}: field required"))
    for values, problem in cases:
        folder = _written(tmp_path, values)
        with pytest.raises(StoreError) as raised:
            folder.result()
        message = str(raised.value)
        assert message.startswith(f"{folder.path / 'result.json'} is damaged ({problem}")
        assert message.endswith(f"): {REDO}")
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"spec": {"optimizer": "sgd"}}, "spec is the spec of another run"),
        ({"lr": 3.0}, "optimizer, setting or seed are not those of spec"),
        ({"optimizer": "sgd"}, "optimizer, setting or seed are not those of spec"),
        ({"seed": 7}, "optimizer, setting or seed are not those of spec"),
        ({"recipe": "imagenet"}, "recipe, scale, steps, report or metric are not those of spec"),
        ({"scale": "mini"}, "recipe, scale, steps, report or metric are not those of spec"),
        ({"steps": 7}, "recipe, scale, steps, report or metric are not those of spec"),
        ({"higher_is_better": False}, "recipe, scale, steps, report or metric are not those of spec"),
        ({"seed": True}, "seed: should be a valid integer, got True"),
        ({"seed": -1}, "seed: should be greater than or equal to 0, got -1"),
        ({"lr": float("nan")}, "lr: should be a finite number, got nan"),
        ({"unknown": 1}, "unknown: extra inputs are not permitted"),
        (
            {"valid": {"step": [0, 1], "loss": [1.0, 2.0], "accuracy": [1.0]}},
            "valid: accuracy has 1 values for 2 steps",
        ),
        ({"valid": {"step": [0], "loss": [1.0]}}, "valid has no accuracy"),
        ({"valid": {"step": [], "loss": [], "accuracy": []}}, "valid has no accuracy"),
        ({"valid": {"loss": [1.0]}}, "valid.step: field required"),
        ({"train": {"step": [], "loss": []}}, "train has no loss"),
        ({"train": {"step": [1]}}, "train has no loss"),
        ({"train": {"step": [1], "loss": [None]}}, "train.loss.0: should be a valid number, got None"),
        ({"test": {"loss": 1.0}}, "test has no accuracy"),
        ({"test": None}, "test has no accuracy"),
        ({"status": "diverged"}, "status is diverged, but diverged_at is None"),
        ({"diverged_at": 3}, "status is finished, but diverged_at is 3"),
        ({"status": "lost"}, "status: should be 'finished' or 'diverged', got 'lost'"),
        ({"samples": [{"kind": "film"}]}, "samples.0: "),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(changes: Any, problem: str, tmp_path: Path) -> None:
    folder = _written(tmp_path, _values(**changes))
    with pytest.raises(StoreError, match=re.escape(f"is damaged ({problem}")):
        folder.result()


def test_a_tuning_run_with_a_test_score_is_refused() -> None:
    with pytest.raises(ValidationError, match="tuning never reads the test split"):
        run(phase="tune", test={"accuracy": 1.0})


@pytest.mark.parametrize(
    ("truth", "problem"), [("AAA", "is not base64"), ("AAAA", "has 3 pixels, shape says")]
)
def test_a_picture_has_as_many_pixels_as_its_shape_says(truth: str, problem: str) -> None:
    PictureSample(title="", shape=(1, 3), truth="AAAA", made="AAAA")
    with pytest.raises(ValidationError, match=problem):
        PictureSample(title="", shape=(1, 4), truth=truth, made="AAAAAA==")


def test_the_hash_of_a_stored_spec_is_that_of_the_spec() -> None:
    spec = make_spec(make_recipe(), optimizer_settings={"betas": (0.9, 0.98)})
    assert spec_hash(json.loads(json.dumps(spec.to_json()))) == spec.hash


def test_a_setting_has_the_axes_of_a_grid() -> None:
    assert tuple(Setting.model_fields) == AXES


# Summaries


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return summarize(study()).model_dump(mode="json")


def test_a_summary_is_read_as_it_was_written(tmp_path: Path, summary: Summary) -> None:
    write_document(tmp_path / "summary.json", summary)
    assert read_document(tmp_path / "summary.json", Summary) == summary


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: {"sensitivity": _without(s["sensitivity"], "sgd")}, "sensitivity has the optimizers"),
        (lambda s: {"budget": _without(s["budget"], "sgd")}, "budget has the optimizers"),
        (lambda s: {"optimizers": _without(s["optimizers"], "sgd")}, "sensitivity has the optimizers"),
        (lambda s: {"comparisons": s["comparisons"][1:]}, "comparisons are not the pairs"),
        (lambda s: {"comparisons": 3 * s["comparisons"][:1]}, "comparisons are not the pairs"),
        (
            lambda s: {"comparisons": [{**s["comparisons"][0], "a": "lion"}, *s["comparisons"][1:]]},
            "comparisons are not the pairs",
        ),
        (lambda s: {"runs": dict(list(s["runs"].items())[1:])}, "runs lacks "),
        (
            lambda s: {"sensitivity": {**s["sensitivity"], "mda": s["sensitivity"]["mda"][:1]}},
            "the chosen setting of mda is not in its sensitivity",
        ),
        (lambda s: {"scale": "huge"}, "scale: should be 'quick', 'mini' or 'paper', got 'huge'"),
        (lambda s: {"command": "rm"}, "command: string should match pattern"),
        (lambda s: {"optimizers": []}, "optimizers: should be an object, got []"),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(
    change: Any, problem: str, values: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(values | change(values)))
    with pytest.raises(StoreError, match=re.escape(f"{file} is damaged ({problem}")):
        read_document(file, Summary)


# Checkpoints


class _Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.path.mkdir(parents=True)
    torch.save({"format": 1, "hash": "0123", "evil": _Evil()}, folder.path / "checkpoint.pt")
    with pytest.raises(StoreError, match="is not a complete checkpoint"):
        folder.load_checkpoint()
    (folder.path / "checkpoint.pt").write_bytes(pickle.dumps(_Evil(), protocol=2))
    with pytest.raises(StoreError, match="is not a complete checkpoint"):
        folder.load_checkpoint()
    assert not Path("executed").exists()


def test_a_truncated_foreign_or_newer_checkpoint_raises_a_one_line_error(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    folder.save_checkpoint({"x": torch.arange(1000)})
    file = folder.path / "checkpoint.pt"
    complete = file.read_bytes()
    assert torch.equal(folder.load_checkpoint()["x"], torch.arange(1000))
    damaged = [complete[:size] for size in (0, 10, len(complete) // 2, len(complete) - 1)]
    old = b"\x80\x02"  # as pickles begin, which old checkpoints are
    damaged += [old, old + b"}.", old + b"X\xff", old + b"\x8a\nl", b"K", b"(", b"\x89PNG\r\n", bytes(100)]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(StoreError, match="delete it, and the run starts from the beginning"):
            folder.load_checkpoint()
    RunFolder.of(tmp_path, "lines", "4567").save_checkpoint({})
    file.write_bytes((folder.path.parent / "4567" / "checkpoint.pt").read_bytes())
    with pytest.raises(StoreError, match="is not this run's checkpoint"):
        folder.load_checkpoint()
    torch.save({"format": 2, "hash": "0123"}, file)
    with pytest.raises(StoreError, match="newer version"):
        folder.load_checkpoint()


# Files


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    write_document(path, Crashes(by_study={"i": 1}))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"The disk is full, .*value\.json was not written"):
        write_document(path, Crashes(by_study={"i": 2}))
    assert read_document(path, Crashes).by_study == {"i": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_a_nan_is_never_written(tmp_path: Path) -> None:
    spoilt = run().model_copy(update={"lr": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(tmp_path / "value.json", spoilt)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_has_no_checkpoint_left(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", run().hash)
    folder.save_checkpoint({})
    folder.finish(run())
    assert folder.load_checkpoint() is None


def test_a_crash_is_counted_by_study_and_cleared_on_exit(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "lines", "0123")
    write_document(folder.path / "crashes.json", Crashes(by_study={"a": 1}))  # a process of study a died
    with folder.count_crashes("a"):
        assert (folder.crashes("a"), folder.crashes("b")) == (2, 0)
    assert folder.crashes("a") == 0
    with pytest.raises(ArithmeticError), folder.count_crashes("b"):
        raise ArithmeticError
    assert list(folder.path.iterdir()) == []


def test_a_folder_that_cannot_be_written_raises_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"value\.json cannot be written"):
        write_atomically(tmp_path / "file" / "value.json", b"")


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
