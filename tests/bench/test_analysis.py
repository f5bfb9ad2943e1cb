"""The analysis: choice on validation alone, exact budgets, paired tests, a summary of any order of runs."""

import math
import random
from itertools import combinations

import pytest
from scipy import stats as scipy_stats
from support.synthetic_runs import MACHINE, run, study, summarize

from dualavg_bench.analysis.scores import score
from dualavg_bench.analysis.selection import best_so_far, budget, select, sensitivity
from dualavg_bench.analysis.statistics import compare, describe, holm, is_significant
from dualavg_bench.analysis.verdict import verdict
from dualavg_bench.store.results import Curve
from dualavg_bench.store.summaries import GridSize, Statistics


def grid(scores, optimizer="mda", **changes):
    """One tuning seed a point: {lr: final score}."""
    return [run(optimizer, lr, 0, "tune", final, **changes) for lr, final in scores.items()]


def confirmed(scores, **changes):
    """{optimizer: test scores by seed}."""
    return [
        run(name, 1.0, 1000 + i, "confirm", test_score=value, **changes)
        for name, values in scores.items()
        for i, value in enumerate(values)
    ]


def test_describe_is_the_mean_and_its_standard_error():
    values = [3.0, 5.0, 10.0]
    described = describe(values)
    assert (described.mean, described.n) == (6.0, 3)
    assert described.se == pytest.approx(scipy_stats.sem(values))
    assert describe([4.0]) == Statistics(mean=4.0, se=None, n=1)


def test_a_score_is_the_last_one_and_of_a_diverged_run_the_untrained_one():
    assert score(run(final=88.0), "valid") == pytest.approx(88.0)
    assert score(run(final=88.0, diverged_at=212, untrained=9.0), "valid") == 9.0
    with pytest.raises(ValueError, match="only confirmation runs read the test split"):
        score(run(phase="tune"), "test")


def test_the_training_loss_of_a_run_is_the_mean_over_the_last_tenth_of_its_curve():
    losses = run().train["loss"]
    assert len(losses) == 30
    assert score(run(), "train") == pytest.approx(sum(losses[-3:]) / 3)
    diverged = run(diverged_at=212)
    assert score(diverged, "train") == diverged.train["loss"][0]


@pytest.mark.parametrize(("higher", "best"), [(True, 0.3), (False, 0.1)])
def test_the_best_mean_validation_score_is_chosen(higher, best):
    runs = [
        run("mda", lr, seed, "tune", final, higher_is_better=higher)
        for lr, finals in {0.1: (50, 80), 0.3: (71, 72), 1.0: (70, 71)}.items()
        for seed, final in enumerate(finals)
    ]
    chosen = select(runs)["mda"]
    assert chosen.lr == best
    assert chosen.valid.n == 2


def test_the_final_score_decides_not_the_best_along_the_way():
    early, steady = run(lr=1.0, final=80.0), run(lr=0.1, final=81.0)
    early.valid["accuracy"][-2] = 99.0
    assert select([early, steady])["mda"].lr == 0.1


class Forbidden(dict):
    def __getitem__(self, key):
        raise AssertionError("tuning read the test split")


def test_selection_never_looks_at_test():
    runs = [r for r in study() if r.phase == "tune"]
    poisoned = [r.model_copy(update={"test": Forbidden(accuracy=math.nan)}) for r in runs]
    assert select(poisoned) == select(runs)
    assert budget(poisoned) == budget(runs)


def test_a_diverged_setting_never_beats_one_that_did_not():
    runs = [
        run("mda", 1.0, 0, "tune", 99.9),
        run("mda", 1.0, 1, "tune", 99.9, diverged_at=212, untrained=60.0),
        run("mda", 0.1, 0, "tune", 20.0),
        run("mda", 0.1, 1, "tune", 20.0),
    ]
    assert select(runs)["mda"].lr == 0.1
    assert sensitivity(runs)["mda"][1].mean == pytest.approx((99.9 + 60.0) / 2)
    everything = [run("mda", lr, 0, "tune", 90, diverged_at=30, untrained=u) for lr, u in [(1, 9), (3, 11)]]
    assert select(everything)["mda"].lr == 3


def test_a_setting_that_lacks_a_seed_is_not_preferred():
    runs = [run("mda", 1.0, 0, "tune", 99.0), *(run("mda", 0.1, s, "tune", 50.0) for s in (0, 1))]
    assert select(runs)["mda"].lr == 0.1


def test_ties_go_to_the_smaller_values_in_any_order():
    runs = [
        run("mda", lr, 0, "tune", 70.0, weight_decay=decay, schedule=schedule)
        for lr in (0.3, 0.1)
        for decay in (1e-3, 1e-4)
        for schedule in ("stagewise", "linear")
    ]
    for seed in range(5):
        random.Random(seed).shuffle(runs)
        chosen = select(runs)["mda"]
        assert (chosen.lr, chosen.weight_decay, chosen.schedule) == (0.1, 1e-4, "linear")


