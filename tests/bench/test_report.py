"""What the report claims: a safe, self-contained, deterministic page."""

import copy
import html
import json
import re

import pytest
from support.page_reader import Reader, Tables, words
from support.synthetic_runs import study

from dualavg_bench.analysis import statistics
from dualavg_bench.analysis.formatting import p_text
from dualavg_bench.report import study_page

MINUS = "\N{MINUS SIGN}"
EVIL = "<script>alert('x')</script>\"'&amp;{{ 7*7 }}$\\frac{"


@pytest.fixture(scope="module")
def page(summary, runs):
    return study_page.render(summary, runs)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures, for claims about words: drawing takes most of the time."""
    monkeypatch.setattr(study_page, "_figures", lambda *_: {})


def another(summary):
    """The same study as if other runs had made it."""
    return json.loads(re.sub(r'"[0-9a-f]{16}"', lambda name: f'"{name[0][1:-1][::-1]}"', json.dumps(summary)))


def test_the_verdict_comes_first(page, summary):
    text = words(page)
    assert text.index(summary["verdict"]) < text.index("Test accuracy (%)") < text.index("Paired differences")


def test_scores_and_differences_stand_there_with_their_n(page, summary):
    text = words(page)
    test = summary["optimizers"]["mda"]["test"]
    assert f"{test['mean']:.2f} ± {test['se']:.2f}" in text
    pair = summary["comparisons"][0]
    assert f"mda {MINUS} sgd (5) +{pair['difference']:.2f} +{pair['low']:.2f} to +{pair['high']:.2f}" in text
    assert "(n = 23)" in text
    assert "1 of 5" in text


def test_a_winner_on_the_edge_is_an_alarm_and_one_inside_is_not(page, summary, runs, undrawn):
    assert "mda: best step size on the edge of its grid." in words(page)
    inside = copy.deepcopy(summary)
    for entry in inside["optimizers"].values():
        entry["chosen"]["edge"] = []
    assert 'class="alarm"' in page
    assert 'class="alarm"' not in study_page.render(inside, runs)


def test_unequal_budgets_are_an_alarm(summary, runs, undrawn):
    uneven = copy.deepcopy(summary)
    uneven["optimizers"]["sgd"]["grid"]["points"] = 12
    assert "Unequal budgets. Grid points tried: mda 9, sgd 12, adam 9." in words(
        study_page.render(uneven, runs)
    )


def test_divergences_are_results(page, undrawn):
    text = words(page)
    assert "diverged at step 212 (seed 1003): the training loss is nan" in text
    assert "diverged at step 112 (seed 0), step 262 (seed 1)" in text
    calm = [r for r in study() if r["status"] != "diverged"]
    # The grid lost some settings with its diverged runs; what is left has nothing to report.
    assert re.search(
        r"None of the \d+ runs diverged", words(study_page.render(statistics.summarize(calm), calm))
    )


def test_it_says_what_was_run_on_what_and_how_to_repeat_it(page):
    text = words(page)
    for said in (
        "Synthetic CPU @ 2.0 GHz",
        "torch: 2.13.0",
        "seeds 0, 1",
        "dualavg study cifar10 --scale quick",
    ):
        assert said in text


def test_the_page_needs_no_network_and_no_script(page):
    reader = Reader(page)
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
    runs = study(lrs=lrs, metric=EVIL, unit=EVIL, recipe=EVIL, scale=EVIL, why=EVIL, schedule=EVIL)
    for r in runs:
        r["machine"] = {EVIL: EVIL}
    summary = statistics.summarize(runs, about=EVIL, paper=EVIL)
    both = study_page.render_comparison([summary, another(summary)], [EVIL, "b"])
    for page in (study_page.render(summary, runs, command=EVIL), both):
        reader = Reader(page)
        assert "script" not in reader.tags
        assert "alert('x')" in reader.text  # it is there, as text
        assert "49" not in {word.strip("{} ") for word in reader.text.split(EVIL)}
        assert "<script" not in page.lower()


def test_ids_are_unique_and_every_reference_has_its_target(page, summary):
    for text in (page, study_page.render_comparison([summary, another(summary)])):
        ids = Reader(text).ids
        assert len(ids) == len(set(ids)) > 100
        targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
        assert targets
        assert targets <= set(ids)


def test_the_same_input_gives_the_same_page_to_the_byte(page, summary, runs):
    again = json.loads(json.dumps(summary))  # as read back from summary.json
    assert study_page.render(again, list(reversed(runs))) == page


def test_a_page_without_runs_has_all_but_the_curves(summary):
    text = words(study_page.render(summary))
    assert "Training loss at the chosen" not in text
    assert "Step-size sensitivity" in text


def test_a_study_of_one_optimizer_one_seed_or_tuning_alone_has_a_page_too(runs):
    alone = [r for r in runs if r["optimizer"] == "mda"]
    one_seed = [r for r in runs if r["phase"] == "tune" or r["seed"] == 1000]
    tuned = [r for r in runs if r["phase"] == "tune"]
    assert "Paired differences" not in words(study_page.render(statistics.summarize(alone), alone))
    assert "no test possible" in words(study_page.render(statistics.summarize(one_seed), one_seed))
    assert "not confirmed" in words(study_page.render(statistics.summarize(tuned), tuned))


def test_the_comparison_corrects_over_all_studies(summary):
    others = [statistics.summarize(study(seed, scale=f"s{seed}")) for seed in (1, 2)]
    for other in others:
        other["runs"] = {f"{other['scale']}{name}": run for name, run in other["runs"].items()}
    everything = [summary, *others]
    pairs = [pair for one in everything for pair in one["comparisons"]]
    corrected = statistics.holm([pair["p"] for pair in pairs])
    text = words(study_page.render_comparison(everything))
    overview = text[: text.index(html.unescape(summary["verdict"]))]
    assert overview.count(f"mda {MINUS} sgd (5)") == 3
    for p in corrected:
        assert p_text(p).removeprefix("= ") in overview
    assert any(p > pair["p_holm"] for p, pair in zip(corrected, pairs, strict=True))
    with pytest.raises(ValueError, match="no studies"):
        study_page.render_comparison([])


def test_studies_of_one_title_are_told_apart(summary, undrawn):
    both = [summary, another(summary)]
    named = words(study_page.render_comparison(both, ["here", "there"]))
    assert "cifar10 (quick), here" in named
    assert "cifar10 (quick), there" in named
    assert "cifar10 (quick), study 2" in words(study_page.render_comparison(both))
    other = {**both[1], "scale": "mini"}
    assert "there" not in words(study_page.render_comparison([summary, other], ["here", "there"]))
    assert "6 pairs of all studies on this page, and so is larger than in the study's own table" in named


def test_a_study_is_not_compared_with_itself(summary):
    with pytest.raises(ValueError, match=r"^here and there are the same study, run for run: name it once\.$"):
        study_page.render_comparison([summary, another(summary), summary], ["here", "other", "there"])


def test_on_a_narrow_screen_every_cell_keeps_its_label(page, summary, undrawn):
    tables = Tables(page).tables
    assert len(tables) == 4
    for table in tables:
        assert table["class"] == "stack"
        assert len(table["rows"]) > 2
        assert all(row == table["headers"] for row in table["rows"][1:])
    comparison = Tables(study_page.render_comparison([summary, another(summary)])).tables
    assert comparison[0]["rows"][1] == ["optimizer", "cifar10 (quick), study 1", "cifar10 (quick), study 2"]
    assert all(row == comparison[1]["headers"] for row in comparison[1]["rows"][1:])
    narrow = page[page.index("@media (max-width") : page.index("@media print")]
    hidden = re.findall(r"([\w. ]+) \{ display: none", narrow)
    assert [name.strip() for name in hidden] == [".stack thead", ".stack td.empty"]


def test_on_paper_nothing_is_parted_from_its_heading_or_caption(page):
    paper = page[page.index("@media print") : page.index("</style>")]
    kept = re.search(r"([^{}]*)\{ break-inside: avoid; \}", paper)[1]
    assert {"figure", ".figures", ".beside", "tr"} <= set(re.split(r"[,\s]+", kept))
    assert re.search(r"h2, h3 \{ break-after: avoid; \}", paper)
    assert re.search(r"figcaption \{ break-before: avoid; \}", paper)


def test_what_a_machine_lacks_is_left_out(summary, undrawn):
    bare = {**summary, "machines": [{"cores": 2, "gpu": None, "torch": "2.13.0"}]}
    text = words(study_page.render(bare))
    assert "cores: 2; torch: 2.13.0" in text
    assert "gpu" not in text
    assert "None" not in text


def test_packages_are_listed_and_pinned_where_there_is_one_version(summary, undrawn):
    packages = {"dualavg": ["0.1"], "madgrad": ["1.3"], "torch": ["2.13.0"], "zoo": ["1.0+cpu"]}
    text = words(study_page.render({**summary, "packages": packages | {"lion": ["1", "2"]}}))
    install = "pip install torch==2.13.0 madgrad==1.3 zoo==1.0 '.[bench]' # in a clone of dualavg 0.1"
    assert f"{install} dualavg study" in text
    assert "madgrad 1.3" in text
    assert "lion 1 and 2" in text
    older = {key: value for key, value in summary.items() if key != "packages"}
    bare = "pip install torch==2.13.0 '.[bench]' # in a clone of dualavg 0.1 dualavg study"
    assert bare in words(study_page.render(older))


def test_a_winner_that_never_trained_is_not_in_bold(undrawn):
    runs = study(confirm_diverges={("mda", s) for s in range(1000, 1005)}, untrained=95.0)
    assert "<strong>95." not in study_page.render(statistics.summarize(runs), runs)


def test_all_that_tie_for_the_best_are_in_bold(undrawn):
    runs = study()
    for r in runs:
        if r["phase"] == "confirm" and r["optimizer"] != "adam":
            r["test"]["accuracy"] = 95.0 + (r["seed"] - 1002) * (1 if r["optimizer"] == "mda" else -1)
    text = study_page.render(statistics.summarize(runs), runs)
    assert text.count("<strong>95.00 ± 0.71</strong>") == 2
    assert words(text).count("tied for best") == 2


def test_one_is_one_and_what_was_added_is_said_where_it_was_added(summary, undrawn):
    one = copy.deepcopy(summary)
    one["optimizers"]["sgd"]["grid"] = {"points": 1, "runs": 1, "diverged": 0, "extended": 1}
    text = words(study_page.render(one))
    assert "linear: 1 point, 1 run, 1 point added because a best lay on an edge" in text
    assert "linear: 9 points, 18 runs, 2 diverged" in text


def test_an_optimizer_without_result_is_said_loudly_and_why(undrawn):
    failure = {"lr": 0.1, "weight_decay": 0.0, "schedule": "linear", "run": "ab", "why": f"it raised {EVIL}"}
    failures = [
        {**failure, "optimizer": "sgd", "seed": 1000, "phase": "confirm"},
        {**failure, "optimizer": "x.Lion", "seed": 0, "phase": "tune"},
    ]
    runs = [r for r in study() if r["phase"] == "tune" or r["optimizer"] != "sgd"]
    summary = statistics.summarize(runs, failures=failures)
    page = study_page.render(summary, runs)
    text = words(page)
    assert "sgd: without result. 1 of its runs failed, so that it was not confirmed; see Failures." in text
    assert "x.Lion: without result. 1 of its runs failed, so that it was not tuned on as many points" in text
    assert text.count("no result") == 2
    assert re.search(
        r"x\.Lion *tuning *lr 0\.1, weight decay 0, linear, seed 0 *it raised <script>alert", text
    )
    assert "WITHOUT RESULT: sgd, of which 1 run failed (it raised" in summary["verdict"]
    assert "script" not in Reader(page).tags
    assert [pair["b"] for pair in summary["comparisons"]] == ["adam"]


def test_an_edge_that_was_not_extended_says_so(undrawn):
    runs = study()
    kept = statistics.summarize(runs, extension={"allowed": False, "rounds": 0, "most": 3})
    assert "not its best: grids were not extended (--no-extend)." in words(study_page.render(kept, runs))
    assert "not its best." in words(study_page.render(statistics.summarize(runs), runs))


def test_the_cost_says_what_was_measured_and_under_which_load(summary, runs):
    def said(**times):
        return words(study_page.render({**summary, "times": summary["times"] | times}))

    assert "On the machine below, with 4 workers at once" in said(workers=4)
    assert "On the machine below, one run at a time" in said(workers=1)
    older = said()
    assert "On the machine below, other runs may have shared it" in older
    assert "of the whole process: Python, torch, data, network and activations" in older
    gpu = {**summary, "machines": [{"gpu": "A100"}]}
    assert "of what torch allocated on the GPU" in words(study_page.render(gpu))


def test_the_command_to_run_it_again_explains_its_data_folder(summary, undrawn):
    text = words(study_page.render({**summary, "command": "dualavg study a.py --scale mini --data DIR"}))
    assert "--data DIR DIR is the folder that holds the data set." in text
    assert "DIR" not in words(study_page.render(summary))
    assert "--optimizers adam,mda,sgd --data DIR" in words(study_page.render({**summary, "scale": "mini"}))


def test_writing_goes_through_the_given_function(summary, runs, page, tmp_path):
    seen = []
    path = tmp_path / "report.html"
    assert study_page.write_report(summary, runs, path, write=lambda *a: seen.append(a)) == path
    assert seen == [(path, page)]
    study_page.compare_report([summary], path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
