"""The verdict: a winner only if that is certain, in one sentence, then every reason for doubt."""

import re

import pytest
from support.synthetic_runs import run, study, summarize

from dualavg_bench.analysis.overall import compare_tasks, ranks
from dualavg_bench.analysis.verdict import leaders, verdict
from dualavg_bench.store.summaries import Extension, Summary

SEEDS = range(1000, 1005)


def of_scores(scores, **changes):
    """The summary of optimizers with these test scores, one per seed."""
    tuned = [run(name, 1.0, 0, **changes) for name in scores]
    confirmed = [
        run(name, 1.0, 1000 + i, "confirm", test_score=value, **changes)
        for name, values in scores.items()
        for i, value in enumerate(values)
    ]
    return summarize(tuned + confirmed)


def with_pair(summary, index, **changes):
    pairs = list(summary.comparisons)
    pairs[index] = pairs[index].model_copy(update=changes)
    return summary.model_copy(update={"comparisons": pairs})


def test_a_winner_is_named_with_its_lead_and_how_certain_it_is():
    summary = summarize(study(offsets={"mda": 3.0, "sgd": 0.0, "adam": -1.0}))
    said, pair = verdict(summary), summary.comparisons[0]
    lead = f"{pair.difference:.3f} points in test accuracy"
    assert said.headline == f"mda wins by {lead} over sgd, certain to 95%."
    tests = [summary.confirmed[name] for name in ("mda", "sgd")]
    shown = ", ".join(
        f"{name} {test.mean:.3f} ± {test.se:.3f}" for name, test in zip(("mda", "sgd"), tests, strict=True)
    )
    assert said.evidence.startswith(f"{shown} (mean ± standard error, n = 5).")
    assert f"The lead is between {pair.low:.3f} and {pair.high:.3f} (95% interval" in said.evidence
    assert summary.verdict == str(said)


def test_a_lead_that_can_be_chance_has_no_winner():
    summary = summarize(study(seed=1, offsets={"mda": 0.0, "sgd": 0.0, "adam": -1.0}))
    said, pair = verdict(summary), summary.comparisons[0]
    assert re.fullmatch(
        r"No winner: sgd leads mda by 0\.\d+ points in test accuracy, which can be chance\.", said.headline
    )
    assert pair.low < 0 < pair.high
    assert f"between \N{MINUS SIGN}{-pair.low:.3f} and +{pair.high:.3f} (95% interval" in said.evidence


def test_who_wins_is_ahead_of_every_other_one_not_only_of_the_second():
    summary = summarize(study(offsets={"mda": 3.0, "sgd": 0.0, "adam": -1.0}))
    assert [(pair.a, pair.b) for pair in summary.comparisons[:2]] == [("mda", "sgd"), ("mda", "adam")]
    unsure = with_pair(summary, 1, low=-0.5, p_holm=0.2)
    assert verdict(unsure).headline.startswith("No winner: mda leads adam by")
    unsure = with_pair(summary, 2, p_holm=0.9)  # sgd and adam
    assert verdict(unsure).headline.startswith("mda wins")


@pytest.mark.parametrize("higher", [True, False])
def test_a_lead_is_positive_whether_higher_or_lower_is_better(higher):
    summary = of_scores({"mda": [1.0, 1.1, 1.2], "sgd": [2.0, 2.2, 2.1]}, higher_is_better=higher, unit="")
    best, other = ("sgd", "mda") if higher else ("mda", "sgd")
    said = verdict(summary)
    assert said.headline == f"{best} wins by 1.000 in test accuracy over {other}, certain to 95%."
    assert "The lead is between 0.752 and 1.248 " in said.evidence


def test_an_interval_of_one_pair_does_not_contradict_the_correction_for_all():
    summary = summarize(study(offsets={"mda": 3.0, "sgd": 0.0, "adam": -1.0}))
    close = with_pair(summary, 0, low=0.1, high=2.0, p_holm=0.06)
    assert verdict(close).headline.endswith("which can be chance when 3 pairs are compared.")


