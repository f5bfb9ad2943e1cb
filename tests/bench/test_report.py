"""What the report claims: a safe, self-contained, deterministic page."""

import random
import re

import pytest
from matplotlib.figure import Figure
from support.page_reader import Reader, Tables, without_own_script, words
from support.synthetic_runs import MACHINE, another, study, summarize

from dualavg_bench.analysis.verdict import places, verdict
from dualavg_bench.report import figures, study_page
from dualavg_bench.report import page as page_module
from dualavg_bench.report.compare_page import render_comparison
from dualavg_bench.store.results import Curve
from dualavg_bench.store.summaries import Extension, FailedRun, GridSize, Summary, ToTarget

MINUS = "\N{MINUS SIGN}"
EVIL = "<script>alert('x')</script>\"'&amp;{{ 7*7 }}$\\frac{"


@pytest.fixture(scope="module")
def page(summary, runs):
    return study_page.render(summary, runs)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures, for claims about words: drawing takes most of the time."""
    monkeypatch.setattr(study_page, "_figures", lambda *_: {})


@pytest.fixture
def quick_figures(monkeypatch):
    """Figures that are drawn, but not laid out and written as SVG, which takes most of the time."""
    monkeypatch.setattr(figures, "svg", lambda draw, *_, **__: str(draw(Figure().add_subplot()))[:0])


@pytest.fixture
def drawn_as_dots(monkeypatch):
    """Pages with captions, and a dot for each figure."""
    names = ("train", "valid", "differences", "sensitivity", "budget", "time")
    dots = page_module.all_drawn(dict.fromkeys(names, "."))
    monkeypatch.setattr(study_page, "_figures", lambda *_: dots)


def with_entry(summary, name, **changes):
    """The summary with other parts of one optimizer."""
    entry = summary.optimizers[name].model_copy(update=changes)
    return summary.model_copy(update={"optimizers": summary.optimizers | {name: entry}})


def test_the_verdict_comes_first_then_the_lines_to_copy(page, summary):
    text, said = words(page), verdict(summary)
    places = [
        text.index(part)
        for part in (said.headline, said.evidence, said.limits, "Settings to copy", "Results")
    ]
    assert places == sorted(places)


def test_the_verdict_is_made_anew_from_the_numbers(summary, undrawn):
    """A file of an earlier version has its verdict in other words."""
    old = summary.model_copy(update={"verdict": "mda has the best test accuracy."})
    text = words(study_page.render(old))
    assert old.verdict not in text
    assert verdict(summary).headline in text


def test_scores_and_differences_have_one_number_of_digits_and_plus_is_better(page, summary):
    text, digits = words(page), places(summary)
    for name, test in summary.confirmed.items():
        assert f"{name} {test.mean:.{digits}f} ± {test.se:.{digits}f}" in text
    for pair in summary.comparisons:
        interval = f"{pair.low:+.{digits}f} to {pair.high:+.{digits}f}".replace("-", MINUS)
        assert f"{pair.a} over {pair.b} +{pair.difference:.{digits}f} {interval}" in text
    assert f"Target: validation accuracy {summary.target:.{digits}f}." in text
    assert "(n = 23)" in text


def test_a_lower_score_that_is_better_has_a_plus_too(undrawn):
    summary = summarize(study(higher_is_better=False, unit=""))
    pair, digits = summary.comparisons[0], places(summary)
    assert pair.difference < 0
    text = words(study_page.render(summary))
    assert f"{pair.a} over {pair.b} +{-pair.difference:.{digits}f} +{-pair.high:.{digits}f} to " in text


@pytest.mark.parametrize(("report", "other"), [("last", "best"), ("best", "last")])
def test_test_and_training_loss_stand_side_by_side_and_both_networks_are_named(report, other, undrawn):
    runs = study(report=report)
    summary = summarize(runs)
    page = study_page.render(summary, runs)
    headers = Tables(page).tables[0]["headers"]
    assert headers[1] == "test accuracy (%)"
    assert headers[3:5] == ["test loss", "training loss"]
    mda, digits = summary.optimizers["mda"], places(summary)
    decides, shown = (mda.test_last, mda.test_best)[:: 1 if report == "last" else -1]
    text = words(page)
    assert f"mda {decides.mean:.{digits}f} ± {decides.se:.{digits}f} best" in text
    assert f"0.4000 ± 0.0000{mda.train.mean:.4f} ± {mda.train.se:.4f}" in text  # neighbouring cells
    assert f"Scores are of the {report} network of each run" in text
    last, best = "the last step", "the best validation score of the run"
    named = last if other == "last" else best
    assert f"The other network of each run, that of {named}: mda {shown.mean:.{digits}f}" in text


def test_a_metric_that_is_the_loss_has_one_column(undrawn):
    runs = study(metric="loss", higher_is_better=False, unit="")
    assert "test loss" in Tables(study_page.render(summarize(runs), runs)).tables[0]["headers"][1]
    assert Tables(study_page.render(summarize(runs), runs)).tables[0]["headers"].count("test loss") == 1


def to_target(steps, reached):
    return ToTarget(steps=steps, reached=reached, n=5, runs=[])


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (to_target(1200, 5), "6.0 s1,200 steps"),
        (to_target(5, 5), "under 0.1 s5 steps"),
        (to_target(120_000, 4), "10 min120,000 steps, not by 1 of 5"),
        (to_target(None, 2), "not reachedby 3 of 5"),
    ],
)
def test_the_time_to_target_is_shown_with_its_steps_and_the_runs_that_never_reach_it(
    entry, shown, summary, undrawn
):
    cost = summary.times.optimizers["mda"]
    cost = cost.model_copy(update={"step_ms": cost.step_ms.model_copy(update={"median": 5.0})})
    costs = summary.times.optimizers | {"mda": cost}
    timed = with_entry(summary, "mda", to_target=entry).model_copy(
        update={"times": summary.times.model_copy(update={"optimizers": costs})}
    )
    text = words(study_page.render(timed))
    assert shown in text
    assert (
        f"first reaches {summary.target:.{places(summary)}f}, the worst optimizer's mean final score" in text
    )
    assert "no finer than the evaluations" in text


def test_the_size_of_the_optimizer_s_state_is_shown_where_it_was_measured(summary, undrawn):
    text = words(study_page.render(summary))
    assert "8 kB8 bytes per parameter" in text
    assert "4 kB4 bytes per parameter" in text
    old = summary
    for name in summary.optimizers:
        old = with_entry(old, name, state_bytes=None)
    assert "optimizer state" not in Tables(study_page.render(old)).tables[0]["headers"]


def test_a_run_without_a_training_loss_is_not_counted_in_its_mean(undrawn):
    runs = study(confirm_diverges={("adam", 1003)})
    nothing = Curve.model_validate({"step": [], "loss": []})
    early = [
        r.model_copy(update={"train": nothing}) if r.diverged and r.phase == "confirm" else r for r in runs
    ]
    summary = summarize(early)
    train = summary.optimizers["adam"].train
    assert f"± {train.se:.4f} (n = 4)" in words(study_page.render(summary))


def test_a_winner_on_the_edge_is_an_alarm_and_one_inside_is_not(page, summary, runs, undrawn):
    assert "mda may do better than shown. Its best step size, 1, is the largest tried" in words(page)
    chosen = summary.optimizers["mda"].chosen.model_copy(update={"edge": []})
    inside = with_entry(summary, "mda", chosen=chosen)
    assert 'class="alarm"' in page
    assert 'class="alarm"' not in study_page.render(inside, runs)


def test_unequal_budgets_are_an_alarm(summary, runs, undrawn):
    uneven = with_entry(summary, "sgd", grid=GridSize(points=12, runs=24, diverged=0, extended=0))
    assert "Unequal chances. Settings tried: mda 9, sgd 12, adam 9." in words(study_page.render(uneven, runs))


def test_divergences_are_results(page, undrawn):
    text = words(page)
    assert "diverged at step 212 (seed 1003): the training loss is nan" in text
    assert "diverged at step 112 (seed 0), step 262 (seed 1)" in text
    calm = [r for r in study() if not r.diverged]
    # The grid lost some settings with its diverged runs; what is left has nothing to report.
    assert re.search(r"None of the \d+ runs diverged", words(study_page.render(summarize(calm), calm)))


def test_it_says_what_was_run_on_what_and_how_to_repeat_it(page):
    text = words(page)
    for said in (
        "Synthetic CPU @ 2.0 GHz",
        "torch: 2.13.0",
        "seeds 0, 1",
        "dualavg study cifar10 --scale quick",
    ):
        assert said in text


def test_the_page_needs_no_network_and_no_script_but_its_own(page):
    reader = Reader(without_own_script(page))
    assert not {"script", "link", "iframe", "img", "object", "base", "form"} & set(reader.tags)
    for key, value in reader.attributes:
        assert not key.startswith("on")
        if key in ("href", "xlink:href", "src"):
            assert value.startswith("#")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_every_string_from_a_recipe_or_run_is_escaped():
    lrs = {f"pkg.{EVIL}": (0.1, 0.3, 1.0), "sgd": (0.1, 0.3, 1.0)}
    machine = MACHINE.model_copy(update={"cpu": EVIL, "torch": EVIL, "dualavg": EVIL})
    given = {"metric": EVIL, "unit": EVIL, "recipe": EVIL, "why": EVIL, "schedule": EVIL, "machine": machine}
    runs = study(lrs=lrs, packages={EVIL: EVIL}, **given)
    summary = summarize(runs, about=EVIL, paper=EVIL, command=f"dualavg study {EVIL}")
    both = render_comparison([summary, another(summary)], [EVIL, "b"])
    for whole in (study_page.render(summary, runs), both):
        page = without_own_script(whole)
        reader = Reader(page)
        assert "script" not in reader.tags
        assert "alert('x')" in reader.text  # it is there, as text
        assert "49" not in {word.strip("{} ") for word in reader.text.split(EVIL)}
        assert "<script" not in page.lower()


def test_ids_are_unique_and_every_reference_has_its_target(page, summary):
    for text in (page, render_comparison([summary, another(summary)])):
        ids = Reader(text).ids
        assert len(ids) == len(set(ids)) > 100
        targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
        assert targets
        assert targets <= set(ids)


def test_the_same_input_gives_the_same_page_to_the_byte(page, summary, runs):
    again = Summary.model_validate_json(summary.model_dump_json())  # as read back from summary.json
    shuffled = random.Random(0).sample(runs, len(runs))
    assert study_page.render(again, shuffled) == page


def test_a_page_without_runs_has_all_but_the_samples(page, summary, runs):
    assert study_page.render(summary) == page  # these runs have no samples


def test_a_study_of_one_optimizer_one_seed_or_tuning_alone_has_a_page_too(runs, quick_figures):
    alone = [r for r in runs if r.optimizer == "mda"]
    one_seed = [r for r in runs if r.phase == "tune" or r.seed == 1000]
    tuned = [r for r in runs if r.phase == "tune"]
    assert "Every pair" not in words(study_page.render(summarize(alone), alone))
    assert "no test possible" in words(study_page.render(summarize(one_seed), one_seed))
    assert "not confirmed" in words(study_page.render(summarize(tuned), tuned))


def test_on_a_narrow_screen_every_cell_keeps_its_label(page):
    tables = Tables(page).tables
    assert len(tables) == 2  # the others are folded
    for table in tables:
        assert table["class"] == "stack"
        assert len(table["rows"]) > 2
        assert all(row == table["headers"] for row in table["rows"][1:])
    narrow = page[page.index("@media (max-width") : page.index("@media print")]
    hidden = re.findall(r"([\w. ]+) \{ display: none", narrow)
    assert [name.strip() for name in hidden] == [".stack thead", ".stack td.empty"]


def test_on_paper_nothing_is_parted_from_its_heading_or_caption(page):
    paper = page[page.index("@media print") : page.index("</style>")]
    kept = re.search(r"([^{}]*)\{ break-inside: avoid; \}", paper)[1]
    assert {"figure", ".figures", ".line-to-copy", "tr"} <= set(re.split(r"[,\s]+", kept))
    assert re.search(r"h2, h3 \{ break-after: avoid; \}", paper)
    assert re.search(r"\.legend \{ break-after: avoid; \}", paper)


def test_what_a_machine_lacks_is_left_out(summary, undrawn):
    text = words(study_page.render(summary))
    assert "cores: 2; system: Linux" in text
    assert "gpu" not in text
    assert "None" not in text


def test_packages_are_listed_and_pinned_where_there_is_one_version(summary, undrawn):
    packages = {"dualavg": ["0.1"], "madgrad": ["1.3"], "torch": ["2.13.0"], "zoo": ["1.0+cpu"]}
    text = words(study_page.render(summary.model_copy(update={"packages": packages | {"lion": ["1", "2"]}})))
    install = "pip install torch==2.13.0 madgrad==1.3 zoo==1.0 '.[bench]' # in a clone of dualavg 0.1"
    assert f"{install} dualavg study" in text
    assert "madgrad 1.3" in text
    assert "lion 1 and 2" in text
    bare = "pip install torch==2.13.0 '.[bench]' # in a clone of dualavg 0.1 dualavg study"
    assert bare in words(study_page.render(summary))
    old = MACHINE.model_copy(update={"torch": "2.12.0"})
    assert "pip install" not in words(
        study_page.render(summary.model_copy(update={"machines": [MACHINE, old]}))
    )


def test_a_winner_that_never_trained_is_not_in_bold(undrawn):
    runs = study(confirm_diverges={("mda", s) for s in range(1000, 1005)}, untrained=95.0)
    assert "<strong>95." not in study_page.render(summarize(runs), runs)


def test_all_that_tie_for_the_best_are_in_bold(undrawn):
    runs = study()
    for r in runs:
        if r.phase == "confirm" and r.optimizer != "adam":
            r.test["accuracy"] = 95.0 + (r.seed - 1002) * (1 if r.optimizer == "mda" else -1)
    text = study_page.render(summarize(runs), runs)
    assert text.count("<strong>95.00 ± 0.71</strong>") == 2
    assert words(text).count("tied for best") == 2


def test_one_is_one_and_what_was_added_is_said_where_it_was_added(summary, undrawn):
    one = with_entry(summary, "sgd", grid=GridSize(points=1, runs=1, diverged=0, extended=1))
    text = words(study_page.render(one))
    assert "linear: 1 setting, 1 run, 1 setting added because a best lr was the smallest or largest" in text
    assert "linear: 9 settings, 18 runs, 2 diverged" in text


def test_an_optimizer_without_result_is_said_loudly_and_why(undrawn):
    failure = {"lr": 0.1, "weight_decay": 0.0, "schedule": "linear", "run": "ab", "why": f"it raised {EVIL}"}
    failures = [
        FailedRun(**failure, optimizer="sgd", seed=1000, phase="confirm"),
        FailedRun(**failure, optimizer="x.Lion", seed=0, phase="tune"),
    ]
    runs = [r for r in study() if r.phase == "tune" or r.optimizer != "sgd"]
    summary = summarize(runs, failures=failures)
    page = study_page.render(summary, runs)
    text = words(page)
    assert "sgd: no result. 1 of its runs failed, so it was not confirmed; see Failures." in text
    assert "x.Lion: no result. 1 of its runs failed, so it was not tuned on as many points" in text
    assert page.count('class="number"><span>no result<') == 2
    assert re.search(
        r"x\.Lion *tuning *lr 0\.1, weight decay 0, linear, seed 0 *it raised <script>alert", text
    )
    assert "NO RESULT: sgd, because 1 run failed (it raised" in summary.verdict
    assert "script" not in Reader(without_own_script(page)).tags
    assert [pair.b for pair in summary.comparisons] == ["adam"]


def test_an_edge_that_was_not_extended_says_so(undrawn):
    for extension, reason in (
        (Extension(allowed=False, rounds=0, most=3), "grids were not extended (--no-extend)."),
        (Extension(allowed=True, rounds=1, most=1), "grids were extended once, the maximum."),
    ):
        page = words(study_page.render(summarize(study(), extension=extension)))
        assert f"a larger one may be better; {reason}" in page


def test_the_cost_says_what_was_measured_and_under_which_load(summary, drawn_as_dots):
    def page(workers=None, gpu=None):
        times = summary.times.model_copy(update={"workers": workers})
        machines = [MACHINE.model_copy(update={"gpu": gpu})]
        return words(study_page.render(summary.model_copy(update={"times": times, "machines": machines})))

    assert "On the machine below, with 4 workers at the same time" in page(workers=4)
    assert "On the machine below, one run at a time" in page(workers=1)
    assert "On the machine below, other runs may have shared it" in page()
    assert "Peak memory of the whole process, median: adam 448 MB, mda 436 MB, sgd 436 MB." in page()
    assert "Peak memory on the GPU, as torch allocated it, median:" in page(gpu="A100")


@pytest.mark.parametrize(("higher", "end"), [(True, "bottom"), (False, "top")])
def test_explanations_name_the_end_at_which_crosses_and_carets_are(higher, end, drawn_as_dots):
    text = words(study_page.render(summarize(study(higher_is_better=higher))))
    assert f"At the {end}, at a different height for each optimizer: a cross" in text
    assert f"to about {figures.REACH} times the distance of the median one" in text
    assert f"A hollow caret at the {end}: outside the plot" in text


def test_the_command_to_run_it_again_explains_its_data_folder(summary, undrawn):
    other = summary.model_copy(update={"command": "dualavg study a.py --scale mini --data DIR"})
    assert "--data DIR DIR is the folder that holds the data set." in words(study_page.render(other))
    assert "DIR" not in words(study_page.render(summary))
