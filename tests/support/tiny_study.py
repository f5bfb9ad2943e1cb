"""A recipe small enough to run dozens of times, and the means to run and to disturb its study."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dualavg_bench

TEMPLATE = Path(dualavg_bench.__file__).parent / "recipe" / "templates" / "new_recipe.py"

TIMEOUT = 240

Command = Callable[..., tuple[int, str, str]]


def write_recipe(
    folder: Path, *, name: str = "spirals", steps: int = 120, confirm: int = 2, extra: str = ""
) -> Path:
    """The recipe that `dualavg new` writes, with less of everything."""
    text = TEMPLATE.read_text()
    for old, new in {
        'name="spirals"': f'name="{name}"',
        "steps=400": f"steps={steps}",
        "confirm=5": f"confirm={confirm}",
        "tune=2": "tune=1",
        "(0.3, 1.0, 3.0, 10.0)": "(0.3, 1.0, 3.0)",
        "(0.03, 0.1, 0.3, 1.0)": "(0.03, 0.1, 1e9)",
        "(0.001, 0.003, 0.01, 0.03)": "(0.003, 0.01, 0.03)",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "tiny.py"
    path.write_text(text + extra)
    return path


def command(recipe: Path, out: Path, *more: str) -> list[str]:
    study = [sys.executable, "-m", "dualavg_bench", "study", str(recipe), "--out", str(out)]
    return [*study, "--no-extend", *more]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "DUALAVG_CHECKPOINT_SECONDS": "0.02", **more}


def start(recipe: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start a study, in a process group of its own as a shell does."""
    return subprocess.Popen(
        command(recipe, out, *more),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(study: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the end; return what was printed."""
    output, errors = study.communicate(timeout=TIMEOUT)
    assert study.returncode == code, output + errors
    assert "Traceback" not in output + errors
    return output, errors


def wait_until(happened: Callable[[], Any], study: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (found := happened()):
        assert time.monotonic() < deadline
        if study is not None and study.poll() is not None:
            raise AssertionError("".join(study.communicate()))
        time.sleep(0.02)
    return found


def summary_without_times(out: Path) -> dict[str, Any]:
    """What must be the same, however often a study was killed and with however many workers."""
    summary = json.loads((out / "spirals-quick" / "summary.json").read_text())
    del summary["times"]
    return summary


TRAPS = """

# Traps are files beside the recipe: its text, and so the hash of its runs, stays the same.
import dataclasses
import os
import signal
import sys
import time

from dualavg_bench.recipe.schedules import SCHEDULES
from dualavg_bench.run.training import seed_for

_folder = Path(__file__).parent / "traps"
_seeds = {seed_for("spirals", seed, "init"): seed for seed in (0, 1000, 1001)}
_loss, _recipe = loss, recipe
_run, _progress = "", None


def _schedule(optimizer, steps):
    global _run, _progress
    seed = _seeds[torch.initial_seed()]
    _run = f"{type(optimizer).__name__}-{optimizer.param_groups[0]['lr']:g}-{seed}"
    _progress = SCHEDULES["linear"](optimizer, steps)
    return _progress


def _in_trial():
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith("trial.py"):
        frame = frame.f_back
    return frame is not None


def loss(model, batch):
    if _folder.exists() and not _in_trial():
        step = _progress.last_epoch
        with (_folder / "log").open("a") as log:
            log.write(f"{os.getpid()} {_run} {step}\\n")
        if (_folder / "slow").exists():
            time.sleep(float((_folder / "slow").read_text()))
        deadline = time.monotonic() + 20
        while (_folder / "pair").exists() and time.monotonic() < deadline:
            if len({line.split()[0] for line in (_folder / "log").read_text().splitlines()}) > 1:
                (_folder / "pair").unlink(missing_ok=True)
            time.sleep(0.05)
        if step == 60 and (_folder / f"kill-{_run}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 60 and (_folder / "hang").exists():
            (_folder / "hang").rename(_folder / f"hanging-{os.getpid()}")  # one of all
            time.sleep(600)
    return _loss(model, batch)


def recipe(scale="quick"):
    return dataclasses.replace(_recipe(scale), schedules={"linear": _schedule})
"""


@dataclass(frozen=True)
class Study:
    """A study that nobody disturbed: its recipe, where it is kept, its summary without times."""

    recipe: Path
    out: Path
    summary: dict[str, Any]


class Traps:
    """A copy of a recipe with `TRAPS`, what it is asked to do, and what it did."""

    def __init__(self, recipe: Path, folder: Path) -> None:
        self.recipe, self.folder = folder / recipe.name, folder / "traps"
        self.recipe.write_bytes(recipe.read_bytes())
        self.folder.mkdir()

    def set(self, name: str, text: str = "") -> None:
        """Set a trap.

        slow: so many seconds more a step. hang: the first of all runs that comes to step 60.
        pair: whoever comes first, until a second process has a run in hand.
        kill-RUN, e.g. kill-SGD-0.1-0: its process, whenever it comes to step 60.
        """
        (self.folder / name).write_text(text)

    def unset(self, name: str) -> None:
        (self.folder / name).unlink()

    def hanging(self) -> int | None:
        """The process that hangs."""
        found = list(self.folder.glob("hanging-*"))
        return int(found[0].name.partition("-")[2]) if found else None

    def executions(self) -> list[tuple[str, list[int]]]:
        """Each time that a run was begun or taken up: which, and its steps."""
        log = self.folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        found: list[tuple[str, list[int]]] = []
        of_process: dict[str, tuple[str, list[int]]] = {}
        for process, run, step in lines:
            now = of_process.get(process)
            if now is None or now[0] != run or int(step) != now[1][-1] + 1:
                of_process[process] = (run, [])
                found.append(of_process[process])
            of_process[process][1].append(int(step))
        return found
