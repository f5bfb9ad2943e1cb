"""The figures of README.md and docs/results.md, from the files in this folder: the same bytes every time."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import untuned
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from tables import COMPARED, FINE_TUNED, NAMES, TASKS, Results

from dualavg_bench.analysis.statistics import describe
from dualavg_bench.report.drawing import LIGHT, dash, looks
from dualavg_bench.report.drawing import MARKERS as FRONTIER_MARKERS
from dualavg_bench.report.frontier import draw_frontiers
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.summaries import Scores, Summary

STYLE = Path(__file__).parent.parent / "docs" / "figures" / "dualavg.mplstyle"
COLOURS = {"mda": "#0072b2", "sgd": "#d55e00", "adam": "#009e73"}
LOOKS = looks(["mda", "dadapt-mda", "sgd", "sgd+l2sp", "adamw", "adamw+start", "adamw+lora"])
MARKERS = {"mda": "o", "sgd": "s", "adam": "^"}
DASHES: dict[str, Any] = {"mda": "-", "sgd": (0, (6, 2)), "adam": (0, (2, 1.5))}


def draw(results: Results, folder: Path) -> list[Path]:
    """Write the figures whose files are there; return their paths."""
    drawn = []
    with plt.style.context(STYLE):
        if results.horizons:
            drawn.append(_horizon(results, folder / "results_horizon.svg"))
        if results.studies:
            drawn.append(_curves(results, folder / "results_curves.svg"))
        if results.untuned.keys() & results.studies.keys():
            drawn.append(untuned.draw(results, folder / "results_untuned.svg"))
        if results.fine_tuned:
            drawn.append(_frontiers(results, folder / "results_finetune.svg"))
    return drawn


def _horizon(results: Results, path: Path) -> Path:
    """Test score, its difference from Adam's, and training loss against run length, a row per task."""
    rows = len(results.horizons)
    figure, axes = plt.subplots(rows, 3, figsize=(10.4, 2.8 * rows), layout="constrained", squeeze=False)
    for row, (recipe, horizon) in zip(axes, results.horizons.items(), strict=True):
        unit = f", {horizon.unit}" if horizon.unit else ""
        better = "higher" if horizon.higher_is_better else "lower"
        _against_length(row[0], horizon, "test")
        row[0].set(title=TASKS[recipe], ylabel=f"test {horizon.metric}{unit}\n({better} is better)")
        _lead_over_adam(row[1], horizon)
        row[1].set(ylabel="lead over Adam\n(95% interval)")
        if horizon.metric == "perplexity":  # as the loss, which is its logarithm
            row[0].set_yscale("log")
            row[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            row[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            row[0].yaxis.set_minor_locator(NullLocator())
        _against_length(row[2], horizon, "train")
        row[2].set(ylabel="training loss at the end")
    axes[0][0].legend(frameon=False)
    return _save(figure, path)


def _against_length(ax: Axes, horizon: Horizon, field: str) -> None:
    for name in COMPARED:
        points: list[tuple[int, Scores]] = [
            (length.steps, scores)
            for length in horizon.lengths
            if name in length.optimizers and (scores := getattr(length.optimizers[name], field))
        ]
        means, errors = [p.mean for _, p in points], [p.se or 0.0 for _, p in points]
        _line(ax, name, [step for step, _ in points], means, errors)
    _axis_of_lengths(ax, horizon)


def _lead_over_adam(ax: Axes, horizon: Horizon) -> None:
    """Plot the paired differences from Adam with their 95% intervals: above zero is better."""
    for name in COMPARED[:2]:
        steps, leads, spans = [], [], []
        for length in horizon.lengths:
            pair = next(pair for pair in length.comparisons if {pair.a, pair.b} == {name, "adam"})
            sign = (1 if horizon.higher_is_better else -1) * (1 if pair.a == name else -1)
            steps.append(length.steps)
            leads.append(sign * pair.difference)
            spans.append(0.0 if pair.low is None or pair.high is None else (pair.high - pair.low) / 2)
        _line(ax, name, steps, leads, spans)
    ax.axhline(0, color=COLOURS["adam"], ls=DASHES["adam"], lw=1.6)
    _axis_of_lengths(ax, horizon)


def _line(ax: Axes, name: str, steps: list[int], means: list[float], errors: list[float]) -> None:
    look = {"color": COLOURS[name], "marker": MARKERS[name], "ms": 4.5, "lw": 1.6}
    ax.errorbar(steps, means, errors, ls=DASHES[name], capsize=2, label=NAMES[name], **look)


def _axis_of_lengths(ax: Axes, horizon: Horizon) -> None:
    ax.set_xscale("log")
    labels = [
        f"{each.steps:,}"
        + ("" if each.epochs is None else f"\n{round(each.epochs)} epoch{'s' * (round(each.epochs) != 1)}")
        for each in horizon.lengths
    ]
    ax.set_xticks([each.steps for each in horizon.lengths], labels)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel="steps of a run")
    ax.grid(visible=True)


def _frontiers(results: Results, path: Path) -> Path:
    """Old score against new score, a panel per task."""
    columns = len(results.fine_tuned)
    figure, axes = plt.subplots(1, columns, figsize=(4.4 * columns, 4.6), layout="constrained", squeeze=False)
    handles: dict[str, Any] = {}
    for ax, (recipe, summary) in zip(axes[0], results.fine_tuned.items(), strict=True):
        look = {name: LOOKS[name] for name in summary.optimizers}
        draw_frontiers(ax, summary, look)
        ax.set(title=FINE_TUNED[recipe].replace(", ", ",\n", 1))
        ax.grid(visible=True)
        for name, i in look.items():
            line = Line2D([], [], color=LIGHT[i], dashes=dash(i), marker=FRONTIER_MARKERS[i])
            handles.setdefault(NAMES[name], line)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    return _save(figure, path)


def _curves(results: Results, path: Path) -> Path:
    """Validation score and training loss against the step, for every task with the three optimizers."""
    studies = {name: s for name, s in results.studies.items() if set(COMPARED) <= set(s.optimizers)}
    size = (8.4, 2.3 * len(studies))
    figure, axes = plt.subplots(len(studies), 2, figsize=size, layout="constrained", squeeze=False)
    for row, (recipe, summary) in zip(axes, studies.items(), strict=True):
        _against_step(row[0], summary, "valid", summary.metric)
        row[0].set(title=TASKS[recipe], ylabel=f"validation {summary.metric}")
        _against_step(row[1], summary, "train", "loss")
        row[1].set(ylabel="training loss")
    axes[0][0].legend(frameon=False)
    for ax in axes[-1]:
        ax.set(xlabel="step")
    return _save(figure, path)


def _against_step(ax: Axes, summary: Summary, split: str, series: str) -> None:
    """Plot the mean over seeds, without the first tenth of a run, whose fall would flatten the rest."""
    for name in COMPARED:
        curves = [getattr(summary.curves[h], split) for h in _confirmed(summary, name)]
        if not curves:
            continue
        last = curves[0].step[-1]
        shown = [i for i, step in enumerate(curves[0].step) if step >= last / 10]
        means = [describe(curve[series][i] for curve in curves).mean for i in shown]
        look = {"color": COLOURS[name], "ls": DASHES[name], "lw": 1.5}
        ax.plot([curves[0].step[i] for i in shown], means, label=NAMES[name], **look)
    ax.grid(visible=True)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _confirmed(summary: Summary, name: str) -> Iterable[str]:
    """Return the confirmation runs that did not diverge."""
    runs = summary.runs.items()
    return [h for h, run in runs if h in summary.curves and run.optimizer == name and not run.diverged]


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
