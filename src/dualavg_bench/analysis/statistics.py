"""What finished runs say: the choice of a setting, paired differences, the value of tuning.

Pure functions of lists of results, as `store` hands them over; the order of a list changes nothing. Settings
are judged by the validation score at the end of a run, optimizers by the test score of their chosen setting
on fresh seeds.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd
from scipy import stats

from dualavg_bench.analysis.verdict import ALPHA, EDGES, verdict

Run = Mapping[str, Any]
FORMAT = 1
POINT = ("lr", "weight_decay", "schedule")
STUDY = ("recipe", "scale", "metric", "higher_is_better", "unit")


def describe(values: Iterable[float]) -> dict[str, Any]:
    """Mean, standard error and n; one value has no standard error.

    >>> describe([1.0, 2.0, 3.0])
    {'mean': 2.0, 'se': 0.5773502691896258, 'n': 3}
    >>> describe([1.0])
    {'mean': 1.0, 'se': None, 'n': 1}
    """
    series = pd.Series(list(values), dtype="float64")
    if series.empty:
        raise ValueError("There are no values to describe.")
    se = float(series.sem(ddof=1)) if len(series) > 1 else None
    return {"mean": float(series.mean()), "se": se, "n": len(series)}


def score(run: Run, split: str) -> float:
    """The metric of a run at its end, on "valid" or "test"; of a diverged run, that before training.

    "train" is the training loss instead, mean over the last tenth of its curve.
    """
    name = f"Run {run.get('hash')} ({run['optimizer']}, seed {run['seed']})"
    if split == "test":
        if run.get("test") is None:
            raise ValueError(f"{name} has no test score: only confirmation runs read the test split.")
        value = run["test"][run["metric"]]
    elif split == "train":
        curve = run["train"]["loss"]
        last = curve[:1] if run["status"] == "diverged" else curve[-max(1, len(curve) // 10) :]
        value = math.fsum(last) / len(last) if last else None
    else:
        value = run["valid"][run["metric"]][0 if run["status"] == "diverged" else -1]
    if value is None or not math.isfinite(value):
        raise ValueError(
            f"{name} has {value!r} as its {split} {run['metric']}, which is no number to compare."
        )
    return float(value)


def sensitivity(tune_runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """Every grid point of every optimizer: final validation score over the tuning seeds, divergences."""
    result: dict[str, list[dict[str, Any]]] = {}
    for (optimizer, *point), group in _frame(tune_runs, "valid").groupby(["optimizer", *POINT]):
        entry = {
            **dict(zip(POINT, (float(point[0]), float(point[1]), point[2]), strict=True)),
            **describe(group["score"]),
            "diverged": int(group["diverged"].sum()),
            "runs": list(group["hash"]),
        }
        result.setdefault(optimizer, []).append(entry)
    return result


def select(tune_runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """The best setting of each optimizer, by the mean of its final validation scores. Test is not looked at.

    Divergence counts against a setting twice: a diverged seed enters the mean with the untrained score, and a
    setting that diverged in any seed, or lacks a seed that others have, comes after every setting that did
    not. Ties go to the smaller step size, then the smaller weight decay, then the schedule's name.

    `edge` names what lies at an end of its grid. A grid's only weight decay is no edge, for it was fixed; its
    only step size is one, for nobody knows what lies beside it. Zero is no edge: nothing lies beyond it.
    """
    chosen = {}
    for optimizer, points in _ranked(tune_runs).items():
        best, edge, tried = points[0], [], {}
        for name in EDGES:
            values = sorted({point[name] for point in points})
            tried[name] = [values[0], values[-1]]
            searched = len(values) > 1 or name == "lr"
            if searched and best[name] in tried[name] and best[name] != 0.0:
                edge.append(name)
        valid = {key: best[key] for key in ("mean", "se", "n", "diverged", "runs")}
        point = {key: best[key] for key in POINT}
        chosen[optimizer] = {**point, "valid": valid, "edge": edge, "tried": tried}
    return chosen


def budget(tune_runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Expected validation score of the setting `select` chooses among m random grid points, m = 1 to N.

    `scores` has them in this order, `n` is the number of seeds of a point (of the point with the fewest).

    With the points ranked from worst to best, s_1 to s_N, and m of them drawn without replacement,

        E[best of m] = sum over i of s_i C(i - 1, m - 1) / C(N, m),

    because point i is the best drawn when the other m - 1 are among the i - 1 that are worse.
    """
    result = {}
    for optimizer, points in _ranked(tune_runs).items():
        means, n = [point["mean"] for point in reversed(points)], len(points)
        scores = [
            math.fsum(s * (math.comb(i, m - 1) / math.comb(n, m)) for i, s in enumerate(means))
            for m in range(1, n + 1)
        ]
        seeds, hashes = (point["n"] for point in points), (name for point in points for name in point["runs"])
        result[optimizer] = {"scores": scores, "n": min(seeds), "runs": sorted(hashes)}
    return result


