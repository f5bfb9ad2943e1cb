"""No tuning at all: the studies of examples/no_tuning beside the tuned ones, as a table and a figure."""

from pathlib import Path
from statistics import fmean

from matplotlib import pyplot as plt
from tables import TASKS, Results, by_seed, metric, paired, score, table

from dualavg_bench.analysis.paper import MARGINS, margin_as_number
from dualavg_bench.store.summaries import Summary

OURS = "dadapt-mda"
NAMES = {
    OURS: "DAdaptMDA",
    "mda": "MDA, lr 1",
    "dadaptation.DAdaptSGD": "DAdaptSGD",
    "dadaptation.DAdaptAdam": "DAdaptAdam",
    "prodigyopt.Prodigy": "Prodigy",
    "schedulefree.AdamWScheduleFree": "schedule-free AdamW",
    "adamw": "AdamW",
}
MARKERS = {OURS: "o"} | dict(zip(list(NAMES)[1:], "Xs^DvP", strict=True))
COLOURS = dict(
    zip(NAMES, ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#cc79a7", "#009e73", "#555555"), strict=True)
)
FURTHEST = 12  # margins; what is further off is drawn at the edge


def untuned(results: Results) -> str:
    """Test scores of optimizers at their defaults, beside MDA, SGD+M and Adam tuned."""
    tuned = {"mda": "MDA", "sgd": "SGD+M", "adam": "Adam"}
    header = ["task", "metric", *NAMES.values(), *(f"{name}, tuned" for name in tuned.values()), "n"]
    rows = []
    for recipe, summary in results.untuned.items():
        base = results.studies.get(recipe)
        best = max(NAMES, key=lambda name: summary.sign * summary.confirmed[name].mean)
        cells = [score(summary.confirmed, name, bold=name == best) for name in NAMES]
        cells += [score(base.confirmed, name, bold=False) if base else "" for name in tuned]
        n = str(summary.confirmed[OURS].n)
        rows.append([f"{TASKS[recipe]} (`{recipe}`)", metric(summary), *cells, n])
    return table(header, rows)


def goals(results: Results) -> str:
    """DAdaptMDA against MDA tuned and DAdaptSGD untuned, paired by seed."""
    header = ["task", "against MDA, tuned", "margin", "within it", "against DAdaptSGD", "ahead", "n"]
    rows = []
    for recipe, summary in results.untuned.items():
        ours = by_seed(summary, OURS)
        sgd = by_seed(summary, "dadaptation.DAdaptSGD")
        ahead = _yes(_advantage(ours, sgd, summary) > 0)
        row = [f"`{recipe}`", "", "", ""]
        if base := results.studies.get(recipe):
            mda = by_seed(base, "mda")
            margin, worse = _margin(summary, mda), -_advantage(ours, mda, summary)
            row = [row[0], paired(ours, mda, summary.sign), f"{margin:.2g}", _yes(worse <= margin)]
        rows.append([*row, paired(ours, sgd, summary.sign), ahead, str(len(ours))])
    return table(header, rows)


def draw(results: Results, path: Path) -> Path:
    """Draw how far each untuned optimizer is from tuned MDA, in margins, a row per task."""
    both = [recipe for recipe in results.untuned if recipe in results.studies]
    figure, ax = plt.subplots(figsize=(8.4, 0.9 + 0.5 * len(both)), layout="constrained")
    ax.axvspan(-1, 1, color="#0072b2", alpha=0.1, lw=0)
    ax.axvline(0, color="#777777", lw=0.8)
    for row, recipe in enumerate(both):
        summary, mda = results.untuned[recipe], by_seed(results.studies[recipe], "mda")
        margin = _margin(summary, mda)
        for name, label in NAMES.items():
            x = _advantage(by_seed(summary, name), mda, summary) / margin
            shown = max(-FURTHEST, min(FURTHEST, x))
            look = {
                "color": COLOURS[name],
                "marker": MARKERS[name],
                "ls": "",
                "ms": 7 if name == OURS else 5.5,
            }
            ax.plot(shown, row, label=label if row == 0 else None, zorder=3 if name == OURS else 2, **look)
    ax.set_yticks(range(len(both)), [TASKS[recipe] for recipe in both])
    ax.set(ylim=(len(both) - 0.5, -0.5), xlim=(-FURTHEST - 0.5, FURTHEST + 0.5))
    ax.set(xlabel="test score against MDA tuned, in margins: right is better, the band counts as equal")
    ax.legend(
        loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=7, frameon=False, fontsize=8, columnspacing=1
    )
    ax.grid(visible=True, axis="x")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _advantage(ours: dict[int, float], theirs: dict[int, float], summary: Summary) -> float:
    """Return the mean difference over common seeds: positive is better."""
    return summary.sign * fmean(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys())


def _margin(summary: Summary, mda: dict[int, float]) -> float:
    return margin_as_number(MARGINS[summary.metric], list(mda.values()))


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
