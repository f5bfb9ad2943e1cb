"""Runs that start from a trained network: it is made once, whoever is killed, and names the runs."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import starting
from support.lines import make_recipe, network
from support.tiny_study import wait_until

from dualavg_bench.recipe import Grid
from dualavg_bench.run import pretraining
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.study.study import Study

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("one_thread")


def process(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "support.starting", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> None:
    output, _ = started.communicate(timeout=240)
    assert started.returncode == 0, output


def start_folder(folder: Path) -> RunFolder:
    recipe = starting.make(folder)
    return RunFolder.of(folder, "lines-start", starting.specify(recipe).start.hash)


def steps(folder: Path) -> list[str]:
    """The process of each step of the pretraining."""
    return (folder / "log").read_text().split()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("straight")
    starting.execute(folder)
    return folder


def test_two_processes_make_the_network_once(tmp_path, straight):
    both = [process(tmp_path), process(tmp_path)]
    for one in both:
        finish(one)
    assert len(steps(tmp_path)) == starting.STEPS
    assert len(set(steps(tmp_path))) == 1
    same_weights(start_folder(tmp_path), start_folder(straight))


def test_a_killed_pretraining_is_resumed_to_the_same_network(tmp_path, straight):
    (tmp_path / "slow").touch()
    killed = process(tmp_path)
    wait_until((start_folder(tmp_path).path / "checkpoint.pt").exists, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    folder = start_folder(tmp_path)
    assert folder.result() is None
    assert not (folder.path / "network.pt").exists()
    (tmp_path / "slow").unlink()
    starting.execute(tmp_path)
    assert starting.STEPS <= len(steps(tmp_path)) < 2 * starting.STEPS
    same_weights(folder, start_folder(straight))


def same_weights(one: RunFolder, other: RunFolder) -> None:
    for a, b in zip(one.load_network().values(), other.load_network().values(), strict=True):
        assert torch.equal(a, b)


def test_a_run_begins_with_the_scores_of_the_trained_network(straight):
    recipe = starting.make(straight)
    spec = starting.specify(recipe)
    result = RunFolder.of(straight, recipe.name, spec.hash).result()
    model = network()
    model.load_state_dict(start_folder(straight).load_network())
    valid = recipe.data(straight).valid
    batches = [valid.batch(part, None) for part in torch.arange(len(valid)).split(recipe.batch_size)]
    with torch.no_grad():
        expected = recipe.evaluate(model.eval(), batches)["error"]
    assert result.valid["error"][0] == pytest.approx(expected, rel=1e-6)


def test_the_start_is_part_of_what_names_a_run(tmp_path):
    recipe = starting.make(tmp_path)
    spec = starting.specify(recipe)
    for changes in (
        {"steps": 81},
        {"batch_size": 17},
        {"grids": {"adamw": Grid((0.02,), (0.01,), ("linear",))}},
    ):
        other = replace(recipe, start=replace(recipe.start, **changes))
        assert starting.specify(other).hash != spec.hash, changes
    assert replace(spec, start=replace(spec.start, data="other data")).hash != spec.hash
    assert replace(spec, start=replace(spec.start, source="other code")).hash != spec.hash
    assert replace(spec, start=None).hash != spec.hash


def test_a_study_names_the_start_with_code_data_and_settings(tmp_path):
    study = Study.of("finetune_vision", "quick", tmp_path)
    spec = study.spec("mda", study.recipe.grids["mda"].points()[0], 0, test=False)
    assert spec.start.source
    assert spec.start.data not in ("", spec.data)
    assert spec.start.settings["name"] == "finetune_vision-start"
    assert (spec.start.optimizer, spec.start.seed) == ("adamw", 0)
    other = replace(study.recipe, start=replace(study.recipe.start, steps=1))
    changed = replace(study, recipe=other, starts={})
    assert changed.spec("mda", spec.point, 0, test=False).hash != spec.hash


def test_a_damaged_network_is_one_line(tmp_path):
    starting.execute(tmp_path)
    file = start_folder(tmp_path).path / "network.pt"
    file.write_bytes(file.read_bytes()[:100])
    recipe = starting.make(tmp_path)
    spec = starting.specify(recipe, seed=1)
    with pytest.raises(StoreError, match=r"network\.pt is not this run's network: delete the folder"):
        pretraining.run(spec, recipe, RunFolder.of(tmp_path, recipe.name, spec.hash), tmp_path)


def test_a_start_with_several_points_is_refused(tmp_path):
    start = starting.make(tmp_path).start
    with pytest.raises(ValueError, match="must have one optimizer with one grid point"):
        make_recipe(start=replace(start, grids={"adamw": Grid((0.1, 0.2))}))
    with pytest.raises(ValueError, match="must have another name"):
        make_recipe(start=replace(start, name="lines"))


def test_processes_that_share_a_run_also_train_its_start(tmp_path):
    spec = starting.specify(starting.make(tmp_path))
    shared = spec.shared_by(2)
    assert (shared.processes, shared.start.processes) == (2, 2)
    assert shared.start.hash != spec.start.hash
