"""MDA against each other optimizer, paired by seed: what the reading in docs/results.md rests on."""

from tables import COMPARED, NAMES, TASKS, Results, by_seed, paired, table

from dualavg_bench.store.summaries import Summary


def pairs(results: Results) -> str:
    """Differences in test score and in training loss, and the seeds in which MDA is better."""
    header = [
        "task",
        "test examples",
        "MDA against",
        "test score",
        "seeds",
        "training loss",
        "seeds",
        "lr",
        "n",
    ]
    rows = []
    for recipe in TASKS:
        summary = results.studies.get(recipe)
        if summary is None or not set(COMPARED) <= set(summary.confirmed):
            continue
        for rival in COMPARED[1:]:
            ours, theirs = by_seed(summary, "mda"), by_seed(summary, rival)
            losses = _losses(summary, "mda"), _losses(summary, rival)
            lrs = [summary.optimizers[name].chosen.lr for name in ("mda", rival)]
            cells = [f"`{recipe}`", f"{summary.test_examples:,}", NAMES[rival]]
            cells += [paired(ours, theirs, summary.sign), _better(ours, theirs, summary.sign)]
            cells += [paired(*losses, -1), _better(*losses, -1)]
            rows.append([*cells, f"{lrs[0]:g} against {lrs[1]:g}", str(len(ours.keys() & theirs.keys()))])
    return table(header, rows)


def _losses(summary: Summary, name: str) -> dict[int, float]:
    runs = (run for run in summary.runs.values() if run.optimizer == name and run.phase == "confirm")
    return {run.seed: run.train for run in runs if run.train is not None}


def _better(ours: dict[int, float], theirs: dict[int, float], sign: int) -> str:
    seeds = ours.keys() & theirs.keys()
    return f"{sum(sign * (ours[seed] - theirs[seed]) > 0 for seed in seeds)} of {len(seeds)}"
