"""MDA, SGD with momentum and Adam on scikit-learn's handwritten digits: a fair comparison in half a minute.

    python examples/digits.py

What makes the comparison fair:

- Every optimizer tries the same number of lrs, with the same schedule.
- The lr is chosen on validation images only. The test images are read once, at the end, with seeds that were
  not used for tuning.
- A seed decides the initialisation and the order of the data, for every optimizer alike. So the differences
  between two optimizers can be paired by seed.
- A run that diverges counts as a result.
"""

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

GRIDS = {
    "MDA": (0.3, 1.0, 3.0, 10.0, 30.0),
    "SGD+M": (0.01, 0.03, 0.1, 0.3, 1.0),
    "Adam": (0.003, 0.01, 0.03, 0.1, 0.3),
}
TUNING_SEEDS = (0, 1)
FIRST_FRESH_SEED = 100
BATCH = 32
UNIFORM_LOSS = math.log(10)  # the loss of equal probabilities for all ten digits


class Final(NamedTuple):
    """The result of one run with the chosen lr."""

    curve: list[float]  # mean training loss over the batches of each epoch
    train_loss: float  # on all training images, after training
    test_accuracy: float  # in percent


def make_optimizer(name, params, lr):
    import torch

    from dualavg import MDA

    if name == "MDA":
        return MDA(params, lr=lr)  # about ten times the lr of SGD with momentum 0.9
    if name == "SGD+M":
        return torch.optim.SGD(params, lr=lr, momentum=0.9)
    return torch.optim.Adam(params, lr=lr)


