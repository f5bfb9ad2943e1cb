"""`dualavg reproduce --together`: studies at once on the same workers, and how they are stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_study import Command, end, environment, wait_until, write_recipe

from dualavg_bench.analysis import paper

# The paper's experiments take minutes: these stand in for them.
REPRODUCE = """
import sys
from dualavg_bench import cli
from dualavg_bench.analysis import paper

out, *names = sys.argv[1:]
paper.RECIPES = tuple(names)
paper.METRICS |= dict.fromkeys(names, ("accuracy", "%"))
cli.main(["reproduce", "--out", out, "--together", "--workers", "2"])
"""


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two small experiments."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("spirals", "coils")}
    return [str(write_recipe(folder, name=name, steps=60)) for name, folder in folders.items()]


@pytest.fixture
def reproduce(dualavg: Command, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process, for these experiments instead of the paper's."""

    def run(names: list[str], *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(paper, "RECIPES", tuple(names))
        monkeypatch.setattr(paper, "METRICS", paper.METRICS | dict.fromkeys(names, ("accuracy", "%")))
        return dualavg("reproduce", "--scheduler", scheduler, *arguments)

    return run


def summaries(out: Path) -> dict[str, Any]:
    found = {}
    for path in out.glob("*/summary.json"):
        found[path.parent.name] = json.loads(path.read_text())
        del found[path.parent.name]["times"]
    return found


def test_at_once_each_study_gives_what_it_gives_alone(
    recipes: list[str], reproduce: Command, tmp_path: Path
) -> None:
    for out, options in {"together": ["--together"], "in turn": []}.items():
        code, printed, errors = reproduce(recipes, "--out", tmp_path / out, *options)
        assert code == 0, printed + errors
        assert (tmp_path / out / "reproduction-quick.html").exists()
        for name in ("spirals", "coils"):
            assert printed.count(f"{name}, quick: test accuracy") == 1
    assert summaries(tmp_path / "together") == summaries(tmp_path / "in turn")
    assert set(summaries(tmp_path / "together")) == {"spirals-quick", "coils-quick"}


def test_a_study_that_fails_does_not_stop_the_others(
    recipes: list[str], reproduce: Command, tmp_path: Path
) -> None:
    names = [str(tmp_path / "nosuch.py"), recipes[1]]
    code, printed, errors = reproduce(names, "--together", "--out", tmp_path)
    assert code == 1, printed + errors
    assert "nosuch.py failed: There is no recipe at" in printed.replace("\n", "")
    assert set(summaries(tmp_path)) == {"coils-quick"}
    assert "Traceback" not in errors


def test_ctrl_c_stops_all_studies_and_the_command_resumes_them(
    recipes: list[str], reproduce: Command, tmp_path: Path
) -> None:
    studies = subprocess.Popen(
        [sys.executable, "-c", REPRODUCE, str(tmp_path), *recipes],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: list(tmp_path.rglob("result.json")), studies)
    os.killpg(studies.pid, signal.SIGINT)  # what a terminal does
    printed, errors = end(studies, code=130)
    assert errors.strip() == "dualavg: stopped. Run the command again to resume."
    assert "failed" not in printed
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert before
    code, printed, errors = reproduce(recipes, "--together", "--out", tmp_path)
    assert code == 0, printed + errors
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}.items()
