"""Finished runs as TensorBoard event files."""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dualavg_bench.store.results import RunResult


def require_tensorboard() -> None:
    """Raise if tensorboard is not installed, before a study runs for hours."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs the tensorboard package: pip install tensorboard.")


def write_tensorboard(runs: Sequence[RunResult], folder: Path) -> None:
    """Write the curves and final scores of runs.

    Args:
        runs: results of runs.
        folder: of the study. Each run goes to `tensorboard/<optimizer>-lr...-seed...` in it, and replaces
            what an earlier call wrote there.
    """
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    for run in runs:
        target = folder / "tensorboard" / _folder_name(run)
        for old in target.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(target)) as writer:
            for split, curve in (("train", run.train), ("valid", run.valid)):
                for name in curve.names:
                    for step, value in zip(curve.step, curve[name], strict=True):
                        writer.add_scalar(f"{name}/{split}", value, step)
            setting = {"optimizer": run.optimizer, **asdict(run.point), "seed": run.seed}
            # "." keeps the table of settings in this run's folder; torch's default is a new one.
            writer.add_hparams(setting, _final_scores(run), run_name=".", global_step=run.steps)


def _folder_name(run: RunResult) -> str:
    setting = f"lr{run.lr:g}-wd{run.weight_decay:g}-{run.schedule}"
    return re.sub(r"[^\w.+-]", "_", f"{run.optimizer}-{setting}-seed{run.seed}")


def _final_scores(run: RunResult) -> dict[str, float]:
    """Return the scores at the end of a run; a diverged run has none on validation."""
    final = {"diverged": float(run.diverged)}
    if not run.diverged:
        final |= {f"valid {name}": run.valid[name][-1] for name in run.valid.names}
    for split, scores in (("test", run.test), ("test_best", run.test_best)):
        final |= {f"{split} {name}": value for name, value in (scores or {}).items()}
    return {f"final/{name}": value for name, value in final.items()}