def test_the_evidence_says_that_p_is_corrected():
    assert "after correction for 3 pairs)." in summarize(study()).verdict
    two = summarize([r for r in study() if r.optimizer != "adam"]).verdict
    assert "95% interval" in two
    assert "correct" not in two  # one pair: nothing to correct for


def test_the_verdict_says_divergences_and_settings_at_the_end_of_their_range():
    said = verdict(summarize(study(confirm_diverges={("adam", 1003)})))
    (caution,) = said.cautions
    assert caution == (
        "CAUTION: the best step size of mda, 1, is the largest tried, and a larger one may be better; "
        "grids were not extended (--no-extend)."
    )
    assert "2 of 18 tuning runs of mda" in said.diverged
    assert "1 of 5 confirmation runs of adam" in said.diverged


def test_where_nothing_trained_nobody_wins():
    lost = summarize(study(confirm_diverges={(name, s) for name in ("mda", "sgd", "adam") for s in SEEDS}))
    assert lost.verdict.startswith("No winner: nothing trained. All 15 confirmation runs diverged, ")
    # Untrained networks come first where the others got worse than that.
    untrained = summarize(study(confirm_diverges={("mda", s) for s in SEEDS}, untrained=95.0))
    assert untrained.verdict.startswith(
        "No winner: mda ranks first, but did not train. Its 5 confirmation runs"
    )
    assert compare_tasks({"task": untrained}).winners == [None]
    one_survivor = summarize(study(confirm_diverges={("mda", s) for s in SEEDS[1:]}, untrained=95.0))
    assert one_survivor.verdict.startswith("mda wins by")


def test_one_seed_one_optimizer_or_no_confirmation_has_no_winner():
    one_seed = [r for r in study() if r.phase == "tune" or r.seed == 1000]
    assert verdict(summarize(one_seed)).headline.endswith("one seed cannot tell whether that is chance.")
    alone = verdict(summarize([r for r in study() if r.optimizer == "sgd"]))
    assert alone.headline == "No winner: only sgd has a result."
    assert alone.evidence.endswith("; no other optimizer was run.")
    tuned = summarize([r for r in study() if r.phase == "tune"])
    assert tuned.verdict.startswith("No winner: nothing is confirmed yet.")
    assert tuned.optimizers["mda"].test is None


def test_the_same_lead_in_every_seed_cannot_be_tested_and_does_not_win():
    summary = of_scores({"mda": [91.0, 92.0, 93.0], "sgd": [90.0, 91.0, 92.0]})
    assert verdict(summary).headline.endswith("it is the same in all 3 seeds, so no test is possible.")


def test_optimizers_with_equal_means_tie_and_none_wins():
    scores = {"mda": [90.0, 92.0], "sgd": [92.0, 90.0], "adam": [91.0, 91.0], "adamw": [80.0, 81.0]}
    summary = of_scores(scores)
    assert leaders(summary) == ["adam", "mda", "sgd"]
    said = verdict(summary)
    assert said.headline == "No winner: adam, mda and sgd tie."
    assert re.fullmatch(r"Each has a mean test accuracy of 91\.00*% \(n = 2\)\.", said.evidence)
    assert ranks(summary) == {"adam": 1, "mda": 1, "sgd": 1, "adamw": 4}
    # The mean of 0.1, 0.2 and 0.3 differs from that of 0.3, 0.2 and 0.1 by rounding alone, or not at all.
    close = of_scores({"mda": [0.1, 0.2, 0.3], "sgd": [0.3, 0.1, 0.2 * (1 + 1e-15)]})
    assert verdict(close).headline == "No winner: sgd and mda tie."


