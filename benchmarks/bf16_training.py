"""Pure bfloat16 training: how much does each optimizer lose against its own float32 run?

    python benchmarks/bf16_training.py                              # about 2 minutes on one core
    python benchmarks/bf16_training.py --figure docs/img/bf16.svg   # also draws the documentation's figure
    python benchmarks/bf16_training.py --tune                       # how LRS was chosen

A small network learns scikit-learn's digits three times from the same start, on the same batches:

    float32    weights, gradients and arithmetic in float32
    bf16       all in bfloat16: `model.to(torch.bfloat16)` and an ordinary loop
    masters    the control: network and gradients in bfloat16, but the optimizer works on float32 copies of
               the weights; the remaining gap is due to the gradients, not to the optimizer

The score is the loss on the full training set, computed in float32 from the final weights. Compare modes of
one optimizer only; examples/digits.py compares optimizers.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dualavg import MDA
from dualavg.schedules import WarmupLinearDecay

HIDDEN, BATCH, WARMUP = 64, 64, 0.05
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "MDA": MDA,
    "MDA, uncoupled": lambda params, lr: MDA(params, lr=lr, couple_momentum=False),
    "SGD+M": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "Adam": torch.optim.Adam,
}
# The lr of the lowest float32 loss on the tuning seeds (--tune), and the two below it: above it, float32
# itself is unstable, and a difference between two unstable runs says nothing about rounding.
LRS = {
    "MDA": (0.3, 1.0, 3.0),
    "MDA, uncoupled": (0.3, 1.0, 3.0),
    "SGD+M": (0.03, 0.1, 0.3),
    "Adam": (0.01, 0.03, 0.1),
}
TUNE_GRID = {
    "MDA": (0.1, 0.3, 1.0, 3.0, 10.0),
    "SGD+M": (0.03, 0.1, 0.3, 1.0, 3.0),
    "Adam": (0.003, 0.01, 0.03, 0.1, 0.3),
}
TUNE_SEEDS = range(100, 104)
MODES = ("float32", "bf16", "masters")


SHAPES_AND_FAN_INS = (((64, HIDDEN), 64), ((1, HIDDEN), 64), ((HIDDEN, 10), HIDDEN), ((1, 10), HIDDEN))


def initial_weights(seeds: Sequence[int]) -> list[Tensor]:
    """Torch's default initialisation of a layer, rounded to bfloat16 so that every mode starts alike.

    Seeds train side by side, one slice each of the first dimension: every optimizer here is elementwise,
    so this is the same as training them one by one, and several times faster.
    """
    networks = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        networks.append(
            [
                fan_in**-0.5 * (2 * torch.rand(shape, generator=generator) - 1)
                for shape, fan_in in SHAPES_AND_FAN_INS
            ]
        )
    return [torch.stack(same).bfloat16() for same in zip(*networks, strict=True)]


def logits(weights: Sequence[Tensor], images: Tensor) -> Tensor:
    """A multilayer perceptron for each seed."""
    w1, b1, w2, b2 = weights
    return torch.baddbmm(b2, torch.relu(torch.baddbmm(b1, images, w1)), w2)


def digits() -> tuple[Tensor, Tensor]:
    """All 1797 images, with pixels that bfloat16 holds exactly, and their labels."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def train(name: str, lr: float, mode: str, seeds: Sequence[int], steps: int) -> tuple[list[Tensor], Any]:
    """Weights at the end, and the optimizer."""
    images, labels = digits()
    dtype = torch.float32 if mode == "float32" else torch.bfloat16
    weights = [nn.Parameter(w.to(dtype)) for w in initial_weights(seeds)]
    owned = [nn.Parameter(w.detach().float()) for w in weights] if mode == "masters" else weights
    optimizer = OPTIMIZERS[name](owned, lr=lr)
    scheduler = WarmupLinearDecay(optimizer, round(WARMUP * steps), steps)
    orders = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    for _ in range(steps):
        batch = torch.stack([torch.randint(len(images), (BATCH,), generator=order) for order in orders])
        output = logits(weights, images[batch].to(dtype)).flatten(0, 1)
        # A sum over seeds, so that each sees the gradient of its own mean loss.
        loss = F.cross_entropy(output, labels[batch].flatten(), reduction="sum") / BATCH
        grads = torch.autograd.grad(loss, weights)
        for p, grad in zip(owned, grads, strict=True):
            p.grad = grad.to(p.dtype)
        optimizer.step()
        scheduler.step()
        if mode == "masters":
            with torch.no_grad():
                torch._foreach_copy_(weights, owned)
    return [w.detach() for w in weights], optimizer


def training_loss(weights: Sequence[Tensor]) -> Tensor:
    """Loss of each seed on the whole training set, in float32."""
    images, labels = digits()
    output = logits([w.float() for w in weights], images.expand(len(weights[0]), -1, -1))
    return torch.stack([F.cross_entropy(one, labels) for one in output])


