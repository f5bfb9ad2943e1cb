"""The choices behind DAdaptMDA as tables, from the file that benchmarks/dadapt_choices.py writes."""

import json
from statistics import fmean
from typing import Any

from tables import TASKS, Results, metric, table

Rows = list[dict[str, Any]]


def read(results: Results) -> Rows:
    """Return the runs; none if the file is not there."""
    rows: Rows = json.loads(results.choices.read_text()) if results.choices.exists() else []
    return rows


def scores(results: Results, scale: str) -> str:
    """Mean validation score of every choice, a column per task; bold where it beats the default."""
    rows = [row for row in read(results) if row["scale"] == scale]
    tasks = [name for name in TASKS if any(row["task"] == name for row in rows)]
    default = {name: _mean(rows, rows[0]["case"], name) for name in tasks} if rows else {}
    cells = []
    for case in dict.fromkeys(row["case"] for row in rows):
        means = {name: _mean(rows, case, name) for name in tasks}
        cells.append([case, *(_cell(results, name, means[name], default[name]) for name in tasks)])
    seeds = len({row["seed"] for row in rows})
    header = [f"{scale}, n = {seeds}", *(f"`{name}`, {metric(results.studies[name])}" for name in tasks)]
    return table(header, cells)


def found(results: Results) -> str:
    """The step size that the default finds, when it does, and how the estimate goes on growing."""
    header = ["task", "scale", "lr of MDA, tuned", "largest step size found", "at step", "of"]
    header += [f"d after {part} of the run" for part in ("a quarter", "a half", "three quarters", "all")]
    rows, cells = read(results), []
    for name in TASKS:
        for scale in ("quick", "mini"):
            runs = [row for row in rows if (row["task"], row["scale"]) == (name, scale)]
            runs = [row for row in runs if row["case"] == runs[0]["case"]]
            if not runs:
                continue
            tuned = results.studies[name].optimizers["mda"].chosen.lr if scale == "mini" else None
            eta, step = fmean(row["eta"] for row in runs), fmean(row["eta_step"] for row in runs)
            ds = [f"{fmean(row['d'][i] for row in runs):.2g}" for i in range(4)]
            lr = "" if tuned is None else f"{tuned:g}"
            cells.append([f"`{name}`", scale, lr, f"{eta:.2g}", f"{step:,.0f}", f"{runs[0]['steps']:,}", *ds])
    return table(header, cells)


def _mean(rows: Rows, case: str, task: str) -> float | None:
    scores = [row["score"] for row in rows if (row["case"], row["task"]) == (case, task)]
    return fmean(scores) if scores else None


def _cell(results: Results, task: str, mean: float | None, default: float | None) -> str:
    if mean is None:
        return ""
    better = default is not None and results.studies[task].sign * (mean - default) > 0
    return f"**{mean:.4g}**" if better else f"{mean:.4g}"
