"""Equal within a margin: a claim that can be confirmed, refuted or left undecided."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from support.synthetic_runs import run, summarize

from dualavg_bench.analysis import paper, statistics
from dualavg_bench.analysis.statistics import equivalence_p

SCORE = st.floats(-100, 100, allow_nan=False)
MARGIN = st.floats(0.01, 100)


@given(st.lists(st.tuples(SCORE, SCORE), min_size=2, max_size=8), MARGIN)
def test_p_is_below_5_percent_where_the_interval_is_within_or_beyond_the_margin(pairs, margin):
    a, b = zip(*pairs, strict=True)
    differences = [x - y for x, y in pairs]
    assume(max(differences) - min(differences) > 1e-6)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    ends = (low - margin, low + margin, high - margin, high + margin)
    assume(min(map(abs, ends)) > 1e-6)  # an end on the margin is decided by rounding
    decided = (-margin < low and high < margin) or high < -margin or low > margin
    assert (equivalence_p(a, b, margin) < 0.05) == decided


@given(st.lists(st.tuples(SCORE, SCORE), min_size=2, max_size=8), MARGIN)
def test_who_is_first_does_not_matter(pairs, margin):
    a, b = zip(*pairs, strict=True)
    one, other = equivalence_p(a, b, margin), equivalence_p(b, a, margin)
    assert one == (None if other is None else pytest.approx(other))
    assert one is None or 0 <= one <= 1


def test_no_difference_at_all_is_equal_and_one_without_spread_has_no_test():
    assert equivalence_p([90.0, 91.0], [90.0, 91.0], 1.0) == 0.0
    assert equivalence_p([0.3, 1.2, 91.3], [0.2, 1.1, 91.2], 1.0) is None  # the same difference three times
    assert equivalence_p([90.0], [90.0], 1.0) is None  # one seed


def test_every_claim_of_equal_and_no_other_has_a_margin():
    for claim in paper.CLAIMS:
        assert (claim.margin is not None) == (claim.relation == "equal"), claim
    margins = {(c.recipe, c.split): c.margin for c in paper.CLAIMS if c.margin}
    assert margins == {
        ("imagenet", "test"): "1",
        ("fastmri", "test"): "0.005",
        ("iwslt14", "train"): "3%",
        ("roberta", "train"): "3%",
    }


def summary(recipe, mda, adam, higher=True, **others):
    """A study with these test scores by seed."""
    kind = {"recipe": recipe, "higher_is_better": higher}
    scores = {"mda": mda, "adam": adam, **others}
    runs = [run(name, 1.0, 0, "tune", **kind) for name in scores]
    for name, values in scores.items():
        for i, value in enumerate(values):
            train = {"step": [10], "loss": [value]}
            runs.append(run(name, 1.0, 1000 + i, "confirm", test_score=value, train=train, **kind))
    return summarize(runs)


def judged(recipe, relation, split, one):
    """The judgement of the claim about mda and adam."""
    (row,) = [
        row
        for row in paper.judge({recipe: one})
        if {row.claim.a, row.claim.b} == {"mda", "adam"}
        and (row.claim.recipe, row.claim.relation, row.claim.split) == (recipe, relation, split)
    ]
    return row


@pytest.mark.parametrize(
    ("lead", "spread", "verdict"),
    [
        (0.0, 0.0005, "agrees"),
        (0.003, 0.0005, "agrees"),  # a difference that is certain, and within the margin
        (-0.003, 0.0005, "agrees"),
        (0.0, 0.05, "undecided"),
        (0.005, 0.0005, "undecided"),
        (0.05, 0.0005, "disagrees"),
        (-0.05, 0.0005, "disagrees"),
        (0.05, 0.5, "undecided"),
    ],
)
def test_equal_agrees_within_the_margin_and_disagrees_beyond_it(lead, spread, verdict):
    adam = [0.90, 0.91, 0.92, 0.93, 0.94]
    mda = [value + lead + spread * sign for value, sign in zip(adam, (-1, 1, 0, 1, -1), strict=True)]
    row = judged("fastmri", "equal", "test", summary("fastmri", mda, adam))
    assert (row.verdict, row.n, row.margin) == (verdict, 5, 0.005)
    assert row.advantage == pytest.approx(lead)
    assert row.low < row.advantage < row.high


@pytest.mark.parametrize(("lead", "verdict"), [(0.05, "agrees"), (0.2, "disagrees"), (-0.2, "disagrees")])
def test_a_margin_in_percent_is_one_of_the_mean(lead, verdict):
    adam = [3.0, 3.1, 3.2, 3.3, 3.4]
    mda = [value + lead + noise for value, noise in zip(adam, (0.01, -0.01, 0, 0.01, -0.01), strict=True)]
    row = judged("iwslt14", "equal", "train", summary("iwslt14", mda, adam))
    assert row.margin == pytest.approx(0.03 * (3.2 + lead / 2))
    assert row.verdict == verdict
    assert row.advantage == pytest.approx(-lead)  # a lower training loss is better, whatever the metric


def test_claims_of_equal_are_corrected_together_with_all_others():
    scores = [70.0, 70.3, 70.1, 70.2, 69.9]
    close = [value + noise for value, noise in zip(scores, (0.3, -0.3, 0.1, 0.3, -0.4), strict=True)]
    far = [value - 9 + noise for value, noise in zip(scores, (0.1, 0.3, 0.2, 0, 0.1), strict=True)]
    rows = [row for row in paper.judge({"imagenet": summary("imagenet", scores, far, sgd=close)}) if row.n]
    assert [row.claim.relation for row in rows] == ["equal", "better", "better"]
    assert rows[0].p == equivalence_p(scores, close, 1.0)
    assert [row.p_holm for row in rows] == statistics.holm([row.p for row in rows])
    assert [row.verdict for row in rows] == ["agrees"] * 3


def test_a_claim_is_judged_by_the_network_that_decides():
    kind = {"recipe": "fastmri", "report": "best"}
    runs = [run(name, 1.0, 0, "tune", **kind) for name in ("mda", "adam")]
    for i, noise in enumerate((0.0, 1e-4, -1e-4)):
        runs.append(run("mda", 1.0, 1000 + i, "confirm", test_score=0.5, best_score=0.9 + noise, **kind))
        runs.append(run("adam", 1.0, 1000 + i, "confirm", test_score=0.9, best_score=0.9, **kind))
    assert judged("fastmri", "equal", "test", summarize(runs)).verdict == "agrees"
