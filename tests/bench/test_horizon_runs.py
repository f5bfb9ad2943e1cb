"""`dualavg horizon` as a user runs it: runs shared with studies, files beside theirs, resumed, failed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_study import Command, environment, wait_until, write_recipe

from dualavg_bench import commands
from dualavg_bench import horizon as command
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.summaries import Summary
from dualavg_bench.study.study import Study

TWO = ("--optimizers", "mda,sgd", "--no-extend")
RUNS = 2 * 3 + 2 * 2  # of a study: tuning and confirmation


def written(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}


def without_times(path: Path) -> dict:
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "times"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), steps=30)


@pytest.fixture(scope="module")
def finished(recipe: Path, scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a horizon of 30, the recipe's own length, and 60 steps."""
    from dualavg_bench import cli

    out = tmp_path_factory.mktemp("finished")
    cli.app(
        ["horizon", str(recipe), "--steps", "60,30", "--out", str(out), "--scheduler", scheduler, *TWO],
        result_action="return_value",
    )
    return out / "spirals-quick"


def test_the_lengths_are_run_from_short_to_long_each_with_its_own_files(finished: Path) -> None:
    horizon = read_document(finished / "horizon.json", Horizon)
    assert [length.steps for length in horizon.lengths] == horizon.planned == [30, 60]
    assert [length.summary for length in horizon.lengths] == ["summary.json", "summary-60-steps.json"]
    assert [length.page for length in horizon.lengths] == ["report.html", "report-60-steps.html"]
    assert horizon.lengths[0].epochs == pytest.approx(30 / (2000 // 64))
    for length in horizon.lengths:
        summary = read_document(finished / length.summary, Summary)
        assert {run.steps for run in summary.runs.values()} == {length.steps}
        assert length.comparisons == summary.comparisons
        assert length.optimizers["mda"].test == summary.optimizers["mda"].test
        assert length.optimizers["mda"].train == summary.optimizers["mda"].train
        assert (finished / length.page).is_file()
    page = (finished / "horizon.html").read_text()
    assert 'href="report.html"' in page
    assert 'href="report-60-steps.html"' in page


def test_commands_repeat_what_they_stand_in(finished: Path) -> None:
    options = "--optimizers mda,sgd --no-extend"
    assert json.loads((finished / "summary.json").read_text())["command"] == (
        f"dualavg study tiny.py --scale quick {options}"
    )
    assert json.loads((finished / "summary-60-steps.json").read_text())["command"] == (
        f"dualavg horizon tiny.py --scale quick --steps 60 {options}"
    )
    assert read_document(finished / "horizon.json", Horizon).command == (
        f"dualavg horizon tiny.py --scale quick --steps 30,60 {options}"
    )


def test_a_run_has_the_steps_of_its_length(finished: Path) -> None:
    results = [json.loads(path.read_text()) for path in finished.rglob("result.json")]
    assert len(results) == 2 * RUNS
    for result in results:
        assert result["spec"]["settings"]["steps"] == result["steps"]
        if result["status"] == "finished":
            assert result["train"]["step"][-1] == result["valid"]["step"][-1] == result["steps"]
    assert {result["steps"] for result in results} == {30, 60}


def test_a_length_gives_the_scores_of_a_recipe_that_is_that_long(
    finished: Path, dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    longer = write_recipe(tmp_path, steps=60)
    code, _, err = dualavg("study", longer, "--out", tmp_path / "out", "--scheduler", scheduler, *TWO)
    assert code == 0, err
    own = read_document(tmp_path / "out" / "spirals-quick" / "summary.json", Summary)
    theirs = read_document(finished / "summary-60-steps.json", Summary)
    for name in ("mda", "sgd"):
        assert own.optimizers[name].test.mean == theirs.optimizers[name].test.mean
        assert own.optimizers[name].train.mean == theirs.optimizers[name].train.mean
        assert own.optimizers[name].chosen.point == theirs.optimizers[name].chosen.point


def test_a_study_of_the_recipe_s_own_length_trains_nothing_that_a_horizon_trained(
    recipe: Path, finished: Path, dualavg: Command
) -> None:
    before, summary = written(finished), without_times(finished / "summary.json")
    code, out, err = dualavg("study", recipe, "--out", finished.parent, *TWO, "--workers", 1)
    assert code == 0, err
    assert "tuning:" not in out  # no workers were started
    assert written(finished) == before
    assert without_times(finished / "summary.json") == summary


def test_a_horizon_trains_nothing_that_a_study_trained_and_leaves_its_summary(
    recipe: Path, dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    code, _, err = dualavg("study", recipe, "--out", tmp_path, "--scheduler", scheduler, *TWO)
    assert code == 0, err
    folder = tmp_path / "spirals-quick"
    before, summary = written(folder), (folder / "summary.json").read_bytes()
    assert len(before) == RUNS
    code, out, err = dualavg(
        *("horizon", recipe, "--steps", "20", "--out", tmp_path, "--scheduler", scheduler, *TWO)
    )
    assert code == 0, err
    assert (folder / "summary.json").read_bytes() == summary
    after = written(folder)
    assert {path: after[path] for path in before} == before
    assert len(after) == 2 * RUNS
    code, out, err = dualavg("horizon", recipe, "--steps", "20,30", "--out", tmp_path, *TWO)
    assert code == 0, err
    assert written(folder) == after  # both lengths are there
    assert "tuning:" not in out
    assert [length.steps for length in read_document(folder / "horizon.json", Horizon).lengths] == [20, 30]


def test_an_interrupted_horizon_has_a_page_of_what_is_finished_and_resumes(
    recipe: Path, finished: Path, dualavg: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "spirals-quick" / "runs")
    folder = tmp_path / "spirals-quick"

    def interrupted(study: Study, **options: object) -> commands.Finished:
        if study.recipe.steps == 60:
            raise KeyboardInterrupt
        return commands.complete(study, **options)

    arguments = ("horizon", recipe, "--steps", "30,60", "--out", tmp_path, *TWO)
    with monkeypatch.context() as patch:
        patch.setattr(command, "complete", interrupted)
        code, _, err = dualavg(*arguments)
    assert code == 130
    assert "Run the command again to resume." in err
    assert read_document(folder / "horizon.json", Horizon).missing == [60]
    assert "Still to run: 60 steps." in (folder / "horizon.html").read_text()
    code, out, err = dualavg(*arguments)
    assert code == 0, err
    assert (folder / "horizon.json").read_bytes() == (finished / "horizon.json").read_bytes()
    assert "Still to run" not in (folder / "horizon.html").read_text()
    said = " ".join(out.split())
    assert "spirals, quick: test accuracy (%), mean ± s.e." in said
    for sentence in read_document(folder / "horizon.json", Horizon).verdict:
        assert sentence in said


@pytest.mark.slow
def test_a_killed_horizon_resumes_with_the_same_result(
    recipe: Path, finished: Path, dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    words = ["horizon", str(recipe), "--steps", "30,60", "--out", str(tmp_path), *TWO]
    process = subprocess.Popen(
        [sys.executable, "-m", "dualavg_bench", *words, "--workers", "1"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_until((tmp_path / "spirals-quick" / "horizon.json").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert read_document(tmp_path / "spirals-quick" / "horizon.json", Horizon).missing == [60]
    before = written(tmp_path)
    code, _, err = dualavg(*words, "--scheduler", scheduler)
    assert code == 0, err
    after = written(tmp_path)
    assert {path: after[path] for path in before} == before
    resumed = (tmp_path / "spirals-quick" / "horizon.json").read_bytes()
    assert resumed == (finished / "horizon.json").read_bytes()


def test_fewer_optimizers_keep_the_earlier_summary_of_that_length(
    recipe: Path, finished: Path, dualavg: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "spirals-quick"
    shutil.copytree(finished, folder)
    only = ("--optimizers", "mda", "--no-extend")
    code, out, err = dualavg("horizon", recipe, "--steps", "60", "--out", tmp_path, *only)
    assert code == 0, err
    assert "kept from an earlier study" in out
    kept = read_document(folder / "summary-60-steps-mda,sgd.json", Summary)
    assert set(kept.optimizers) == {"mda", "sgd"}
    assert set(read_document(folder / "summary-60-steps.json", Summary).optimizers) == {"mda"}
    assert set(read_document(folder / "summary.json", Summary).optimizers) == {"mda", "sgd"}


def test_an_optimizer_that_fails_at_one_length_stops_no_other(
    dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    extra = """

import dataclasses

import torch

from dualavg_bench.recipe.schedules import SCHEDULES

_recipe = recipe


def _fail_later(step):
    if step > 10:
        raise ArithmeticError("too short")
    return 1.0


def _schedule(optimizer, steps):
    if steps == 20 and type(optimizer).__name__ == "SGD":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, _fail_later)  # not in the trial
    return SCHEDULES["linear"](optimizer, steps)


def recipe(scale="quick"):
    return dataclasses.replace(_recipe(scale), schedules={"linear": _schedule})
"""
    recipe = write_recipe(tmp_path, steps=30, extra=extra)
    out = tmp_path / "out"
    code, printed, errors = dualavg(
        *("horizon", recipe, "--steps", "20,30", "--out", out, "--scheduler", scheduler, *TWO)
    )
    assert code == 1
    assert "ArithmeticError: too short" in errors
    assert "Run the command again to retry" in errors
    horizon = read_document(out / "spirals-quick" / "horizon.json", Horizon)
    assert [set(length.confirmed) for length in horizon.lengths] == [{"mda"}, {"mda", "sgd"}]
    assert "too short" in horizon.lengths[0].failed["sgd"]
    assert "NO RESULT: sgd at 20 steps" in " ".join(printed.split())


def test_report_writes_the_page_of_a_horizon_again(finished: Path, dualavg: Command, tmp_path: Path) -> None:
    folder = tmp_path / "spirals-quick"
    shutil.copytree(finished, folder)
    pages = {path: path.read_text() for path in folder.glob("*.html")}
    assert {path.name for path in pages} == {"report.html", "report-60-steps.html", "horizon.html"}
    for path in pages:
        path.unlink()
    code, out, err = dualavg("report", folder)
    assert code == 0, err
    assert all(str(path) in out.replace("\n", "") for path in pages)
    assert {path: path.read_text() for path in folder.glob("*.html")} == pages


@pytest.mark.parametrize("name", ["horizon.json", "spirals-horizon.json"])
def test_report_writes_the_page_of_a_published_horizon(
    name: str, finished: Path, dualavg: Command, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes((finished / "horizon.json").read_bytes())
    code, out, err = dualavg("report", tmp_path if name == "horizon.json" else file)
    assert (code, out.replace("\n", "")) == (0, str(file.with_suffix(".html"))), err
    page = file.with_suffix(".html").read_text()
    assert "how long is long enough?" in page
    assert "its page" not in page  # nothing to link to


def test_a_built_in_recipe_at_its_own_length_names_the_runs_of_its_study(tmp_path: Path) -> None:
    study = Study.of("cifar10", "quick", tmp_path)
    point = study.recipe.grids["mda"].points()[0]
    own, other = study.at_length(study.recipe.steps), study.at_length(7)
    name = study.spec("mda", point, 0, test=False).hash
    assert own.spec("mda", point, 0, test=False).hash == name
    assert other.spec("mda", point, 0, test=False).hash != name
    assert other.at_length(study.recipe.steps).summary_file == study.summary_file
    assert other.summary_file == study.out / "summary-7-steps.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar10"], "requires an argument"),
        (["cifar10", "--steps", "0"], "--steps must be whole numbers >= 1 separated by commas"),
        (["cifar10", "--steps", "abc"], "e.g. 250,1000,4000, got 'abc'."),
        (["cifar10", "--steps", "250,"], "got ''."),
        (["cifar10", "--steps", ""], "got ''."),
        (["cifar10", "--steps", "250,2.5"], "got '2.5'."),
        (["cifar10", "--steps", "1,000"], "got '000'."),
        (["cifar10", "--steps=-250"], "got '-250'."),
        (["cifar10", "--steps", "250,0250"], "--steps names 250 more than once: name each once."),
        (["nosuch", "--steps", "250"], "There is no recipe called 'nosuch'"),
        (["nosuch.py", "--steps", "250"], "There is no recipe at nosuch.py"),
        (["TINY", "--steps", "250", "--optimizers", "lion"], "Recipe spirals has no grid for 'lion'"),
        (["TINY", "--steps", "9", "--workers", "1", "--scheduler", "tcp://x"], "give only one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_of_the_user_is_a_one_line_error(
    arguments: list[str],
    message: str,
    recipe: Path,
    dualavg: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = dualavg("horizon", *[str(recipe) if word == "TINY" else word for word in arguments])
    assert code in (1, 2)
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "studies" / "spirals-quick").exists()
