"""A recipe at several run lengths: from which length on does an optimizer keep up with the best other one?

Each length is a study of its own, tuned and confirmed.
"""

from collections.abc import Sequence
from itertools import groupby

from dualavg_bench.analysis.formatting import counted, listed, plain, score_places
from dualavg_bench.analysis.standings import (
    Relation,
    Standing,
    corrected_ps,
    keeps_up_from,
    leaders,
    optimizers,
    rank,
    standings,
)
from dualavg_bench.analysis.statistics import is_significant
from dualavg_bench.analysis.verdict import AXIS_NAMES, failures_by_optimizer
from dualavg_bench.store.horizons import ChosenSetting, Horizon, Length, OptimizerAtLength
from dualavg_bench.store.summaries import OptimizerSummary, Summary

WORDS: dict[Relation, str] = {
    "ahead": "ahead",
    "within noise": "no certain difference",
    "behind": "behind",
    "not tested": "without a test",
}


def at_length(summary: Summary, *, epochs: float | None, summary_file: str, page: str) -> Length:
    """Return what a horizon keeps of a study.

    Args:
        summary: of the study; all its runs have the same length.
        epochs: of that length.
        summary_file: the name of the file.
        page: the name of the study's page.
    """
    (steps,) = {run.steps for run in summary.runs.values()}
    return Length(
        steps=steps,
        epochs=epochs,
        summary=summary_file,
        page=page,
        optimizers={name: _entry(entry) for name, entry in summary.optimizers.items()},
        comparisons=summary.comparisons,
        failed={name: runs[0].why for name, runs in failures_by_optimizer(summary).items()},
    )


def combine(
    summaries: Sequence[Summary],
    lengths: Sequence[Length],
    *,
    command: str,
    own_steps: int,
    planned: Sequence[int],
) -> Horizon:
    """Return the horizon of a recipe.

    Args:
        summaries: of the studies, in the order of the lengths.
        lengths: of `at_length`, from short to long.
        command: the command that runs all of them.
        own_steps: the recipe's own length.
        planned: all lengths that were asked for, the unfinished ones too.
    """
    first = summaries[0]
    for name in ("recipe", "scale", "metric", "higher_is_better", "unit", "report", "test_examples"):
        if len({getattr(summary, name) for summary in summaries}) > 1:
            raise ValueError(f"These studies are not of one recipe: their {name} differs.")
    machines = {each.model_dump_json(): each for summary in summaries for each in summary.machines}
    horizon = Horizon(
        recipe=first.recipe,
        scale=first.scale,
        metric=first.metric,
        higher_is_better=first.higher_is_better,
        unit=first.unit,
        report=first.report,
        test_examples=first.test_examples,
        about=first.about,
        paper=first.paper,
        command=command,
        own_steps=own_steps,
        planned=list(planned),
        lengths=list(lengths),
        machines=[machines[text] for text in sorted(machines)],
        verdict=[],
    )
    return horizon.model_copy(update={"verdict": verdict(horizon)})


def verdict(horizon: Horizon) -> list[str]:
    """Return who wins at the longest length, who keeps up from which one on, every reason for doubt."""
    found = standings(horizon)
    sentences = [_headline(horizon, found), _best(horizon)]
    courses = {name: [each for each in found if each.optimizer == name] for name in optimizers(horizon)}
    sentences += [_keeping_up(name, own, len(horizon.lengths)) for name, own in courses.items() if own]
    if found and len(horizon.lengths) > 1:
        sentences.append(_order(horizon))
    return [*sentences, *_cautions(horizon), _not_covered(horizon)]


def at(steps: Sequence[int], *, last: int | None = None) -> str:
    """Return lengths in words; up to the `last` one they are open to longer runs.

    >>> at([1]), at([250, 1000]), at([250, 1000, 4000]), at([1000, 4000], last=4000)
    ('at 1 step', 'at 250 and 1,000 steps', 'from 250 to 4,000 steps', 'from 1,000 steps on')
    """
    first, end = f"{steps[0]:,}", f"{steps[-1]:,}"
    if len(steps) == 1:
        return f"at {first} step{'' if steps[0] == 1 else 's'}"
    if steps[-1] == last:
        return f"from {first} steps on"
    return f"at {first} and {end} steps" if len(steps) == 2 else f"from {first} to {end} steps"


def _entry(entry: OptimizerSummary) -> OptimizerAtLength:
    chosen = entry.chosen
    return OptimizerAtLength(
        chosen=ChosenSetting(
            lr=chosen.lr,
            weight_decay=chosen.weight_decay,
            schedule=chosen.schedule,
            edge=chosen.edge,
            seeds=chosen.valid.n,
        ),
        test=entry.test,
        train=entry.train,
    )


def places(horizon: Horizon) -> int:
    """Return the decimals of all scores and differences of a horizon."""
    scores = [each for length in horizon.lengths for each in length.confirmed.values()]
    return score_places(scores, [pair for length in horizon.lengths for pair in length.comparisons])