def test_rounding_does_not_decide_between_equal_settings():
    runs = []
    for lr, scores in {0.3: (99.16666666666667, 97.5), 0.1: (98.33333333333333, 98.33333333333333)}.items():
        runs += [run("mda", lr, seed, "tune", score) for seed, score in enumerate(scores)]
    means = [point.mean for point in sensitivity(runs)["mda"]]
    assert means[1] > means[0]  # by rounding alone
    assert select(runs)["mda"].lr == best_so_far(runs)["mda"].lr == 0.1
    assert verdict(summarize(runs)).limits == ""  # nothing is confirmed
    confirmed = [*runs, run("mda", 0.1, 1000, "confirm", 98.0)]
    assert "Equal on validation, the smaller was taken: mda with lr 0.1 and 0.3." in str(
        verdict(summarize(confirmed))
    )


def test_an_edge_is_said_only_where_there_is_something_beyond():
    def edge(scores, **changes):
        return select(grid(scores, **changes))["mda"].edge

    assert edge({0.1: 1, 0.3: 3, 1.0: 2}) == []
    assert edge({0.1: 3, 0.3: 2, 1.0: 1}) == edge({0.1: 1, 0.3: 2, 1.0: 3}) == ["lr"]
    assert edge({0.1: 1}) == ["lr"]  # nobody knows what lies beside it
    assert edge({0.0: 3, 0.1: 2, 0.3: 1}) == []  # nothing lies below zero
    decays = [run("mda", 0.1, 0, "tune", 90 - 1000 * d, weight_decay=d) for d in (0.0, 1e-4, 1e-3)]
    assert select(decays)["mda"].edge == ["lr"]  # nothing lies below a weight decay of zero
    assert select(decays[1:])["mda"].edge == ["lr", "weight_decay"]


@pytest.mark.parametrize("higher", [True, False])
def test_budget_equals_the_enumeration_of_all_draws(higher):
    rng = random.Random(7)
    lrs = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    runs = [
        run(
            "mda", lr, seed, "tune", rng.uniform(20, 90), higher_is_better=higher,
            diverged_at=60 if (lr, seed) == (0.3, 1) else None,
        )
        for lr in lrs
        for seed in (0, 1)
    ]  # fmt: skip
    mda = budget(runs)["mda"]
    curve = mda.scores
    assert (mda.n, set(mda.runs)) == (2, {r.hash for r in runs})
    for m in range(1, len(lrs) + 1):
        drawn = [
            select([r for r in runs if r.lr in subset])["mda"].valid.mean for subset in combinations(lrs, m)
        ]
        assert curve[m - 1] == pytest.approx(sum(drawn) / len(drawn), rel=1e-12)
    assert curve[-1] == select(runs)["mda"].valid.mean


def test_pairs_are_paired_t_tests_by_seed():
    scores = {"mda": [91.0, 92.5, 90.2, 93.0], "sgd": [90.5, 92.1, 90.1, 92.2]}
    runs = confirmed(scores)
    random.Random(0).shuffle(runs)
    (pair,) = compare(runs)
    expected = scipy_stats.ttest_rel(scores["mda"], scores["sgd"])
    low, high = expected.confidence_interval(0.95)
    assert (pair.a, pair.b, pair.n, pair.seeds) == ("mda", "sgd", 4, [1000, 1001, 1002, 1003])
    assert pair.difference == pytest.approx(0.45)
    assert [pair.low, pair.high, pair.p] == pytest.approx([low, high, expected.pvalue])
    assert scipy_stats.ttest_ind(scores["mda"], scores["sgd"]).pvalue > 10 * pair.p  # pairing matters


def test_the_better_one_stands_first_also_where_lower_is_better():
    scores = {"adam": [3.0, 3.2], "mda": [2.0, 2.1], "sgd": [2.5, 2.4]}
    pairs = compare(confirmed(scores, higher_is_better=False))
    assert [(p.a, p.b) for p in pairs] == [("mda", "sgd"), ("mda", "adam"), ("sgd", "adam")]
    assert all(pair.difference < 0 for pair in pairs)


@pytest.mark.parametrize("higher", [True, False])
def test_the_lower_training_loss_stands_first_whatever_the_metric(higher):
    runs = [
        run(name, 1.0, seed, "confirm", higher_is_better=higher, train=curve)
        for name, loss in (("mda", 3.0), ("sgd", 2.0))
        for seed in (1000, 1001)
        for curve in [Curve.model_validate({"step": [10], "loss": [loss + seed / 1e4]})]
    ]
    (pair,) = compare(runs, "train")
    assert (pair.a, pair.b, pair.difference) == ("sgd", "mda", pytest.approx(-1.0))


def test_holm_is_the_step_down_correction_of_the_textbook():
    # Sorted p = .005, .01, .03, .04 times 4, 3, 2, 1, made monotone.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02, None, 0.5]) == pytest.approx([0.06, None, 1.0])  # untestable still counts
    pairs = compare(confirmed({"a": [1, 2, 3.5], "b": [1.2, 2.1, 3.9], "c": [5, 6, 7.1]}))
    assert [pair.p_holm for pair in pairs] == holm([pair.p for pair in pairs])


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        ([90.0], [89.0], None),  # one seed
        ([0.3, 1.2, 91.3], [0.2, 1.1, 91.2], None),  # the same difference but for rounding
        ([90.0, 91.0], [90.0, 91.0], 1.0),  # no difference at all
    ],
)
def test_where_a_t_test_says_nothing_nothing_is_claimed(a, b, p):
    (pair,) = compare(confirmed({"a": a, "b": b}))
    assert (pair.p, pair.p_holm) == (p, p)
    assert not is_significant(pair.p_holm)


