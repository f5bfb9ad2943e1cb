"""Several studies together: ranks of the optimizers in each, and who wins overall."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from dualavg_bench.analysis.formatting import counted, listed
from dualavg_bench.analysis.statistics import holm
from dualavg_bench.analysis.verdict import leaders, rank, winner
from dualavg_bench.store.summaries import Comparison, Summary


@dataclass(frozen=True)
class Advantage:
    """By how much the first of two optimizers is better: positive is better in any metric."""

    value: float
    low: float | None
    high: float | None
    p: float | None  # with Holm's correction over all pairs of all tasks
    n: int


@dataclass(frozen=True)
class Overall:
    """What several studies say together. All lists of optimizers are in the order of `optimizers`."""

    headline: str
    evidence: str
    optimizers: list[str]  # by mean rank
    ranks: list[dict[str, int]]  # by task
    mean_ranks: list[str]
    winners: list[str | None]  # by task
    advantages: dict[tuple[str, str], list[Advantage | None]]  # by pair, then by task
    pairs: int  # that the correction is for


def compare_tasks(studies: Mapping[str, Summary]) -> Overall:
    """Compare optimizers over several tasks, with Holm's correction over all their pairs.

    Args:
        studies: by the title of the task.
    """
    pairs = [(title, pair) for title, summary in studies.items() for pair in summary.comparisons]
    corrected = holm([pair.p for _, pair in pairs])
    by_task: dict[str, list[tuple[Comparison, float | None]]] = {title: [] for title in studies}
    for (title, pair), p in zip(pairs, corrected, strict=True):
        by_task[title].append((pair, p))
    found = [ranks(summary) for summary in studies.values()]
    own: dict[str, list[int]] = {}
    for each in found:
        for name, place in each.items():
            own.setdefault(name, []).append(place)
    order = sorted(own, key=lambda name: (fmean(own[name]), name))
    order += sorted({name for summary in studies.values() for name in summary.optimizers} - own.keys())
    means = {name: f"{fmean(places):.2f}" for name, places in own.items()}
    winners = [_winner(summary, by_task[title]) for title, summary in studies.items()]
    partial = [name for name in own if len(own[name]) < len(studies)]
    evidence = f"Mean rank: {', '.join(f'{name} {means[name]}' for name in order if name in means)}."
    if partial:
        evidence += f" Of {listed(sorted(partial))}, over the tasks with a result."
    if pairs:
        evidence += (
            f" A win is certain to 95%, after correction for the {counted(len(pairs), 'pair')} of all tasks."
        )
    return Overall(
        headline=_headline(list(studies), winners),
        evidence=evidence,
        optimizers=order,
        ranks=found,
        mean_ranks=[means.get(name, "\N{EN DASH}") for name in order],
        winners=winners,
        advantages={
            (a, b): [_advantage(a, b, by_task[title], summary.sign) for title, summary in studies.items()]
            for a, b in combinations(order, 2)
        },
        pairs=len(pairs),
    )


def ranks(summary: Summary) -> dict[str, int]:
    """Return the rank of each optimizer that has a test score; those that tie for the best are all first."""
    first = leaders(summary)
    order = [name for name in rank(summary) if name in summary.confirmed]
    return {name: 1 if name in first else place for place, name in enumerate(order, 1)}


def _winner(summary: Summary, pairs: Sequence[tuple[Comparison, float | None]]) -> str | None:
    first = leaders(summary)
    if len(first) != 1 or summary.confirmed[first[0]].diverged == summary.confirmed[first[0]].n:
        return None
    return winner(first[0], pairs)


def _headline(titles: Sequence[str], winners: Sequence[str | None]) -> str:
    tasks, names = len(titles), sorted({name for name in winners if name})
    if len(names) == 1 and None not in winners:
        where = f"all {tasks} tasks" if tasks > 1 else "the only task"
        return f"{names[0]} wins {where}, certain to 95%."
    won = {name: [title for title, one in zip(titles, winners, strict=True) if one == name] for name in names}
    parts = [
        f"{name} wins {listed(won[name])}" for name in sorted(names, key=lambda name: (-len(won[name]), name))
    ]
    if without := [title for title, one in zip(titles, winners, strict=True) if one is None]:
        parts.append(f"no winner in {listed(without)}")
    if not names:
        return "No overall winner: no task has a winner."
    return f"No overall winner: of {tasks} tasks, {'; '.join(parts)}."


def _advantage(
    a: str, b: str, pairs: Sequence[tuple[Comparison, float | None]], sign: int
) -> Advantage | None:
    for pair, p in pairs:
        if {pair.a, pair.b} == {a, b}:
            turn = sign if pair.a == a else -sign
            low, high = pair.low, pair.high
            if low is not None and high is not None:
                low, high = sorted((turn * low, turn * high))
            return Advantage(turn * pair.difference, low, high, p, pair.n)
    return None
