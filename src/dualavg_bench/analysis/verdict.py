"""What the summary of a study says, in order and in words: the ranking, what lies on an edge, the verdict."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dualavg_bench.analysis.formatting import counted, decimals, interval_decimals, p_text, signed, with_error

ALPHA = 0.05
EDGES = {"lr": "step size", "weight_decay": "weight decay"}


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence: who is best, whether that is more than noise, and every reason for doubt."""
    return "; ".join([_finding(summary), *_doubts(summary)]) + "."


def rank(summary: Mapping[str, Any]) -> list[str]:
    """Optimizers from best to worst: by test score, then those that have none by validation."""
    sign = 1 if summary["higher_is_better"] else -1
    entries = summary["optimizers"]

    def key(name: str) -> tuple[bool, float, str]:
        test = entries[name]["test"]
        return test is None, -sign * (test or entries[name]["chosen"]["valid"])["mean"], name

    return sorted(entries, key=key)


def leaders(summary: Mapping[str, Any]) -> list[str]:
    """The best optimizer, and those that tie with it: whose mean differs by no more than rounding."""
    entries = summary["optimizers"]
    order = [name for name in rank(summary) if entries[name]["test"]]
    means = {name: entries[name]["test"]["mean"] for name in order}
    return [name for name in order if math.isclose(means[name], means[order[0]], rel_tol=1e-12)]


