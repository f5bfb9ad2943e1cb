"""MDA, SGD with momentum and Adam on scikit-learn's handwritten digits: a fair comparison in half a minute.

    python examples/digits.py

What makes it fair, and is worth copying:

- every optimizer may try the same number of step sizes, under the same schedule;
- the choice is made on validation images only; the test images are read once, at the end, by networks whose
  seeds tuning never saw;
- a seed decides initialisation and order of the data, whatever the optimizer: runs pair up, and so do their
  differences;
- a run that diverges is a result like any other.
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
BLIND_GUESS = math.log(10)  # the loss of a network that gives ten digits equal chances


class Final(NamedTuple):
    """What one run with the chosen lr came to."""

    curve: list[float]  # training loss of each epoch, as the batches saw it
    train_loss: float  # on all training images, at the end
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
    """1024 images to train on, 373 to choose with, 400 to test on; always the same."""
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
    """Nothing learnt, or nan."""
    return not loss < 0.98 * BLIND_GUESS


def tune(name, epochs, parts, progress):
    """Return the validation loss of every lr of the grid, one value a seed; infinite if it diverged."""
    training, validation, _ = parts
    found = {}
    for lr in GRIDS[name]:
        found[lr] = []
        for seed in TUNING_SEEDS:
            progress(f"tuning {name}", f"lr {lr:g}")
            model, _ = train(name, lr, seed, epochs, *training)
            loss, _ = evaluate(model, *validation)
            found[lr].append(math.inf if diverged(loss) else loss)
    return found


def confirm(name, lr, seeds, epochs, parts, progress):
    """Run the chosen lr on fresh seeds, and look at the test images."""
    training, _, test = parts
    finals = []
    for seed in range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + seeds):
        progress(f"testing {name} at lr {lr:g}", f"seed {seed}")
        model, curve = train(name, lr, seed, epochs, *training)
        finals.append(Final(curve, evaluate(model, *training)[0], evaluate(model, *test)[1]))
    return finals


def mean_and_error(values):
    mean, n = fmean(values), len(values)
    # Not statistics.stdev, which raises where a run has diverged to nan.
    return mean, math.sqrt(sum((v - mean) * (v - mean) for v in values) / (n - 1) / n)


def report(tuning, chosen, finals):
    """Print the table, the paired differences, and what to be wary of."""
    from scipy.stats import t

    n = len(finals["MDA"])
    print(f"\noptimizer     lr   test accuracy, %   training loss    (mean ± s.e., n = {n})")
    for name, runs in finals.items():
        accuracy = "{:.2f} ± {:.2f}".format(*mean_and_error([run.test_accuracy for run in runs]))
        loss = "{:.4f} ± {:.4f}".format(*mean_and_error([run.train_loss for run in runs]))
        lost = sum(diverged(run.train_loss) for run in runs)
        print(f"{name:10} {chosen[name]:5g}   {accuracy:16}   {loss}", f"  {lost} DIVERGED" if lost else "")
    print()
    for other in ("SGD+M", "Adam"):
        pairs = zip(finals["MDA"], finals[other], strict=True)
        mean, error = mean_and_error([a.test_accuracy - b.test_accuracy for a, b in pairs])
        reach = t.ppf(0.975, n - 1) * error
        verdict = "no difference shown" if abs(mean) <= reach else f"{'MDA' if mean > 0 else other} is better"
        print(
            f"MDA minus {other}, paired: {round(mean, 2) + 0.0:.2f} points of accuracy, "
            f"95% interval {mean - reach:.2f} to {mean + reach:.2f}: {verdict}."
        )
    for name, losses in tuning.items():
        lost = [f"{lr:g}" for lr in losses if math.inf in losses[lr]]
        if lost:
            print(f"{name} diverged in tuning at lr {', '.join(lost)}.")
        if chosen[name] in (GRIDS[name][0], GRIDS[name][-1]):
            print(f"!!! {name}'s best lr is on the EDGE of its grid: widen GRIDS and run again. !!!")


def plot(tuning, chosen, finals, path):
    """Draw training curves with their standard error, and how sensitive validation is to the lr."""
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
            right.plot(lr, BLIND_GUESS, "x", color=color, markersize=9)
    right.axhline(BLIND_GUESS, color="0.6", linestyle=":", zorder=0, label="blind guess; crosses diverged")
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
    """Return a function that tells how far we are: one changing line on a terminal, else a line a stage."""
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
