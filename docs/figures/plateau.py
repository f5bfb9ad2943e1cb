"""Draw docs/img/plateau.svg, MDA and SGD under ReduceLROnPlateau: python docs/figures/plateau.py.

The figure, and the table that this prints, are made from plateau.json beside this file. With --measure, it is
measured again first, about five minutes on one core (extra `bench`).

A multilayer perceptron (64-64-10) learns scikit-learn's digits for 120 epochs of batches of 64: 1,200 images
for training, 297 for validation, 300 for the test. lr is 1 for MDA and 0.1 for SGD, which is the same step
size at momentum 0.9. Every optimizer starts from the same weights and sees the same batches.
ReduceLROnPlateau is told the validation loss of each epoch, and in a second row the training loss.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR, ReduceLROnPlateau

from dualavg import MDA
from dualavg.schedules import FlatThenDrop, StageWise, WarmupCosine, WarmupLinearDecay, WarmupStableDecay

NUMBERS = Path(__file__).with_name("plateau.json")
OUT = Path(__file__).parent.parent / "img" / "plateau.svg"
STYLE = Path(__file__).with_name("dualavg.mplstyle")
MUTED, COLOURS = "#6e7781", {"MDA": "#0550ae", "SGD+M": "#bc4c00"}

EPOCHS, BATCH, TRAIN, VALIDATION, SEEDS = 120, 64, 1200, 297, range(5)
STEPS = EPOCHS * (TRAIN // BATCH)
WARMUP = STEPS // 20
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "MDA": lambda params: MDA(params, lr=1.0),
    "SGD+M": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}
# Stepped once per step, except for ReduceLROnPlateau.
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "constant": lambda opt: LambdaLR(opt, lambda _: 1.0),
    "WarmupLinearDecay": lambda opt: WarmupLinearDecay(opt, WARMUP, STEPS),
    "WarmupCosine": lambda opt: WarmupCosine(opt, WARMUP, STEPS),
    "WarmupStableDecay": lambda opt: WarmupStableDecay(opt, WARMUP, STEPS // 5, STEPS),
    "StageWise": lambda opt: StageWise(opt, [STEPS // 2, 3 * STEPS // 4], ramp=STEPS // 60),
    "FlatThenDrop": lambda opt: FlatThenDrop(opt, 4 * STEPS // 5),
    "OneCycleLR": lambda opt: OneCycleLR(opt, opt.param_groups[0]["lr"], STEPS),
    "CosineAnnealingWarmRestarts": lambda opt: CosineAnnealingWarmRestarts(opt, STEPS // 4),
    "ReduceLROnPlateau": lambda opt: ReduceLROnPlateau(opt, patience=5),
    "ReduceLROnPlateau, training loss": lambda opt: ReduceLROnPlateau(opt, patience=5),
}


def train(optimizer_name: str, schedule_name: str, seed: int, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Train once; return the training loss and the lr, relative to the first, of each epoch."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    base_lr = optimizer.param_groups[0]["lr"]
    scheduler = SCHEDULES[schedule_name](optimizer)
    shuffled = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(1000 + seed))
    parts = shuffled.split([TRAIN, VALIDATION, len(shuffled) - TRAIN - VALIDATION])
    (images, labels), validation, test = [(data[0][part], data[1][part]) for part in parts]
    losses, lrs = [], []
    for _ in range(EPOCHS):
        lrs.append(optimizer.param_groups[0]["lr"] / base_lr)
        for batch in torch.randperm(TRAIN)[: TRAIN // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()
        with torch.no_grad():
            losses.append(cross_entropy(model(images), labels).item())
            if isinstance(scheduler, ReduceLROnPlateau):
                watched = cross_entropy(model(validation[0]), validation[1]).item()
                scheduler.step(losses[-1] if "training" in schedule_name else watched)
    with torch.no_grad():
        right = model(test[0]).argmax(1) == test[1]
    return {"losses": losses, "lrs": lrs, "test accuracy": 100 * right.double().mean().item()}


def measure() -> None:
    """Train every optimizer with every schedule from every seed, and write the numbers."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - drawing does not need it

    torch.set_num_threads(1)
    digits, start = load_digits(), time.perf_counter()
    data = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    numbers: dict[str, Any] = {"seeds": len(SEEDS), "end": {}, "plateau": {}}
    for schedule in SCHEDULES:
        numbers["end"][schedule] = {}
        for name in OPTIMIZERS:
            runs = [train(name, schedule, seed, data) for seed in SEEDS]
            numbers["end"][schedule][name] = {
                "lowest loss": [round(min(run["losses"]), 5) for run in runs],
                "loss": [round(run["losses"][-1], 5) for run in runs],
                "test accuracy": [round(run["test accuracy"], 2) for run in runs],
            }
            if schedule == "ReduceLROnPlateau":
                keys = ("losses", "lrs")
                curves = {key: [[float(f"{y:.4g}") for y in run[key]] for run in runs] for key in keys}
                numbers["plateau"][name] = curves
            print(schedule, name, numbers["end"][schedule][name], f"{time.perf_counter() - start:.0f} s")
    NUMBERS.write_text(json.dumps(numbers) + "\n")


def table(numbers: dict[str, Any]) -> str:
    """Return the ends of all runs as a markdown table: mean ± standard error."""
    lines = [
        "| schedule | MDA: lowest | last | test, % | SGD+M: last | test, % |",
        "|---" * 6 + "|",
    ]
    for schedule, ends in numbers["end"].items():
        cells = [
            mean_and_error(ends[name][key], 1 if key == "test accuracy" else 4)
            for name, keys in (
                ("MDA", ("lowest loss", "loss", "test accuracy")),
                ("SGD+M", ("loss", "test accuracy")),
            )
            for key in keys
        ]
        lines.append(f"| `{schedule}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_and_error(values: list[float], digits: int) -> str:
    """Return mean ± standard error as text."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def curves(ax: Axes, plateau: dict[str, Any], key: str) -> None:
    """Plot a line per seed, and the name of the optimizer at the end of the lines."""
    for name, colour in COLOURS.items():
        for values in plateau[name][key]:
            ax.semilogy(range(1, EPOCHS + 1), values, color=colour, lw=1.2, alpha=0.8)
        end = statistics.median(values[-1] for values in plateau[name][key])
        ax.annotate(name, (EPOCHS, end), (5, 0), textcoords="offset points", va="center", color=colour)


def draw(numbers: dict[str, Any]) -> None:
    """Write the figure. The bytes are the same every time."""
    with plt.style.context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.3), layout="constrained", sharex=True)
        for ax, key, title in zip(axes, ("losses", "lrs"), ("training loss", "lr / first lr"), strict=True):
            curves(ax, numbers["plateau"], key)
            ax.set(title=title, xlabel="epoch", xlim=(0, EPOCHS))
            ax.grid(visible=True)
            ax.set_axisbelow(True)
        figure.savefig(OUT, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Measure if asked to, draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure again before drawing")
    if parser.parse_args().measure:
        measure()
    numbers = json.loads(NUMBERS.read_text())
    draw(numbers)
    print(table(numbers))


if __name__ == "__main__":
    main()
