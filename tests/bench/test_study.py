"""Studies as a user runs them: their results, kills at random moments, failures, damaged files."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.page_reader import without_own_script
from support.tiny_study import (
    Command,
    Study,
    command,
    end,
    environment,
    start,
    summary_without_times,
    write_recipe,
)

OPTIMIZERS = ("--optimizers", "mda,sgd")


def test_a_study_ends_with_a_summary_and_a_page(undisturbed: Study) -> None:
    summary = undisturbed.summary
    assert set(summary["optimizers"]) == {"mda", "sgd"}
    assert all(row["test"]["n"] == 2 for row in summary["optimizers"].values())
    assert summary["optimizers"]["sgd"]["grid"]["diverged"] == 1  # lr 1e9
    page = (undisturbed.out / "spirals-quick" / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in without_own_script(page)


def test_the_same_command_again_prints_the_table_and_runs_nothing(
    undisturbed: Study, dualavg: Command
) -> None:
    results = sorted(undisturbed.out.rglob("result.json"))
    before = [(path, path.stat().st_mtime_ns) for path in results]
    code, output, errors = dualavg(
        "study", undisturbed.recipe, "--out", undisturbed.out, "--no-extend", *OPTIMIZERS
    )
    assert code == 0, output + errors
    assert "spirals, quick: test accuracy" in output
    assert [(path, path.stat().st_mtime_ns) for path in results] == before
    assert len(results) == 6 + 4


def kill_at_random(recipe: Path, out: Path, kills: int, seed: int) -> int:
    """Kill the study or one of its workers at random moments; return how many kills hit something."""
    rng = random.Random(seed)
    done = 0
    while done < kills:
        study = subprocess.Popen(
            command(recipe, out, *OPTIMIZERS, "--workers", "2"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        parent = psutil.Process(study.pid)
        while study.poll() is None and done < kills:
            time.sleep(rng.uniform(0.5, 5.0))
            victims = [parent, *_workers(parent)] if study.poll() is None else []
            if not victims:
                break
            victim = rng.choice(victims)
            os.kill(victim.pid, signal.SIGKILL)
            done += 1
            if victim is parent:
                break
        finished = study.poll() == 0
        study.kill()
        study.wait()
        if finished:
            break
    return done


def _workers(parent: psutil.Process) -> list[psutil.Process]:
    try:
        children = parent.children(recursive=True)
        return [
            child for child in children if child.is_running() and "spawn_main" in " ".join(child.cmdline())
        ]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
def test_20_kills_at_random_moments_change_no_number(undisturbed: Study, tmp_path: Path) -> None:
    """In as many studies as that takes."""
    done = attempt = 0
    while done < 20:
        out = tmp_path / str(attempt)
        done += kill_at_random(undisturbed.recipe, out, 20 - done, seed=attempt)
        end(start(undisturbed.recipe, out, *OPTIMIZERS, "--workers", "2"))
        assert summary_without_times(out) == undisturbed.summary
        assert not list(out.rglob("checkpoint.pt"))
        attempt += 1


def test_a_run_that_raises_is_reported_and_the_others_continue(
    dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    extra = """

_loss = loss


def loss(model, batch):  # noqa: F811
    if torch.initial_seed() % 7 == 0:
        raise ArithmeticError("seven!")
    return _loss(model, batch)
"""
    recipe = write_recipe(tmp_path, extra=extra)
    code, _, errors = dualavg("study", recipe, "--out", tmp_path / "out", "--scheduler", scheduler)
    assert code == 1
    assert "runs failed; finished runs are kept. Run the command again to retry them." in errors
    assert "raised ArithmeticError: seven!" in errors
    assert 'raise ArithmeticError("seven!")' in errors  # where in the recipe it was
    assert "cli.py" not in errors  # and not where in us


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nosuch", "There is no recipe called 'nosuch'"),
        ("nosuch.py", "There is no recipe at nosuch.py"),
    ],
)
def test_a_missing_recipe_is_a_one_line_error(
    argument: str, message: str, dualavg: Command, tmp_path: Path
) -> None:
    code, _, errors = dualavg("study", argument, "--out", tmp_path)
    assert code == 1
    assert errors.startswith(f"dualavg: {message}")


def test_a_truncated_result_stops_the_study_with_a_one_line_error(
    undisturbed: Study, dualavg: Command, tmp_path: Path
) -> None:
    results = undisturbed.out.rglob("result.json")
    result = next(path for path in results if '"phase": "tune"' in path.read_text())
    target = tmp_path / result.relative_to(undisturbed.out)
    target.parent.mkdir(parents=True)
    target.write_bytes(result.read_bytes()[:100])
    code, _, errors = dualavg("study", undisturbed.recipe, "--out", tmp_path, "--workers", "1")
    assert code == 1
    assert errors.startswith(f"dualavg: {target} is not a complete result of a run")


def test_the_report_can_be_written_again(undisturbed: Study, dualavg: Command) -> None:
    folder = undisturbed.out / "spirals-quick"
    page = (folder / "report.html").read_text()
    code, output, _ = dualavg("report", folder)
    assert (code, output.replace("\n", "")) == (0, str(folder / "report.html"))
    assert (folder / "report.html").read_text() == page
    assert json.loads((folder / "summary.json").read_text())["format"] == 1
