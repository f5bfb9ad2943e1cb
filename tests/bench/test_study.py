"""Studies as a person runs them: workers, kills, failures, files that are not ours."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.tiny_study import command, environment, run_to_the_end, summary_without_times, write_recipe


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody touched."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run_to_the_end(write_recipe(folder), folder / "out", "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_study_ends_with_a_table_a_summary_and_a_page(undisturbed: Path) -> None:
    summary = summary_without_times(undisturbed / "out")
    assert set(summary["optimizers"]) == {"mda", "sgd", "adam"}
    assert all(row["test"]["n"] == 2 for row in summary["optimizers"].values())
    assert summary["optimizers"]["sgd"]["grid"]["diverged"] == 1  # lr 1e9
    page = (undisturbed / "out" / "spirals-quick" / "report.html").read_text()
    assert summary["verdict"] in page or "best" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page


def test_any_number_of_workers_gives_the_same_summary(undisturbed: Path, tmp_path: Path) -> None:
    done = run_to_the_end(undisturbed / "tiny.py", tmp_path, "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_without_times(tmp_path) == summary_without_times(undisturbed / "out")


def test_the_same_command_again_runs_nothing_again(undisturbed: Path) -> None:
    results = sorted((undisturbed / "out").rglob("result.json"))
    before = [(path, path.stat().st_mtime_ns) for path in results]
    done = run_to_the_end(undisturbed / "tiny.py", undisturbed / "out", "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(path, path.stat().st_mtime_ns) for path in results] == before
    assert len(results) == 9 + 6


def kill_until_done(recipe: Path, out: Path, kills: int, seed: int) -> int:
    """Kill the study or one of its workers at random moments; return how many kills hit something."""
    rng = random.Random(seed)
    done = 0
    while done < kills:
        study = subprocess.Popen(
            command(recipe, out, "--workers", "2"),
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


def check_kills(undisturbed: Path, folder: Path, kills: int) -> None:
    """Kill as often as asked, in as many studies as that takes; each must come to the same summary."""
    recipe, done, attempt = undisturbed / "tiny.py", 0, 0
    while done < kills:
        out = folder / str(attempt)
        done += kill_until_done(recipe, out, kills - done, seed=attempt)
        last = run_to_the_end(recipe, out, "--workers", "2")
        assert last.returncode == 0, last.stdout + last.stderr
        assert summary_without_times(out) == summary_without_times(undisturbed / "out")
        assert not list(out.rglob("checkpoint.pt"))
        attempt += 1


def test_a_study_that_was_killed_comes_to_the_summary_of_an_undisturbed_one(
    undisturbed: Path, tmp_path: Path
) -> None:
    check_kills(undisturbed, tmp_path, kills=3)


@pytest.mark.slow
def test_the_same_holds_after_20_kills(undisturbed: Path, tmp_path: Path) -> None:
    check_kills(undisturbed, tmp_path, kills=20)


def test_a_run_that_raises_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    extra = """

_loss = loss


def loss(model, batch):  # noqa: F811
    if torch.initial_seed() % 7 == 0:
        raise ArithmeticError("seven!")
    return _loss(model, batch)
"""
    recipe = write_recipe(tmp_path, extra=extra)
    done = run_to_the_end(recipe, tmp_path / "out", "--workers", "2")
    assert done.returncode == 1
    assert "runs failed; what finished is kept, and the same command tries these again." in done.stderr
    assert "raised ArithmeticError: seven!" in done.stderr
    assert 'raise ArithmeticError("seven!")' in done.stderr  # where in the recipe it was
    assert "cli.py" not in done.stderr  # and not where in us


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("nosuch", "There is no recipe called 'nosuch'"),
        ("nosuch.py", "There is no recipe at nosuch.py"),
    ],
)
def test_a_wrong_recipe_gets_a_sentence(argument: str, sentence: str, tmp_path: Path) -> None:
    done = run_to_the_end(Path(argument), tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_truncated_result_stops_the_study_with_a_sentence(undisturbed: Path, tmp_path: Path) -> None:
    results = sorted((undisturbed / "out").rglob("result.json"))
    target = tmp_path / results[0].relative_to(undisturbed / "out")
    target.parent.mkdir(parents=True)
    target.write_bytes(results[0].read_bytes()[:100])
    done = run_to_the_end(undisturbed / "tiny.py", tmp_path)
    assert done.returncode == 1
    assert f"{target} is not a complete result of a run" in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_the_report_can_be_made_again(undisturbed: Path) -> None:
    from dualavg_bench.commands import write_reports

    folder = undisturbed / "out" / "spirals-quick"
    page = (folder / "report.html").read_text()
    assert write_reports([folder], compare=False) == [folder / "report.html"]
    assert (folder / "report.html").read_text() == page
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["format"] == 1