def test_seeds_that_do_not_pair_up_are_an_error_with_a_sentence():
    runs = confirmed({"mda": [1.0, 2.0, 3.0], "sgd": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"sgd lacks the confirmation seeds \[1002\]"):
        compare(runs)


def test_two_results_of_one_seed_are_never_averaged():
    tuned = grid({0.1: 1.0}) * 2
    with pytest.raises(ValueError, match="must not be averaged"):
        select(tuned)
    with pytest.raises(ValueError, match="must not be averaged"):
        compare([*confirmed({"mda": [1.0]}), run("mda", 9.0, 1000, "confirm")])


def test_the_summary_does_not_depend_on_the_order_of_runs():
    runs = study(confirm_diverges={("adam", 1003)})
    first = summarize(runs).model_dump_json()
    for seed in range(3):
        random.Random(seed).shuffle(runs)
        assert summarize(runs).model_dump_json() == first


def test_times_and_memory_are_apart_from_everything_else():
    runs = study()
    slower = [
        r.model_copy(
            update={"time": r.time.model_copy(update={"seconds": 2 * r.time.seconds}), "peak_mb": None}
        )
        for r in runs
    ]
    a, b = summarize(runs), summarize(slower)
    assert b.times.seconds == pytest.approx(2 * a.times.seconds)
    assert b.times.optimizers["mda"].peak_mb is None
    assert a.model_dump(exclude={"times"}) == b.model_dump(exclude={"times"})


def test_every_figure_of_the_summary_has_its_n_and_its_runs():
    runs = study(confirm_diverges={("adam", 1003)})
    summary = summarize(runs, about="a", paper="p", extended={"mda": 3})
    assert summary.optimizers["mda"].grid == GridSize(points=9, runs=18, diverged=2, extended=3)
    test = summary.optimizers["adam"].test
    assert (test.n, test.diverged, len(test.runs)) == (5, 1, 5)
    scores = [summary.runs[h].test for h in test.runs]
    assert 10.0 in scores  # the diverged run counts, untrained
    assert test.mean == pytest.approx(sum(scores) / 5)
    for point in summary.sensitivity["sgd"]:
        assert point.n == len(point.runs) == 2
    tuned = {h for h, r in summary.runs.items() if r.optimizer == "sgd" and r.phase == "tune"}
    assert set(summary.budget["sgd"].runs) == tuned
    assert summary.budget["sgd"].n == 2
    for pair in summary.comparisons:
        assert (pair.n, len(set(pair.runs))) == (5, 10)
        assert {summary.runs[h].optimizer for h in pair.runs} == {pair.a, pair.b}
        assert {summary.runs[h].phase for h in pair.runs} == {"confirm"}
    for name, measured in summary.times.optimizers.items():
        for entry in (measured.step_ms, measured.optimizer_ms, measured.peak_mb):
            assert entry.n == len(entry.runs) == 23
            assert {summary.runs[h].optimizer for h in entry.runs} == {name}
            ends = [entry.low, entry.lower, entry.median, entry.upper, entry.high]
            assert ends == sorted(ends)
    assert set(summary.runs) == {r.hash for r in runs}


def test_every_machine_is_named_once_in_a_fixed_order():
    machines = [MACHINE.model_copy(update={"cpu": cpu}) for cpu in "zyxwv"]
    runs = [r.model_copy(update={"machine": machines[i % 5]}) for i, r in enumerate(study())]
    assert [machine.cpu for machine in summarize(runs).machines] == list("vwxyz")


def test_unfair_confirmations_are_refused():
    runs = study()
    *others, last = runs  # the last one is a confirmation
    with pytest.raises(ValueError, match=r"seeds \[0\] that tuning has already seen"):
        summarize([*others, last.model_copy(update={"seed": 0})])
    with pytest.raises(ValueError, match="not the setting chosen on validation"):
        summarize([*others, last.model_copy(update={"lr": 7.0})])
    with pytest.raises(ValueError, match="Finish the study first"):
        summarize([r for r in runs if r.phase == "tune" or r.optimizer == "mda"])
    with pytest.raises(ValueError, match="their scale differs"):
        summarize([*others, last.model_copy(update={"scale": "mini"})])


def test_versions_of_packages_are_collected_in_any_order_of_runs():
    def packages(r):
        old = r.optimizer == "mda" and r.seed == 0
        return {"zoo": "1.0"} if r.optimizer == "sgd" else {"madgrad": "1.2" if old else "1.3"}

    runs = [r.model_copy(update={"packages": packages(r)}) for r in study()]
    for order in (runs, runs[::-1]):
        assert list(summarize(order).packages.items()) == [("madgrad", ["1.2", "1.3"]), ("zoo", ["1.0"])]