def test_a_lead_too_small_to_print_is_not_printed_as_zero():
    summary = of_scores({"mda": [90.0, 92.0, 93.0001], "sgd": [91.0, 91.0, 93.0]})
    assert re.search(r"leads sgd by less than 0\.0+1 points", verdict(summary).headline)


@pytest.mark.parametrize(
    ("extension", "said"),
    [
        (Extension(allowed=False, rounds=0, most=3), "grids were not extended (--no-extend)"),
        (Extension(allowed=True, rounds=3, most=3), "grids were extended 3 times, the maximum"),
    ],
)
def test_the_verdict_says_why_a_grid_ends_at_its_best(extension, said):
    assert f"a larger one may be better; {said}." in summarize(study(), extension=extension).verdict


def test_unequal_numbers_of_settings_are_in_the_verdict():
    lrs = {"mda": (0.1, 0.3, 1.0), "sgd": (0.01, 0.03, 0.1, 0.3)}
    said = "CAUTION: not the same number of settings was tried: mda 9, sgd 12."
    assert said in summarize(study(lrs=lrs)).verdict
    assert "same number" not in summarize(study()).verdict


# Several tasks


def task(seed, **offsets):
    return summarize(study(seed, offsets=offsets))


def test_who_wins_every_task_wins_overall():
    clear = [task(seed, mda=4.0, sgd=1.0, adam=-2.0) for seed in (0, 1)]
    overall = compare_tasks({"one": clear[0], "two": clear[1]})
    assert overall.headline == "mda wins all 2 tasks, certain to 95%."
    assert overall.evidence.startswith("Mean rank: mda 1.00, sgd 2.00, adam 3.00.")


def test_a_task_without_a_winner_or_with_another_one_leaves_no_overall_winner():
    first, second = task(0, mda=4.0, sgd=1.0, adam=-2.0), task(1, mda=1.0, sgd=4.0, adam=-2.0)
    level = task(1, mda=0.0, sgd=0.0, adam=-9.0)
    overall = compare_tasks({"one": first, "two": second, "three": level})
    assert overall.headline == (
        "No overall winner: of 3 tasks, mda wins one; sgd wins two; no winner in three."
    )
    assert overall.winners == ["mda", "sgd", None]
    assert compare_tasks({"three": level}).headline == "No overall winner: no task has a winner."


def test_a_pair_has_one_order_and_plus_means_that_the_first_is_better():
    first, second = task(0, mda=4.0, sgd=1.0, adam=-2.0), task(1, mda=1.0, sgd=4.0, adam=-2.0)
    overall = compare_tasks({"one": first, "two": second})
    assert list(overall.advantages) == [("mda", "sgd"), ("mda", "adam"), ("sgd", "adam")]
    ahead, behind = overall.advantages["mda", "sgd"]
    assert 0 < ahead.low < ahead.value < ahead.high
    assert behind.low < behind.value < behind.high < 0
    lower = Summary.model_validate(first.model_dump() | {"higher_is_better": False})
    assert compare_tasks({"one": lower}).advantages["adam", "sgd"][0].value > 0


def test_a_win_must_hold_after_correction_for_the_pairs_of_all_tasks():
    summary = summarize(study())
    assert summary.verdict.startswith("mda wins")
    alone = compare_tasks({"one": summary})
    assert alone.winners == ["mda"]
    many = {"one": summary} | {f"task {i}": task(i, mda=0.0, sgd=0.0, adam=0.0) for i in range(1, 6)}
    assert compare_tasks(many).winners[0] is None


def test_an_optimizer_that_was_not_run_has_no_rank_there():
    both = summarize(study(offsets={"mda": 3.0, "sgd": 0.0, "adam": -1.0}))
    alone = summarize([r for r in study(1) if r.optimizer != "adam"])
    overall = compare_tasks({"one": both, "two": alone})
    assert "adam" not in overall.ranks[1]
    assert "Of adam, over the tasks with a result." in overall.evidence
    assert overall.advantages["mda", "adam"][1] is None
