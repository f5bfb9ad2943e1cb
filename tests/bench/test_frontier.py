"""Two scores against each other: the second one never decides, and equal scores are interpolated by hand."""

import json
import random
import re

import pytest
from support import starting
from support.lines import execute, make_recipe, make_spec
from support.page_reader import Reader
from support.synthetic_runs import run, summarize
from support.two_scores import ALSO, START, runs, with_also

from dualavg_bench.analysis import frontier
from dualavg_bench.recipe import Metric, RecipeError
from dualavg_bench.report.study_page import render
from dualavg_bench.store.summaries import Summary


def summary(**arguments) -> Summary:
    return summarize(runs(**arguments))


# The second score never decides


def chosen(of: Summary) -> str:
    plain = of.model_dump(mode="json", exclude={"runs", "curves"})
    plain["also"] = None
    return json.dumps(plain, sort_keys=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_second_score_has_no_part_in_choice_comparison_or_verdict(seed):
    rng = random.Random(seed)
    assert chosen(summary(old_of=lambda old, _: 100 * rng.random())) == chosen(summary())


@pytest.mark.parametrize("report", ["last", "best"])
def test_the_second_score_has_no_part_in_the_best_checkpoint(tmp_path, report):
    results = []
    for also in (None, *(Metric("other", higher_is_better=higher) for higher in (True, False))):
        recipe = make_recipe(evaluate=starting.both_scores, also=also, report=report)
        results.append(execute(tmp_path / str(also), recipe, make_spec(recipe)))
    first, *others = (r.model_dump(include={"train", "valid", "test", "test_best"}) for r in results)
    assert others == [first, first]
    assert {"error", "other"} <= results[0].test.keys()


def test_a_second_score_that_is_not_finite_does_not_end_a_run(tmp_path):
    def scores(model, batches):
        return {**starting.both_scores(model, batches), "other": float("inf")}

    recipe = make_recipe(evaluate=scores, also=Metric("other", higher_is_better=True))
    result = execute(tmp_path, recipe, make_spec(recipe))
    assert result.status == "finished"
    assert "other" not in result.valid.names


def test_a_second_score_that_is_missing_is_one_line(tmp_path):
    recipe = make_recipe(also=Metric("other", higher_is_better=True))
    with pytest.raises(RecipeError, match="does not return 'other'"):
        execute(tmp_path, recipe, make_spec(recipe))


def test_the_second_score_must_be_another_one():
    with pytest.raises(ValueError, match="must be another score than error"):
        make_recipe(also=Metric("error", higher_is_better=True))


# Frontier


def test_the_start_is_the_score_before_the_first_step():
    assert frontier.start(summary()) == START


def test_a_dot_that_is_beaten_in_both_scores_is_off_the_line():
    dots = frontier.dots(summary())
    assert [dot.on_line for dot in dots["a"]] == [True, True, True]
    assert [dot.on_line for dot in dots["b"]] == [True, False, True]


def test_for_losses_lower_is_better():
    lower = ALSO.model_copy(update={"higher_is_better": False})
    flipped = summary().model_copy(update={"also": lower})
    assert [dot.on_line for dot in frontier.dots(flipped)["a"]] == [False, False, True]


def test_a_setting_that_diverged_in_any_seed_has_no_dot():
    lost = next(r for r in runs() if r.optimizer == "a" and r.lr == 0.3 and r.phase == "tune")
    gone = with_also(run("a", 0.3, lost.seed, "tune", 80.0, diverged_at=90, untrained=START[0]), START[1])
    of = summarize([gone if r.hash == lost.hash else r for r in runs()])
    assert [dot.point.lr for dot in frontier.dots(of)["a"]] == [0.1, 1.0]


def test_equal_scores_are_interpolated_as_by_hand():
    first, second = frontier.at_equal_score(summary())
    # The worst best is b's 85: 20 + 0.9 (85 - 20) = 78.5. The median of 85 and 90 is 87.5: 80.75.
    assert (first.metric, second.metric) == pytest.approx((78.5, 80.75))
    values = {estimate.optimizer: estimate for estimate in first.estimates}
    # a: between (70, 90) and (80, 80) at 78.5; b: between (75, 60) and (85, 40).
    assert values["a"].value == pytest.approx(90 - 8.5)
    assert values["b"].value == pytest.approx(60 - 2 * 3.5)
    assert [estimate.optimizer for estimate in first.estimates] == ["a", "b"]
    assert values["b"].difference == pytest.approx(53 - 81.5)
    assert values["a"].difference is None
    assert (first.reached_by, second.reached_by) == (2, 1)


def test_an_optimizer_that_never_reaches_a_score_has_no_value():
    assert frontier.interpolate([(1.0, 9.0), (2.0, 5.0)], 2.01) is None
    grid = {"a": [(90.0, 50.0)], "b": [(30.0, 90.0)], "c": [(90.0, 60.0)]}
    level = frontier.at_equal_score(summary(grid=grid))[1]
    assert {estimate.optimizer: estimate.value for estimate in level.estimates} == {
        "c": 60,
        "a": 50,
        "b": None,
    }


def test_the_interval_is_that_of_all_resampled_seeds():
    """One dot per optimizer: the second score is a mean of resampled seeds, whose quantiles are known."""
    grid = {"a": [(80.0, 50.0)], "b": [(80.0, 40.0)]}
    (level, *_) = frontier.at_equal_score(
        summary(grid=grid, seeds=2, old_of=lambda old, seed: old + (10 if seed % 2 else -10))
    )
    best, other = level.estimates
    # Two seeds, 40 and 60: means of a resample are 40, 50, 50 or 60, each with probability 1/4.
    assert best.interval == pytest.approx((40, 60))
    assert other.interval == pytest.approx((30, 50))
    # The same seeds for both: the difference never changes.
    assert other.difference_interval == pytest.approx((-10, -10))


def test_one_seed_has_no_interval():
    level = frontier.at_equal_score(summary(seeds=1))[0]
    assert {(estimate.interval, estimate.difference_interval) for estimate in level.estimates} == {
        (None, None)
    }


# Page


def test_a_study_with_a_second_score_shows_the_frontier():
    text = render(summary(spread=0.1, old_of=lambda old, seed: old + seed % 2))
    page = Reader(text)
    said = " ".join(page.text.split())
    assert "takes no part in any choice" in said
    assert "Old at accuracy 78" in said
    assert "better is up and right" in said
    assert re.search(r"a *89\.\d+ ± 0\.\d+ *best *50\.\d+ ± 0\.\d+", said)  # both scores in Results
    assert any(name.startswith("s0-frontier") for name in page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_a_study_without_one_has_no_frontier():
    of = summarize([r.model_copy(update={"also": None}) for r in runs()])
    assert "frontier" not in render(of)
    assert frontier.start(of) is None
    assert frontier.at_equal_score(of) == []
