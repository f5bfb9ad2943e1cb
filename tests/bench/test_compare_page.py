"""The page that compares studies: an overall sentence, tasks by optimizers with ranks, pairs in one order."""

import re

import pytest
from support.page_reader import Tables, words
from support.synthetic_runs import another, study, summarize

from dualavg_bench.analysis.formatting import p_text
from dualavg_bench.analysis.overall import compare_tasks
from dualavg_bench.analysis.statistics import holm
from dualavg_bench.analysis.verdict import places
from dualavg_bench.report import study_page
from dualavg_bench.report.compare_page import render_comparison
from dualavg_bench.store.summaries import Reduced

MINUS = "\N{MINUS SIGN}"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pages without figures, for claims about words: drawing takes most of the time."""
    monkeypatch.setattr(study_page, "_figures", lambda *_: {})


@pytest.fixture
def both(summary):
    """Two tasks: in the second, sgd is better than mda."""
    return [summary, summarize(study(1, offsets={"mda": 0.0, "sgd": 3.0, "adam": -1.0}, scale="mini"))]


def test_an_overall_sentence_comes_first(both):
    overall = compare_tasks({"cifar10 (quick)": both[0], "cifar10 (mini)": both[1]})
    text = words(render_comparison(both))
    assert text.index(overall.headline) < text.index("Tasks and optimizers") < text.index("Every pair")
    assert overall.headline == (
        "No overall winner: of 2 tasks, sgd wins cifar10 (mini); no winner in cifar10 (quick)."
    )


def test_one_table_has_every_task_and_optimizer_with_its_rank(both):
    text = words(render_comparison(both))
    head = text[text.index("Tasks and optimizers") : text.index("Every pair")]
    for summary, order in zip(both, (("mda", "sgd", "adam"), ("sgd", "mda", "adam")), strict=True):
        digits = places(summary)
        for rank, name in enumerate(order, 1):
            test = summary.confirmed[name]
            assert f"{rank}{test.mean:.{digits}f} ± {test.se:.{digits}f}" in head
    assert re.search(r"mean rank *1\.50 *1\.50 *3\.00", head)


def test_a_reduced_study_is_marked(both):
    cut = Reduced(
        budget="1m",
        tuning_seeds=(1, 2),
        grid_points=(3, 3),
        confirmation_seeds=(5, 5),
        extension_refused=False,
    )
    text = words(render_comparison([both[0], both[1].model_copy(update={"reduced": cut})]))
    head = text[text.index("Tasks and optimizers") : text.index("Every pair")]
    assert head.count("reduced study") == 1


def test_a_pair_has_one_order_in_every_task(both):
    text = words(render_comparison(both))
    pairs = text[text.index("Every pair") : text.index("Curves")]
    assert re.findall(r"\w+ over (?:mda|sgd|adam)\b", pairs) == [
        "mda over sgd",
        "mda over adam",
        "sgd over adam",
    ]
    row = pairs[pairs.index("mda over sgd") : pairs.index("mda over adam")]
    assert re.search(rf"\+0\.\d+.*{MINUS}\d\.\d+", row)  # mda is better in the first task, sgd in the second


def test_the_comparison_corrects_over_all_studies(summary):
    mini = summarize(study(1, lrs=dict.fromkeys(("mda", "sgd", "adam"), (0.2, 0.4)), scale="mini"))
    everything = [summary, mini, another(summarize(study(2, scale="paper")))]
    pairs = [pair for one in everything for pair in one.comparisons]
    corrected = holm([pair.p for pair in pairs])
    text = words(render_comparison(everything))
    overview = text[: text.index("Each task")]
    for p in corrected:
        assert f"p {p_text(p)}" in overview
    assert any(p > pair.p_holm for p, pair in zip(corrected, pairs, strict=True))
    assert (
        "Holm's correction for the 9 pairs of all tasks on this page. It is larger than on the page" in text
    )
    with pytest.raises(ValueError, match="no studies"):
        render_comparison([])


def test_studies_of_one_title_are_told_apart(summary):
    both = [summary, another(summary)]
    named = words(render_comparison(both, ["here", "there"]))
    assert "cifar10 (quick), here" in named
    assert "cifar10 (quick), there" in named
    assert "cifar10 (quick), study 2" in words(render_comparison(both))
    other = both[1].model_copy(update={"scale": "mini"})
    assert "there" not in words(render_comparison([summary, other], ["here", "there"]))


def test_a_study_is_not_compared_with_itself(summary):
    with pytest.raises(
        ValueError, match=r"^here and there are the same study, with the same runs: name it once\.$"
    ):
        render_comparison([summary, another(summary), summary], ["here", "other", "there"])


def test_an_optimizer_that_was_not_run_is_said(summary):
    alone = summarize([run for run in study(1, scale="mini") if run.optimizer != "adam"])
    text = words(render_comparison([summary, alone]))
    assert "not run" in text[text.index("Tasks and optimizers") : text.index("Every pair")]


def test_on_a_narrow_screen_every_cell_keeps_its_label(both):
    tasks, pairs = Tables(render_comparison(both)).tables[:2]
    for table in (tasks, pairs):
        assert table["class"] == "stack"
        assert all(row == table["headers"] for row in table["rows"][1:])