def load_parts():
    """Return 1024 images for training, 373 for validation, 400 for test; always the same."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return [(images[part], labels[part]) for part in order.split([1024, 373, 400])]


def train(name, lr, seed, epochs, images, labels):
    """Return the trained network and the training loss of each epoch."""
    import torch
    from torch import nn

    from dualavg.schedules import WarmupLinearDecay

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = make_optimizer(name, model.parameters(), lr)
    steps = epochs * (len(images) // BATCH)
    scheduler = WarmupLinearDecay(optimizer, warmup_steps=steps // 10, total_steps=steps)
    data_order = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(epochs):
        losses = []
        for batch in torch.randperm(len(images), generator=data_order).split(BATCH):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        curve.append(fmean(losses))
    return model, curve


def evaluate(model, images, labels):
    """Return loss and accuracy in percent."""
    import torch

    with torch.no_grad():
        output = model(images)
        loss = torch.nn.functional.cross_entropy(output, labels).item()
        return loss, 100 * (output.argmax(dim=1) == labels).float().mean().item()


def diverged(loss):
    """Whether the network has learnt nothing, or its loss is nan."""
    return not loss < 0.98 * UNIFORM_LOSS


def tune(name, epochs, parts, progress):
    """Return the validation losses of every lr, one for each seed; infinite if the run diverged."""
    training, validation, _ = parts
    losses = {}
    for lr in GRIDS[name]:
        losses[lr] = []
        for seed in TUNING_SEEDS:
            progress(f"tuning {name}", f"lr {lr:g}")
            model, _ = train(name, lr, seed, epochs, *training)
            loss, _ = evaluate(model, *validation)
            losses[lr].append(math.inf if diverged(loss) else loss)
    return losses


def confirm(name, lr, seeds, epochs, parts, progress):
    """Run the chosen lr with fresh seeds, and evaluate on the test images."""
    training, _, test = parts
    finals = []
    for seed in range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + seeds):
        progress(f"testing {name} at lr {lr:g}", f"seed {seed}")
        model, curve = train(name, lr, seed, epochs, *training)
        finals.append(Final(curve, evaluate(model, *training)[0], evaluate(model, *test)[1]))
    return finals


def mean_and_error(values):
    mean, n = fmean(values), len(values)
    # statistics.stdev would raise for nan, when a run has diverged.
    return mean, math.sqrt(sum((v - mean) * (v - mean) for v in values) / (n - 1) / n)


def report(tuning, chosen, finals):
    """Print the table, the paired differences, and warnings."""
    from scipy.stats import t

    n = len(finals["MDA"])
    print(f"\noptimizer     lr   test accuracy, %   training loss    (mean ± s.e., n = {n})")
    for name, runs in finals.items():
        accuracy = "{:.2f} ± {:.2f}".format(*mean_and_error([run.test_accuracy for run in runs]))
        loss = "{:.4f} ± {:.4f}".format(*mean_and_error([run.train_loss for run in runs]))
        failed = sum(diverged(run.train_loss) for run in runs)
        print(
            f"{name:10} {chosen[name]:5g}   {accuracy:16}   {loss}", f"  {failed} DIVERGED" if failed else ""
        )
    print()
    for other in ("SGD+M", "Adam"):
        pairs = zip(finals["MDA"], finals[other], strict=True)
        mean, error = mean_and_error([a.test_accuracy - b.test_accuracy for a, b in pairs])
        margin = t.ppf(0.975, n - 1) * error
        verdict = (
            "no difference shown" if abs(mean) <= margin else f"{'MDA' if mean > 0 else other} is better"
        )
        print(
            f"MDA minus {other}, paired: {round(mean, 2) + 0.0:.2f} points of accuracy, "
            f"95% interval {mean - margin:.2f} to {mean + margin:.2f}: {verdict}."
        )
    for name, losses in tuning.items():
        failed_lrs = [f"{lr:g}" for lr in losses if math.inf in losses[lr]]
        if failed_lrs:
            print(f"{name} diverged in tuning at lr {', '.join(failed_lrs)}.")
        if chosen[name] in (GRIDS[name][0], GRIDS[name][-1]):
            print(f"!!! {name}'s best lr is on the EDGE of its grid: widen GRIDS and run again. !!!")


def plot(tuning, chosen, finals, path):
    """Draw training curves with standard errors, and validation loss against lr."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, runs), color in zip(finals.items(), ("tab:red", "tab:blue", "tab:green"), strict=True):
        epochs = range(1, len(runs[0].curve) + 1)
        points = [mean_and_error(losses) for losses in zip(*(run.curve for run in runs), strict=True)]
        left.plot(epochs, [m for m, _ in points], color=color, label=f"{name}, lr {chosen[name]:g}")
        low, high = ([m + sign * e for m, e in points] for sign in (-1, 1))
        left.fill_between(epochs, low, high, color=color, alpha=0.25, linewidth=0)

        means = {lr: fmean(losses) for lr, losses in tuning[name].items()}
        finite = [lr for lr in means if math.isfinite(means[lr])]
        right.plot(finite, [means[lr] for lr in finite], ".-", color=color, label=name)
        right.plot(chosen[name], means[chosen[name]], "o", color=color, markersize=9)
        for lr in means.keys() - finite:
            right.plot(lr, UNIFORM_LOSS, "x", color=color, markersize=9)
    right.axhline(UNIFORM_LOSS, color="0.6", linestyle=":", zorder=0, label="blind guess; crosses diverged")
    left.set(yscale="log", xlabel="epoch", ylabel="training loss", title=f"{len(runs)} fresh seeds, ± s.e.")
    right.set(xscale="log", yscale="log", xlabel="lr", ylabel="validation loss")
    right.set_title(f"mean of {len(TUNING_SEEDS)} tuning seeds; the large dot is chosen")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend(frameon=False)
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.95))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\nPlot: {path}")


def progress_of(total):
    """Return a function that prints progress: one changing line on a terminal, else one line per stage."""
    done, last = 0, ""

    def progress(stage, detail):
        nonlocal done, last
        done += 1
        if sys.stdout.isatty():
            end = "\n" if done == total else ""
            print(f"\r[{done}/{total}] {stage}, {detail}".ljust(60), end=end, flush=True)
        elif stage != last:
            print(f"[{done}/{total}] {stage}", flush=True)
        last = stage

    return progress


def main():
    """Tune, confirm, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="fresh seeds for the test (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="of every run (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/digits.png"), help="the plot (%(default)s)")
    args = parser.parse_args()
    if args.seeds < 2 or args.epochs < 1:
        parser.error("a standard error needs at least 2 seeds, and a run at least 1 epoch.")

    import torch

    torch.set_num_threads(1)
    parts = load_parts()
    progress = progress_of(sum(len(grid) * len(TUNING_SEEDS) + args.seeds for grid in GRIDS.values()))
    tuning = {name: tune(name, args.epochs, parts, progress) for name in GRIDS}
    chosen = {name: min(losses, key=lambda lr: fmean(losses[lr])) for name, losses in tuning.items()}
    finals = {name: confirm(name, chosen[name], args.seeds, args.epochs, parts, progress) for name in GRIDS}
    report(tuning, chosen, finals)
    plot(tuning, chosen, finals, args.out)


if __name__ == "__main__":
    main()