def compare(confirm_runs: Sequence[Run], split: str = "test") -> list[dict[str, Any]]:
    """Every pair of optimizers, paired by seed: test difference a - b, its 95% t interval, p, and Holm's p.

    With `split="train"`, of the training loss instead. `a` is the one with the better mean. Where the t test
    says nothing (one seed, or the same non-zero difference in every seed) interval and p are None; such a
    pair still counts in Holm's correction. Intervals are uncorrected.
    """
    if not confirm_runs:
        return []
    frame = _frame(confirm_runs, split, ["optimizer", "seed"])
    wide = frame.pivot(index="seed", columns="optimizer", values="score")  # noqa: PD010, never an average
    for optimizer in wide:
        missing = [int(seed) for seed in wide.index[wide[optimizer].isna()]]
        if missing:
            raise ValueError(
                f"The runs do not pair up: {optimizer} lacks the confirmation seeds {missing} that others "
                "have. Finish the study first."
            )
    sign = 1 if confirm_runs[0]["higher_is_better"] and split != "train" else -1
    order = sorted(wide, key=lambda name: (-sign * describe(wide[name])["mean"], name))
    pairs, hashes = [], frame.groupby("optimizer")["hash"].agg(list)
    for a, b in combinations(order, 2):
        difference = wide[a] - wide[b]
        low, high, p = _t_interval(wide[a], wide[b])
        pair = {"a": a, "b": b, "difference": float(difference.mean()), "low": low, "high": high, "p": p}
        of = {"seeds": [int(seed) for seed in wide.index], "runs": hashes[a] + hashes[b]}
        pairs.append({**pair, "n": len(difference), **of})
    for pair, corrected in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = corrected
    return pairs


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; None (untestable) stays None and still counts in the number of claims.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected: list[float | None] = [None] * len(ps)
    running = 0.0
    tested = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    for k, (p, i) in enumerate(tested):
        # p_(k) (m - k + 1), made monotone: no claim may be firmer than one with a smaller p.
        running = max(running, min(1.0, p * (len(ps) - k)))
        corrected[i] = running
    return corrected