def _headline(horizon: Horizon, found: Sequence[Standing]) -> str:
    """Return who wins at the longest length, certain to 95%, or that nobody does."""
    last = horizon.lengths[-1]
    order, steps = (
        rank(last, horizon.sign),
        f"{at([last.steps])}{', the longest run' * (len(horizon.lengths) > 1)}",
    )
    if len(order) < 2:
        only = f"only {order[0]} has a result" if order else "there is no result"
        return f"No winner {steps}: {only}."
    if len(tied := leaders(last, horizon.sign)) > 1:
        return f"No winner {steps}: {listed(tied)} tie."
    best, test = order[0], last.confirmed[order[0]]
    if test.diverged == test.n:
        return f"No winner {steps}: {best} ranks first, but did not train."
    # Every other one is compared with the best; the first whose distance can be chance decides.
    others = [each for each in found if each.steps == last.steps and each.optimizer != best]
    rival = next((each for each in others if each.relation != "behind"), others[0])
    unit = " points" if horizon.unit == "%" else f" {horizon.unit}" if horizon.unit else ""
    lead = f"{plain(-rival.advantage, places(horizon))}{unit} in test {horizon.metric}"
    if rival.relation == "behind":
        return f"{best} wins {steps}, by {lead} over {rival.optimizer}, certain to 95%."
    chance = "which can be chance" if rival.relation == "within noise" else "and no test is possible"
    return f"No winner {steps}: {best} leads {rival.optimizer} by {lead}, {chance}."


def _best(horizon: Horizon) -> str:
    """Return who has the best mean at which lengths."""
    longest = horizon.lengths[-1].steps
    best = [(length.steps, listed(leaders(length, horizon.sign))) for length in horizon.lengths]
    groups = [(names, [steps for steps, _ in group]) for names, group in groupby(best, lambda item: item[1])]
    if len(groups) == 1 and len(best) > 1:
        return f"Best mean test {horizon.metric}: {groups[0][0] or 'no result'} at every length."
    parts = [f"{names or 'no result'} {at(steps, last=longest)}" for names, steps in groups]
    return f"Best mean test {horizon.metric}: {'; '.join(parts)}."


def _keeping_up(name: str, own: Sequence[Standing], lengths: int) -> str:
    """Return from which length on an optimizer keeps up with the best other one, and the course of it."""
    rival, longest, enough = "the best other optimizer", own[-1].steps, keeps_up_from(own)
    everywhere = "at every length" if 1 < len(own) == lengths else at([each.steps for each in own])
    groups = [
        (relation, [each.steps for each in group])
        for relation, group in groupby(own, lambda each: each.relation)
    ]
    course = ", ".join(f"{WORDS[relation]} {at(steps)}" for relation, steps in groups)
    if own[-1].relation == "not tested":
        reason = "for lack of seeds or spread" + (f": {course}" if len(groups) > 1 else "")
        return f"{name} cannot be compared with {rival} {at([longest])}, {reason}."
    if len(groups) == 1:
        phrases = {
            "ahead": "is ahead of",
            "behind": "is behind",
            "within noise": "has no certain difference from",
        }
        return f"{name} {phrases[own[0].relation]} {rival} {everywhere}."
    if enough is None:
        return f"{name} does not keep up with {rival} {at([longest])}: {course}."
    when = f"from {enough:,} steps on"
    if enough == own[0].steps:
        when = everywhere
    elif enough == longest:
        when = f"only {at([enough])}, the longest run"
    return f"{name} keeps up with {rival} {when}: {course}."


def _order(horizon: Horizon) -> str:
    """Return whether the order of the optimizers depends on the length, by more than noise."""
    corrected, ahead = corrected_ps(horizon), dict[tuple[str, str], list[int]]()
    for (steps, a, b), p in corrected.items():  # a has the better mean
        if is_significant(p):
            ahead.setdefault((a, b), []).append(steps)
    turns = [
        f"{a} is ahead of {b} {at(steps)}, and {b} of {a} {at(ahead[b, a])}"
        for (a, b), steps in ahead.items()
        if (b, a) in ahead and steps[0] < ahead[b, a][0]
    ]
    if turns:
        return f"The order changes, certain to 95%: {'; '.join(turns)}."
    if len({tuple(rank(length, horizon.sign)) for length in horizon.lengths}) > 1:
        return "The order of the means changes with the length, which can be chance."
    return f"The order of the means is the same at every length: {', '.join(optimizers(horizon))}."


def _cautions(horizon: Horizon) -> list[str]:
    cautions, edges, diverged = [], [], []
    for length in horizon.lengths:
        place = at([length.steps])
        cautions += [
            f"NO RESULT: {name} {place}, because a run failed ({why.rstrip('.')})."
            for name, why in length.failed.items()
        ]
        for name, entry in length.optimizers.items():
            edges += [
                f"{AXIS_NAMES[axis]} {getattr(entry.chosen, axis):g} of {name} {place}"
                for axis in entry.chosen.edge
            ]
            if entry.test and entry.test.diverged:
                diverged.append(f"{entry.test.diverged} of {entry.test.n} of {name} {place}")
    if edges:
        cautions.append(f"CAUTION: best settings that are the smallest or largest tried: {', '.join(edges)}.")
    if diverged:
        cautions.append(f"CAUTION: confirmation runs that diverged: {', '.join(diverged)}.")
    return cautions


def _not_covered(horizon: Horizon) -> str:
    seeds = {entry.chosen.seeds for length in horizon.lengths for entry in length.optimizers.values()}
    return (
        f"Not covered: tuning was done once per length ({counted(max(seeds), 'seed')}), and the test set has "
        f"{counted(horizon.test_examples, 'example')}."
    )
