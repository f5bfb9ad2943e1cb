"""What the summary of a study says, in order and in words: the ranking, what lies on an edge, the verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualavg_bench.text import decimals, interval_decimals, p_text, signed, with_error

ALPHA = 0.05
EDGES = {"lr": "step size", "weight_decay": "weight decay"}


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence: who is best, whether that is more than noise, and every reason for doubt."""
    return "; ".join([_finding(summary), *_doubts(summary)]) + "."


def rank(summary: Mapping[str, Any]) -> list[str]:
    """Optimizers from best to worst: by test score, or by validation where nothing is confirmed yet."""
    sign = 1 if summary["higher_is_better"] else -1
    entries = summary["optimizers"]

    def key(name: str) -> tuple[float, str]:
        return -sign * (entries[name]["test"] or entries[name]["chosen"]["valid"])["mean"], name

    return sorted(entries, key=key)


def edges(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every choice that lies on the edge of its grid, in words, from the best optimizer to the worst."""
    found = []
    for name in rank(summary):
        chosen = summary["optimizers"][name]["chosen"]
        for key in chosen["edge"]:
            smallest = chosen[key] == chosen["tried"][key][0]
            which, beyond = ("smallest", "smaller") if smallest else ("largest", "larger")
            edge = {"name": name, "what": EDGES[key], "value": f"{chosen[key]:g}"}
            found.append({**edge, "which": which, "beyond": beyond})
    return found


def distinguishable(pair: Mapping[str, Any]) -> bool:
    """Whether a difference is told from noise at the 5% level, after Holm's correction."""
    return pair["p_holm"] is not None and pair["p_holm"] < ALPHA


def _finding(summary: Mapping[str, Any]) -> str:
    order, entries, metric = rank(summary), summary["optimizers"], summary["metric"]
    unit = summary["unit"] if summary["unit"] in ("", "%") else f" {summary['unit']}"
    best, test = order[0], entries[order[0]]["test"]
    if test is None:
        return "Nothing is confirmed yet: there are tuning runs, but no test score on fresh seeds"
    places = decimals(entries[name]["test"]["se"] for name in order)
    value = f"{with_error(test, places)}{unit} (mean ± s.e., n = {test['n']})"
    if test["diverged"] == test["n"]:
        return _untrained([(name, entries[name]["test"]) for name in order], metric, value)
    if len(order) == 1:
        return f"{best} has a test {metric} of {value}, and nothing was run to compare it with"
    pair = summary["comparisons"][0]  # best against next: `compare` goes from best to worst
    if pair["difference"] == 0:
        return f"{best} and {pair['b']} tie for the best test {metric}, {value}"
    sign = 1 if summary["higher_is_better"] else -1
    places = max(places, interval_decimals([pair]))
    lead = f"{sign * pair['difference']:.{places}f}{' points' if unit == '%' else unit}"
    said = f"{best} has the best test {metric}, {value}, {lead} ahead of {pair['b']}"
    if pair["p_holm"] is None:
        why = "one seed" if pair["n"] == 1 else "the same difference in every seed"
        return f"{said}, which may be seed noise: {why} (n = {pair['n']}) admits no test"
    low, high = sorted((sign * pair["low"], sign * pair["high"]))
    pairs = len(summary["comparisons"])
    corrected = f"{p_text(pair['p_holm'])} after Holm's correction for {pairs} pairs"
    return (
        f"{said}, {'more' if distinguishable(pair) else 'no more'} than seed noise explains (paired by seed, "
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
    doubts = [
        f"CAUTION: the best {edge['what']} of {edge['name']}, {edge['value']}, is the {edge['which']} tried, "
        "on the edge of its grid"
        for edge in edges(summary)
    ]
    counts = []
    for name in rank(summary):
        grid, test = summary["optimizers"][name]["grid"], summary["optimizers"][name]["test"]
        counts.append((grid["diverged"], f"of {grid['runs']} tuning runs of {name}"))
        if test:
            counts.append((test["diverged"], f"of {test['n']} confirmation runs of {name}"))
    lost = [f"{count} {whose}" for count, whose in counts if count]
    return doubts + ([f"diverged: {', '.join(lost)}"] if lost else [])