def summarize(
    runs: Sequence[Run],
    *,
    about: str = "",
    paper: str = "",
    extended: Mapping[str, int] | None = None,
    extension: Mapping[str, Any] | None = None,
    failures: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The whole study as plain JSON, each figure with its n and the hashes of its runs.

    Args:
        runs: all results of the study, tuning and confirmation, in any order.
        about: the recipe's sentence.
        paper: the recipe's part of the paper.
        extended: grid points that were added to an optimizer's grid because a best lay on an edge.
        extension: whether that was allowed, how often it was done, and how often at most.
        failures: runs that came to no result, and why; their optimizers are not among the confirmed.
    """
    runs = sorted(runs, key=lambda r: (r["phase"], r["optimizer"], *(r[k] for k in POINT), r["seed"]))
    tune = [run for run in runs if run["phase"] == "tune"]
    confirm = [run for run in runs if run["phase"] == "confirm"]
    if not tune:
        raise ValueError("There are no tuning runs to summarize.")
    for key in STUDY:
        if len({run[key] for run in runs}) > 1:
            raise ValueError(f"These runs are of different studies: their {key} differs.")
    chosen, grids = select(tune), sensitivity(tune)
    _check_confirmation(tune, confirm, chosen, {failure["optimizer"] for failure in failures})
    summary: dict[str, Any] = {"format": FORMAT, **{key: runs[0][key] for key in STUDY}}
    summary |= {"about": about, "paper": paper, "optimizers": {}}
    summary |= {"extension": dict(extension) if extension else None, "failures": _ordered(failures)}
    for name, points in grids.items():
        mine = [run for run in confirm if run["optimizer"] == name]
        grid = {
            "points": len(points),
            "runs": sum(point["n"] for point in points),
            "diverged": sum(point["diverged"] for point in points),
            "extended": (extended or {}).get(name, 0),
        }
        fresh = {"test": _scores(mine, "test"), "valid_final": _scores(mine, "valid")}
        summary["optimizers"][name] = {"grid": grid, "chosen": chosen[name], **fresh}
    summary["comparisons"] = compare(confirm)
    summary["verdict"] = verdict(summary)
    summary |= {"sensitivity": grids, "budget": budget(tune), "runs": {}}
    facts = ("optimizer", *POINT, "seed", "phase", "status", "diverged_at", "why", "steps")
    for run in sorted(runs, key=lambda run: run["hash"]):
        test = score(run, "test") if run["phase"] == "confirm" else None
        scores = {"valid": score(run, "valid"), "test": test}
        summary["runs"][run["hash"]] = {key: run[key] for key in facts} | scores
    machines = {json.dumps(run["machine"], sort_keys=True) for run in runs}
    summary["machines"] = [json.loads(machine) for machine in sorted(machines)]
    versions = sorted({pair for run in runs for pair in run.get("packages", {}).items()})  # not in older ones
    summary["packages"] = {name: [v for other, v in versions if other == name] for name, _ in versions}
    summary["times"] = _times(runs)
    json.dumps(summary, allow_nan=False)  # a NaN here would be a wrong number somewhere else
    return summary


def _frame(
    runs: Sequence[Run], split: str, once: Sequence[str] = ("optimizer", *POINT, "seed")
) -> pd.DataFrame:
    rows = [
        {key: run[key] for key in ("optimizer", *POINT, "seed", "hash")}
        | {"diverged": run["status"] == "diverged", "score": score(run, split)}
        for run in runs
    ]
    frame = pd.DataFrame(rows).sort_values(["optimizer", *POINT, "seed"], ignore_index=True)
    twice = frame[frame.duplicated(list(once))]
    if len(twice):
        one = twice.iloc[0]
        raise ValueError(
            f"Two results for {one['optimizer']} with seed {one['seed']}, the second being {one['hash']}: "
            "they are of different settings, versions or recipes, and must not be averaged."
        )
    return frame


def _ranked(tune_runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The points of each optimizer, best first, by the rule `select` states."""
    grids = sensitivity(tune_runs)
    sign = 1 if tune_runs[0]["higher_is_better"] else -1
    full = max(point["n"] for points in grids.values() for point in points)

    def key(point: Mapping[str, Any]) -> tuple[Any, ...]:
        spoilt = point["diverged"] > 0 or point["n"] < full
        return (spoilt, -sign * point["mean"], *(point[name] for name in POINT))

    return {optimizer: sorted(points, key=key) for optimizer, points in grids.items()}


def _t_interval(a: pd.Series, b: pd.Series) -> tuple[float | None, float | None, float | None]:
    difference = a - b
    noise = 1e-12 * float(max(a.abs().max(), b.abs().max()))  # rounding of a - b is no spread
    if len(difference) > 1 and float(difference.abs().max()) <= noise:
        return 0.0, 0.0, 1.0
    if len(difference) == 1 or float(difference.max() - difference.min()) <= noise:
        return None, None, None
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(1 - ALPHA)
    return float(interval.low), float(interval.high), float(test.pvalue)


def _scores(runs: Sequence[Run], split: str) -> dict[str, Any] | None:
    if not runs:
        return None
    diverged = sum(run["status"] == "diverged" for run in runs)
    described = describe(score(run, split) for run in runs)
    return {**described, "diverged": diverged, "runs": [run["hash"] for run in runs]}


def _check_confirmation(
    tune: Sequence[Run],
    confirm: Sequence[Run],
    chosen: Mapping[str, Mapping[str, Any]],
    failed: Collection[str],
) -> None:
    """Test is read once, for the chosen setting, on seeds that tuning never saw."""
    seen = {run["seed"] for run in tune} & {run["seed"] for run in confirm}
    if seen:
        raise ValueError(f"Confirmation used the seeds {sorted(seen)} that tuning has already seen.")
    for run in confirm:
        if run["optimizer"] not in chosen:
            raise ValueError(f"{run['optimizer']} was confirmed but never tuned.")
        if any(run[key] != chosen[run["optimizer"]][key] for key in POINT):
            raise ValueError(
                f"Run {run['hash']} confirms {run['optimizer']} at lr {run['lr']:g}, which is not the "
                "setting chosen on validation."
            )
    if confirm and not {run["optimizer"] for run in confirm} | set(failed) >= set(chosen):
        raise ValueError("Some optimizers are confirmed and some are not. Finish the study first.")


def _ordered(failures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Failures in an order that does not depend on which came first."""
    keys = ("phase", "optimizer", *POINT, "seed")
    return sorted(map(dict, failures), key=lambda failure: [failure[key] for key in keys])


def _times(runs: Sequence[Run]) -> dict[str, Any]:
    """All that is time or memory, medians by optimizer: two summaries of one study are equal but for this."""
    columns = ["step_ms", "optimizer_ms", "peak_mb"]
    rows = [{"peak_mb": None, **run["time"], **run} for run in runs]
    frame = pd.DataFrame(rows, columns=["hash", "optimizer", "seconds", *columns])
    frame[columns] = frame[columns].astype("float64")
    medians = {
        name: {key: _median(group[["hash", key]].dropna(), key) for key in columns}
        for name, group in frame.groupby("optimizer")
    }
    return {"seconds": math.fsum(frame["seconds"]), "optimizers": medians}


def _median(known: pd.DataFrame, key: str) -> dict[str, Any] | None:
    """Median, quartiles and ends of what was measured, with its runs."""
    if known.empty:
        return None
    low, lower, median, upper, high = (float(known[key].quantile(q)) for q in (0, 0.25, 0.5, 0.75, 1))
    ends = {"low": low, "lower": lower, "upper": upper, "high": high}
    return {"median": median, **ends, "n": len(known), "runs": sorted(known["hash"])}
