"""Where else finished runs can be looked at: TensorBoard, if a person has it."""

import importlib.util
import re
from pathlib import Path
from typing import Any


def require_tensorboard() -> None:
    """Say what is missing before a study has run for hours."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs the tensorboard package: pip install tensorboard.")


def write_tensorboard(runs: list[dict[str, Any]], folder: Path) -> None:
    """Write the curves and final scores of finished runs as TensorBoard's event files.

    Args:
        runs: results of runs.
        folder: the study's; each run goes to `tensorboard/<optimizer>-lr...-seed...` in it, instead of what
            an earlier call wrote there.
    """
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    for run in runs:
        place = folder / "tensorboard" / _name(run)
        for earlier in place.glob("events.out.tfevents.*"):
            earlier.unlink()
        with SummaryWriter(str(place)) as writer:
            for split in ("train", "valid"):
                for what in run[split].keys() - {"step"}:
                    for step, value in zip(run[split]["step"], run[split][what], strict=True):
                        writer.add_scalar(f"{what}/{split}", value, step)
            setting = {key: run[key] for key in ("optimizer", "lr", "weight_decay", "schedule", "seed")}
            # "." keeps the table of settings in this run's folder, where torch would make another one.
            writer.add_hparams(setting, _final(run), run_name=".", global_step=run["steps"])


def _name(run: dict[str, Any]) -> str:
    words = (
        f"{run['optimizer']}-lr{run['lr']:g}-wd{run['weight_decay']:g}-{run['schedule']}-seed{run['seed']}"
    )
    return re.sub(r"[^\w.+-]", "_", words)


def _final(run: dict[str, Any]) -> dict[str, float]:
    """Return the scores at a run's end; those of a diverged run on validation would mean nothing."""
    final = {"diverged": float(run["status"] == "diverged")}
    if run["status"] == "finished":
        final |= {f"valid {what}": values[-1] for what, values in run["valid"].items() if what != "step"}
    final |= {f"test {what}": value for what, value in (run["test"] or {}).items()}
    return {f"final/{what}": value for what, value in final.items()}
