"""Studies side by side on the same workers: what each comes to, and how they are stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.tiny_study import environment, write_recipe

# The paper's experiments take minutes: these stand in for them.
REPRODUCE = """
import sys
from dualavg_bench import cli
from dualavg_bench.analysis import paper

out, *more = sys.argv[1:]
paper.RECIPES = tuple(name for name in more if name.endswith(".py"))
paper.METRICS = dict.fromkeys(paper.RECIPES, ("accuracy", "%"))
cli.main(["reproduce", "--out", out, *(name for name in more if not name.endswith(".py"))])
"""


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small experiments."""
    made = []
    for name in ("spirals", "coils"):
        folder = tmp_path_factory.mktemp(name)
        recipe = write_recipe(folder, steps=60)
        recipe.write_text(recipe.read_text().replace('name="spirals"', f'name="{name}"'))
        made.append(recipe.rename(folder / f"{name}.py"))
    return made


def start(out: Path, *more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", REPRODUCE, str(out), "--workers", "2", *map(str, more)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    printed, errors = process.communicate(timeout=300)
    return process.returncode, printed, errors


def summaries(out: Path) -> dict[str, Any]:
    found = {}
    for path in out.glob("*/summary.json"):
        found[path.parent.name] = json.loads(path.read_text())
        del found[path.parent.name]["times"]
    return found


def test_side_by_side_each_study_comes_to_what_it_comes_to_alone(recipes, tmp_path: Path) -> None:
    for out, how in (("together", ["--together"]), ("in turn", [])):
        code, printed, errors = end(start(tmp_path / out, *how, *recipes))
        assert code == 0, printed + errors
        assert (tmp_path / out / "reproduction-quick.html").exists()
        for name in ("spirals", "coils"):
            assert printed.count(f"{name}, quick: test accuracy") == 1
    assert summaries(tmp_path / "together") == summaries(tmp_path / "in turn")
    assert set(summaries(tmp_path / "together")) == {"spirals-quick", "coils-quick"}


def test_one_that_fails_does_not_keep_the_others_from_running(recipes, tmp_path: Path) -> None:
    code, printed, errors = end(start(tmp_path, "--together", tmp_path / "nosuch.py", recipes[1]))
    assert code == 1, printed + errors
    assert "nosuch.py was not run to its end: There is no recipe at" in printed.replace("\n", "")
    assert set(summaries(tmp_path)) == {"coils-quick"}
    assert "Traceback" not in errors


def test_ctrl_c_stops_them_all_and_the_same_command_goes_on(recipes, tmp_path: Path) -> None:
    studies = start(tmp_path, "--together", *recipes)
    deadline = time.monotonic() + 100
    while not list(tmp_path.rglob("result.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(studies.pid, signal.SIGINT)  # what a terminal does
    code, printed, errors = end(studies)
    assert code == 130, printed + errors
    assert errors.strip() == "dualavg: stopped. Run the command again to resume."
    assert "was not run" not in printed
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert before
    code, printed, errors = end(start(tmp_path, "--together", *recipes))
    assert code == 0, printed + errors
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}.items()
