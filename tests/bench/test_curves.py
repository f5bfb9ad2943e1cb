"""What a summary keeps of curves, and how soon a run reaches a target."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.synthetic_runs import run, study, summarize

from dualavg_bench.analysis.curves import POINTS, steps_to_target, thinned
from dualavg_bench.store.results import Curve


def trained(losses):
    steps = [10 * (i + 1) for i in range(len(losses))]
    return run(train=Curve.model_validate({"step": steps, "loss": losses}))


def validated(scores, **changes):
    valid = {"step": [30 * i for i in range(len(scores))], "loss": scores, "accuracy": scores}
    return run(**{"phase": "confirm", "valid": Curve.model_validate(valid), **changes})


@given(st.integers(1, 1234))
def test_a_long_curve_is_thinned_to_means_of_neighbours_and_ends_where_it_ended(n):
    losses = [float(i % 7) + i / n for i in range(n)]
    curve = thinned(trained(losses)).train
    assert len(curve.step) == len(curve["loss"]) <= POINTS
    assert curve.step[-1] == 10 * n
    assert curve.step == sorted(set(curve.step))
    start = 0
    for step, value in zip(curve.step, curve["loss"], strict=True):
        end = step // 10
        assert value == pytest.approx(fmean(losses[start:end]), rel=1e-5)
        start = end
    sizes = [b - a for a, b in zip([0, *curve.step], curve.step, strict=False)]
    assert sum(size * value for size, value in zip(sizes, curve["loss"], strict=True)) / (10 * n) == (
        pytest.approx(fmean(losses), rel=1e-5)
    )


def test_a_short_curve_keeps_every_point_rounded_to_six_digits():
    curve = thinned(trained([1.23456789, 1234567.89, 1.23456789e-7])).train
    assert curve.step == [10, 20, 30]
    assert curve["loss"] == [1.23457, 1234570.0, 1.23457e-07]


def test_validation_keeps_every_evaluation_of_loss_and_metric_and_no_more():
    scores = [10.123456789, 20.0, 30.0]
    valid = {"step": [0, 1, 2], "loss": scores, "accuracy": scores, "top5": scores}
    kept = thinned(run(valid=Curve.model_validate(valid))).valid
    assert kept.step == [0, 1, 2]
    assert sorted(kept.names) == ["accuracy", "loss"]
    assert kept["accuracy"] == [10.1235, 20.0, 30.0]


def test_a_run_that_diverged_before_its_first_loss_has_an_empty_curve():
    nothing = run(diverged_at=1, train=Curve.model_validate({"step": [], "loss": []}))
    assert thinned(nothing).train.step == []


def test_the_target_is_reached_at_the_first_evaluation_that_is_as_good():
    one = validated([10.0, 50.0, 80.0, 70.0, 90.0])
    assert [steps_to_target(one, target) for target in (10.0, 80.0, 80.1, 90.1)] == [30, 60, 120, None]
    lower = validated([10.0, 5.0, 3.0, 4.0, 2.0], higher_is_better=False)
    assert [steps_to_target(lower, target) for target in (10.0, 3.0, 2.9, 1.9)] == [30, 60, 120, None]


def test_a_run_that_diverged_never_reaches_the_target():
    assert steps_to_target(run(phase="confirm", diverged_at=212), 20.0) is None


def test_one_optimizer_or_one_that_diverged_sets_no_target():
    alone = [each for each in study() if each.optimizer == "mda"]
    assert summarize(alone).target is None
    diverged = summarize(study(confirm_diverges=[("adam", 1000)]))
    others = [diverged.optimizers[name].valid_final.mean for name in ("mda", "sgd")]
    assert diverged.target == min(others)


def test_scores_no_better_than_the_untrained_network_set_no_target():
    summary = summary_of({"mda": [[50.0, 60.0, 40.0]], "sgd": [[50.0, 90.0, 90.0]]})
    assert summary.target is None
    assert summary.optimizers["sgd"].to_target is None


def summary_of(curves, higher=True):
    """The summary of a study with these validation curves: {optimizer: one for each seed}."""
    kind = {"higher_is_better": higher}
    runs = [run(name, 1.0, 0, "tune", **kind) for name in curves]
    for name, own in curves.items():
        runs += [validated(c, optimizer=name, seed=1000 + i, **kind) for i, c in enumerate(own)]
    return summarize(runs)


@pytest.mark.parametrize("higher", [True, False])
def test_the_target_is_the_worst_optimizer_s_mean_final_score(higher):
    sign = 1 if higher else -1
    curves = {"mda": [[0, 40, 95], [0, 40, 85]], "sgd": [[0, 81, 90], [0, 79, 70]]}
    signed = {name: [[sign * v for v in curve] for curve in own] for name, own in curves.items()}
    summary = summary_of(signed, higher)
    assert summary.target == sign * 80
    mda, sgd = (summary.optimizers[name].to_target for name in ("mda", "sgd"))
    assert (mda.steps, mda.reached, mda.n) == (60, 2, 2)
    assert (sgd.steps, sgd.reached, sgd.n) == (None, 1, 2)  # the median of 30 and never
    assert set(sgd.runs) == {
        h for h, r in summary.runs.items() if (r.optimizer, r.phase) == ("sgd", "confirm")
    }


@pytest.mark.parametrize(
    ("reached_at", "median"),
    [
        ((30, 60, 60), 60),
        ((30, 30, 60), 30),
        ((30, 60, None), 60),
        ((30, None, None), None),
        ((30, 30, None, None), None),  # half of them: the median is between 30 and never
    ],
)
def test_the_median_counts_runs_that_never_reach_the_target(reached_at, median):
    curve = {30: [0.0, 90.0, 90.0], 60: [0.0, 0.0, 90.0], None: [0.0, 0.0, 0.0]}
    own = [curve[step] for step in reached_at]
    summary = summary_of({"mda": own, "sgd": [[0.0, 0.0, 100.0] for _ in own]})
    assert summary.target == fmean(curve[-1] for curve in own) > 0
    entry = summary.optimizers["mda"].to_target
    assert (entry.steps, entry.n) == (median, len(own))
    assert entry.reached == sum(step is not None for step in reached_at)


def test_a_summary_has_curves_of_all_confirmation_runs_and_their_training_loss():
    runs = study(confirm_diverges={("adam", 1003)})
    summary = summarize(runs)
    by_hash = {r.hash: r for r in runs}
    assert set(summary.curves) == {r.hash for r in runs if r.phase == "confirm"}
    for name, curves in summary.curves.items():
        assert curves == thinned(by_hash[name])
    train = summary.optimizers["mda"].train
    ends = [fmean(by_hash[h].train["loss"][-3:]) for h in train.runs]
    assert train.mean == pytest.approx(fmean(ends))
    assert (train.n, len(train.runs)) == (5, 5)
    assert all(run.train is not None for run in summary.runs.values())