def edges(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every choice that lies on the edge of its grid, in words, from the best optimizer to the worst."""
    found = []
    for name in rank(summary):
        chosen = summary["optimizers"][name]["chosen"]
        for key in chosen["edge"]:
            low, high = chosen["tried"][key]
            which, beyond = ("smallest", "smaller") if chosen[key] == low else ("largest", "larger")
            if low == high:
                which, beyond = "only one", "smaller or larger"
            edge = {"name": name, "what": EDGES[key], "value": f"{chosen[key]:g}"}
            found.append({**edge, "which": which, "beyond": beyond, "why": _why(summary, key)})
    return found


def _why(summary: Mapping[str, Any], key: str) -> str:
    """Why a grid ends where its best is, if the study knows: older summaries do not say."""
    extension = summary.get("extension")
    if extension is None:
        return ""
    if key != "lr":
        return "only step sizes are extended"
    if not extension["allowed"]:
        return "grids were not extended (--no-extend)"
    times = "once" if extension["rounds"] == 1 else f"{extension['rounds']} times"
    return f"grids were extended {times}, which is the most"


def unequal(summary: Mapping[str, Any]) -> str:
    """The grid points of each optimizer, if they are not equally many: then the comparison is not fair."""
    points = {name: summary["optimizers"][name]["grid"]["points"] for name in rank(summary)}
    return ", ".join(f"{name} {n}" for name, n in points.items()) if len(set(points.values())) > 1 else ""


def without_result(summary: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs that failed of each optimizer that is without result for them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for failure in summary.get("failures", ()):  # older summaries have none
        found.setdefault(failure["optimizer"], []).append(failure)
    return found


def distinguishable(pair: Mapping[str, Any]) -> bool:
    """Whether a difference is told from noise at the 5% level, after Holm's correction."""
    return pair["p_holm"] is not None and pair["p_holm"] < ALPHA


def _finding(summary: Mapping[str, Any]) -> str:
    entries, metric = summary["optimizers"], summary["metric"]
    order = [name for name in rank(summary) if entries[name]["test"]]
    if not order:
        return "Nothing is confirmed yet: there are tuning runs, but no test score on fresh seeds"
    unit = summary["unit"] if summary["unit"] in ("", "%") else f" {summary['unit']}"
    best, test = order[0], entries[order[0]]["test"]
    places = decimals(entries[name]["test"]["se"] for name in order)
    value = f"{with_error(test, places)}{unit} (mean ± s.e., n = {test['n']})"
    if test["diverged"] == test["n"]:
        return _untrained([(name, entries[name]["test"]) for name in order], metric, value)
    if len(order) == 1:
        nothing = "nothing else came to a result" if summary.get("failures") else "nothing was run"
        return f"{best} has a test {metric} of {value}, and {nothing} to compare it with"
    if len(first := leaders(summary)) > 1:
        mean = f"{test['mean']:.{places}f}{unit} (n = {test['n']})"
        return f"{', '.join(first[:-1])} and {first[-1]} tie for the best test {metric}, a mean of {mean}"
    return _lead(summary, f"{best} has the best test {metric}, {value}", places, unit)


def _lead(summary: Mapping[str, Any], said: str, places: int, unit: str) -> str:
    """By how much the best is ahead of the next, and whether that is more than noise."""
    pair = summary["comparisons"][0]  # best against next: `compare` goes from best to worst
    sign = 1 if summary["higher_is_better"] else -1
    places = max(places, interval_decimals([pair]))
    lead = f"{sign * pair['difference']:.{places}f}"
    if float(lead) == 0:
        lead = f"less than {10**-places:.{places}f}"
    said = f"{said}, {lead}{' points' if unit == '%' else unit} ahead of {pair['b']}"
    if pair["p_holm"] is None:
        why = "one seed" if pair["n"] == 1 else "the same difference in every seed"
        return f"{said}, which may be seed noise: {why} (n = {pair['n']}) admits no test"
    low, high = sorted((sign * pair["low"], sign * pair["high"]))
    pairs = len(summary["comparisons"])
    corrected = f"{p_text(pair['p_holm'])} after Holm's correction for {pairs} pairs"
    noise = "more than seed noise explains" if distinguishable(pair) else "no more than seed noise explains"
    if low > 0 and not distinguishable(pair):  # the interval is of one pair, and there are others
        noise = f"which seed noise can explain where {pairs} pairs are looked at"
    return (
        f"{said}, {noise} (paired by seed, "
        f"{'uncorrected ' if pairs > 1 else ''}95% interval {signed(low, places)} to {signed(high, places)}; "
        f"p {corrected if pairs > 1 else p_text(pair['p_holm'])})"
    )


def _untrained(tests: Sequence[tuple[str, Mapping[str, Any]]], metric: str, value: str) -> str:
    """What to say where the first of the ranking diverged in every seed."""
    best, first = tests[0]
    if all(test["diverged"] == test["n"] for _, test in tests):
        runs = sum(test["n"] for _, test in tests)
        return (
            f"Nothing trained: all {runs} confirmation runs diverged, and the scores are untrained networks'"
        )
    return (
        f"{best} did not train: all {first['n']} of its confirmation runs diverged, and it comes first only "
        f"because no other did better than the untrained network's test {metric}, {value}"
    )


def _doubts(summary: Mapping[str, Any]) -> list[str]:
    doubts = []
    for name, failures in without_result(summary).items():
        why = textwrap.shorten(failures[0]["why"], 200, placeholder=" \N{HORIZONTAL ELLIPSIS}").rstrip(".")
        first = f"the first: {why}" if len(failures) > 1 else why
        doubts.append(f"WITHOUT RESULT: {name}, of which {counted(len(failures), 'run')} failed ({first})")
    if sizes := unequal(summary):
        doubts.append(f"CAUTION: unequal budgets, grid points tried: {sizes}")
    for edge in edges(summary):
        why = f"; {edge['why']}" if edge["why"] else ""
        doubts.append(
            f"CAUTION: the best {edge['what']} of {edge['name']}, {edge['value']}, is the {edge['which']} "
            f"tried, on the edge of its grid{why}"
        )
    counts = []
    for name in rank(summary):
        grid, test = summary["optimizers"][name]["grid"], summary["optimizers"][name]["test"]
        counts.append((grid["diverged"], f"of {grid['runs']} tuning runs of {name}"))
        if test:
            counts.append((test["diverged"], f"of {test['n']} confirmation runs of {name}"))
    lost = [f"{count} {whose}" for count, whose in counts if count]
    return doubts + ([f"diverged: {', '.join(lost)}"] if lost else [])