def distance(weights: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """||weights - others|| / ||others|| of each seed."""
    flat, other = (torch.cat([w.float().flatten(1) for w in ws], 1) for ws in (weights, others))
    return (flat - other).norm(dim=1) / other.norm(dim=1)


def lag(optimizer: torch.optim.Optimizer) -> Tensor:
    """|x - z| of every weight, in units of the last place of bfloat16 at x."""
    found = []
    for x, state in optimizer.state.items():
        z = state["x0"].float() - state["s"] / state["step"].sqrt()
        ulp = torch.exp2(x.detach().float().abs().log2().floor() - 7)
        found.append(((x.detach().float() - z).abs() / ulp).flatten())
    return torch.cat(found)


def measure(name: str, lr: float, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """One row of the table: three modes of one optimizer at one lr."""
    weights, row = {}, {"optimizer": name, "lr": lr, "loss": {}, "distance": {}}
    for mode in MODES:
        weights[mode], optimizer = train(name, lr, mode, seeds, steps)
        row["loss"][mode] = training_loss(weights[mode]).tolist()
        row["distance"][mode] = distance(weights[mode], weights["float32"]).tolist()
        if mode == "bf16" and isinstance(optimizer, MDA):
            row["lag"] = lag(optimizer).quantile(torch.tensor([0.5, 0.99])).tolist()
    row["rounded once"] = training_loss([w.bfloat16() for w in weights["float32"]]).tolist()
    return row


def mean_and_error(values: Sequence[float], digits: int = 5) -> str:
    """Mean ± standard error; a run that diverged is counted, not hidden in a nan."""
    finite = torch.tensor([v for v in values if math.isfinite(v)], dtype=torch.float64)
    lost = len(values) - len(finite)
    if len(finite) < 2:
        return f"{lost} of {len(values)} diverged"
    text = f"{finite.mean():.{digits}f} ± {finite.std() / len(finite) ** 0.5:.{digits}f}"
    return text + (f" ({lost} of {len(values)} diverged)" if lost else "")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a markdown table; a difference is of the same seed, a percentage of the float32 loss."""
    n = len(rows[0]["loss"]["float32"])
    header = (
        "optimizer",
        "lr",
        "loss in float32",
        f"bf16 - float32, paired, n = {n}",
        "relative",
        "masters - float32",
        "weights: bf16 to float32",
        "x to z in ulps: median, 99%",
    )
    cells = [header, ("---",) * len(header)]
    for row in rows:
        loss = row["loss"]
        pure, masters = (
            [a - b for a, b in zip(loss[mode], loss["float32"], strict=True)] for mode in ("bf16", "masters")
        )
        cells.append(
            (
                row["optimizer"],
                f"{row['lr']:g}",
                f"{sum(loss['float32']) / n:.5f}",
                mean_and_error(pure),
                f"{100 * sum(pure) / sum(loss['float32']):+.1f}%",
                mean_and_error(masters),
                mean_and_error(row["distance"]["bf16"], 3),
                ", ".join(f"{q:.2f}" for q in row.get("lag", ())),
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Loss in bfloat16 over loss in float32, a dot a seed; 1 is a run that lost nothing."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "bf16", "font.size": 9})
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(OPTIMIZERS), figsize=(8.5, 3.2), sharey=True, layout="constrained")
    for axis, name in zip(axes, OPTIMIZERS, strict=True):
        mine = [row for row in rows if row["optimizer"] == name]
        axis.axhline(1, color="0.6", linewidth=1)
        for mode, shift, color in (("bf16", -0.13, "tab:red"), ("masters", 0.13, "tab:blue")):
            for i, row in enumerate(mine):
                loss = row["loss"]
                ratios = [a / b for a, b in zip(loss[mode], loss["float32"], strict=True)]
                label = (
                    {"bf16": "pure bfloat16", "masters": "float32 master weights"}[mode] if i == 0 else None
                )
                axis.plot([i + shift] * len(ratios), ratios, ".", color=color, alpha=0.6, label=label)
        axis.set(title=name, yscale="log", xlabel="lr", xlim=(-0.6, len(mine) - 0.4))
        axis.set_xticks(range(len(mine)), [f"{row['lr']:g}" for row in mine])
        axis.spines[["top", "right"]].set_visible(False)
    ticks = (0.5, 1, 2, 4, 8)
    axes[0].set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes[0].yaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes[0].set_ylim(0.45, 9)
    axes[0].set_ylabel("training loss, bf16 / float32")
    axes[0].legend(frameon=False, loc="upper left", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, metadata={"Date": None})


def tune(steps: int) -> None:
    """Print the float32 loss over a grid, on seeds that the measurement does not use."""
    for name, grid in TUNE_GRID.items():
        for lr in grid:
            weights, _ = train(name, lr, "float32", TUNE_SEEDS, steps)
            print(f"{name:6} lr {lr:<5g} {mean_and_error(training_loss(weights).tolist())}", flush=True)


def main() -> None:
    """Measure, print the table, and save what it was made from."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--steps", type=int, default=1500, help="of a run (default: 1500)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the JSON and the figure")
    parser.add_argument("--figure", type=Path, help="where to save the figure (default: <out>/bf16.svg)")
    parser.add_argument("--tune", action="store_true", help="only print the float32 loss over a grid of lrs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.tune:
        tune(args.steps)
        return
    start, rows = time.perf_counter(), []
    for name, lrs in LRS.items():
        for lr in lrs:
            rows.append(measure(name, lr, range(args.seeds), args.steps))
            print(f"[{time.perf_counter() - start:4.0f} s] {name}, lr {lr:g}", flush=True)
    print("\n" + table(rows) + "\n")
    args.out.mkdir(parents=True, exist_ok=True)
    saved = args.out / "bf16_training.json"
    settings = {"steps": args.steps, "seeds": list(range(args.seeds)), "batch": BATCH, "hidden": HIDDEN}
    about = {"torch": torch.__version__, "machine": platform.machine()}
    saved.write_text(json.dumps({"settings": settings, "about": about, "rows": rows}, indent=1) + "\n")
    picture = args.figure or args.out / "bf16.svg"
    figure(rows, picture)
    print(f"Saved {saved} and {picture}.")


if __name__ == "__main__":
    main()
