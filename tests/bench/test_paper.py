"""The paper's claims against ours: every row, each verdict, sceptical ones as plainly as flattering ones."""

import importlib
import re
from pathlib import Path

import pytest
from support.page_reader import words
from support.paper_study import study
from support.synthetic_runs import summarize

from dualavg_bench import reproduction
from dualavg_bench.analysis import paper, statistics
from dualavg_bench.recipe.loading import load, scales_of
from dualavg_bench.recipes import builtin
from dualavg_bench.report import paper_page
from dualavg_bench.store.documents import write_document
from dualavg_bench.store.results import Curve

TEX = Path(__file__).parents[3] / "shared" / "paper.tex"


def verdicts(recipe, **arguments):
    return {
        (row.claim.a, row.claim.b, row.claim.split): row.verdict
        for row in paper.judge({recipe: summarize(study(recipe, **arguments))})
        if row.claim.recipe == recipe
    }


def test_every_experiment_of_the_paper_is_a_recipe_and_the_reverse():
    scales = {name: scales_of(importlib.import_module(path)) for name, path in builtin().items()}
    assert set(paper.RECIPES) == {name for name, offered in scales.items() if "paper" in offered}
    assert {claim.recipe for claim in paper.CLAIMS} == set(paper.RECIPES)
    assert {score.recipe for score in paper.SCORES} <= set(paper.RECIPES)


@pytest.mark.parametrize("name", paper.RECIPES)
def test_metric_unit_and_part_of_the_paper_are_the_recipe_s_own(name):
    recipe, _ = load(name, "quick")
    assert paper.METRICS[name] == (recipe.metric.name, recipe.metric.unit)
    assert {claim.where for claim in paper.CLAIMS if claim.recipe == name} == {recipe.paper}


@pytest.mark.skipif(not TEX.exists(), reason="the paper's text is not beside the project")
def test_every_score_stands_in_the_paper():
    text = TEX.read_text()
    for score in paper.SCORES:
        if (score.recipe, score.optimizer) == ("cifar10", "sgd"):
            continue  # 95.58 - 0.36: the text gives the difference
        printed = rf"{score.printed}\pm{score.se}" if score.se else score.printed
        assert re.search(rf"(?<![\d.]){re.escape(printed)}(?!\d)", text), score
        assert f"{score.printed}0" not in text  # to the last digit


def test_a_claim_says_no_more_than_the_direction_that_is_judged():
    """`roberta: SGD fails` must not agree because SGD was a little worse."""
    for claim in paper.CLAIMS:
        assert not re.search(r"fail|far|badly|slight|little|match|signific|within|more", claim.text), claim
        if claim.relation == "equal":
            assert "are equal" in claim.text
        elif "averaging" not in claim.text and "lambda" not in claim.text:
            assert re.search("is (better|worse) than", claim.text)
    strong = {(c.recipe, c.a, c.b): c.words for c in paper.CLAIMS if c.words}
    assert strong["roberta", "adam", "sgd"] == "it fails"
    assert strong["imagenet", "mda", "adam"] == "it trails far behind"


def test_differences_follow_from_the_scores():
    values = {(score.recipe, score.optimizer): score.value for score in paper.SCORES}
    for claim in paper.CLAIMS:
        a, b = values.get((claim.recipe, claim.a)), values.get((claim.recipe, claim.b))
        if claim.by is not None:
            assert abs(a - b) == pytest.approx(claim.by, abs=1e-9), claim
            lower = claim.recipe in ("roberta", "wikitext103")
            assert (a < b) == lower, claim


def test_a_claimed_difference_agrees_disagrees_or_is_undecided():
    key = ("mda", "sgd", "test")
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 94.0})[key] == "agrees"
    assert verdicts("cifar10", scores={"mda": 94.0, "sgd": 95.0})[key] == "disagrees"
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 95.0})[key] == "undecided"
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 94.0}, n=1)[key] == "no test"
    assert verdicts("cifar10", scores={"mda": 95.0})[key] == "not run"


def test_lower_perplexity_is_better():
    key = ("mda", "adam", "test")
    assert verdicts("wikitext103", scores={"mda": 31.0, "adam": 33.0}, higher=False)[key] == "agrees"
    assert verdicts("wikitext103", scores={"mda": 33.0, "adam": 31.0}, higher=False)[key] == "disagrees"


def test_a_claim_of_equal_is_never_confirmed_by_a_test_that_is_blind():
    """With noise that hides a difference, no difference is found, and nothing is claimed."""
    key = ("mda", "adam", "test")
    assert verdicts("fastmri", scores={"mda": 0.9, "adam": 0.9}, noise=1e-4)[key] == "agrees"
    assert verdicts("fastmri", scores={"mda": 0.9, "adam": 0.9}, noise=0.1)[key] == "undecided"
    for scores in ({"mda": 5.0, "adam": 0.9}, {"mda": 0.9, "adam": 5.0}):
        assert verdicts("fastmri", scores=scores)[key] == "disagrees"


def test_a_lower_training_loss_is_better_whatever_the_metric():
    scores = {"mda": 30.0, "adam": 40.0}
    for higher in (True, False):
        low = verdicts("wikitext103", scores=scores, higher=higher, train={"mda": 3.0, "adam": 2.0})
        assert low["adam", "mda", "train"] == "agrees"
        high = verdicts("wikitext103", scores=scores, higher=higher, train={"mda": 2.0, "adam": 3.0})
        assert high["adam", "mda", "train"] == "disagrees"


def test_a_run_that_diverged_before_its_first_training_loss_admits_no_test_of_it():
    runs = study("wikitext103", {"mda": 30.0, "adam": 40.0}, higher=False)
    *others, last = runs
    early = {"status": "diverged", "diverged_at": 1, "train": Curve.model_validate({"step": [], "loss": []})}
    runs = [*others, last.model_copy(update=early)]
    judged = paper.judge({"wikitext103": summarize(runs)})
    rows = {(row.claim.a, row.claim.split): row for row in judged if row.n}
    assert rows["adam", "train"].verdict == "no test"
    assert rows["mda", "test"].verdict == "agrees"
    assert "no test" in words(paper_page.render("quick", {"wikitext103": (summarize(runs), runs)}, {}, {}))


def test_p_is_corrected_over_all_claims_of_the_page():
    studies = {
        "cifar10": summarize(study("cifar10", {"mda": 95.0, "sgd": 94.9})),
        "imagenet": summarize(study("imagenet", {"mda": 70.0, "sgd": 69.9, "adam": 69.9})),
    }
    rows = [row for row in paper.judge(studies) if row.n]
    assert len(rows) == 4
    assert [row.p_holm for row in rows] == statistics.holm([row.p for row in rows])
    alone = next(row for row in paper.judge({"cifar10": studies["cifar10"]}) if row.n)
    assert alone.p_holm < rows[0].p_holm


def test_the_sentence_counts_every_claim():
    rows = paper.judge({"cifar10": summarize(study("cifar10", {"mda": 94.0, "sgd": 95.0}))})
    said = paper.finding(rows, "quick")
    assert "1 disagrees; " in said
    assert sum(map(int, re.findall(r"\d+", said.partition(":")[2]))) == len(paper.CLAIMS)


def test_claims_for_mda_are_counted_apart():
    """13 say that MDA is better or as good: not that Adam is better, nor what holds between two others."""
    rows = paper.judge({"cifar10": summarize(study("cifar10", {"mda": 94.0, "sgd": 95.0}))})
    said = paper.finding_for_mda(rows)
    assert said == "Of the 13 which say that MDA is better or as good: 1 disagrees; 12 were not run."


@pytest.fixture
def page():
    runs = study(
        "iwslt14", {"mda": 30.0, "adam": 31.0, "sgd": 20.0}, train={"mda": 3.0, "adam": 3.0, "sgd": 4.0}
    )
    studies = {"iwslt14": (summarize(runs, paper="<b>Section</b>"), runs)}
    return paper_page.render("mini", studies, {"iwslt14": "iwslt14-mini/report.html"}, {"fastmri": "No <i>."})


def test_the_page_has_every_row_and_every_claim(page):
    text = words(page)
    for claim in paper.CLAIMS:
        assert claim.text in text
        assert not claim.words or f"the paper: {claim.words}" in text
    for score in paper.SCORES:
        assert score.printed in text
    assert text.count("not run") >= len(paper.RECIPES) - 1
    assert "disagrees" in text
    for printed in ("34.10 ± 0.13", "90.80"):  # with every digit of the paper's
        assert printed in text
    assert 'href="iwslt14-mini/report.html"' in page


def test_the_page_says_what_is_judged_and_what_sgd_is(page):
    text = words(page)
    assert "Only the direction is judged of a difference, not the size" in text
    assert "Undecided: neither; more seeds may decide it." in text
    assert "accuracy 1 point, ssim 0.005, bleu 1 point, perplexity 3%, training loss 3%; those in %" in text
    assert "Our sgd is SGD with momentum 0.9 in every experiment" in text


def test_every_optimizer_of_a_claim_has_a_row_with_its_metric_though_nothing_was_run():
    rows = {(row.recipe, row.optimizer): row for row in paper.table({})}
    for claim in paper.CLAIMS:
        for name in (claim.a, claim.b):
            row = rows[claim.recipe, name]
            assert (row.metric, row.unit) == paper.METRICS[claim.recipe]
    text = words(paper_page.render("mini", {}, {}, {}))
    dash = paper_page.DASH
    for name in ("mda", "sgd", "adam"):
        assert f"imagenet, accuracy (%){name} {dash} not run{dash}" in text
    assert "fastmri, ssimmda 0.48844of one slice, figure 2 not run" in text


def test_the_figures_of_a_study_stand_two_and_two(page):
    assert page.count("<figure>") == 4


def test_the_page_says_what_is_missing_and_escapes_it(page):
    assert "fastmri is not complete. No <i>." in words(page)
    assert "<i>" not in page
    assert "<b>" not in page


def published(folder, **studies):
    """Summaries as they are published: one file for each."""
    for name, runs in studies.items():
        write_document(folder / f"{name}.json", summarize(runs))
    return sorted(folder.glob("*.json"))


def test_the_page_is_made_from_summaries_alone(tmp_path):
    files = published(
        tmp_path / "results",
        cifar10=study("cifar10", {"mda": 95.0, "sgd": 94.0}),
        fastmri=study("fastmri", {"mda": 0.9, "adam": 0.9, "sgd": 0.8}, noise=1e-4),
    )
    (tmp_path / "results" / "fastmri.html").write_text("")
    page = tmp_path / "pages" / "paper.html"
    judgements = reproduction.write_page(files, page)
    assert [row.verdict for row in judgements if row.n] == ["agrees"] * 4
    text = page.read_text()
    assert 'href="../results/fastmri.html"' in text
    assert text.count("Its own page") == 1  # the other study has none
    assert "at quick scale: 4 agree; 17 were not run." in words(text)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("other", {}, "another summary of cifar10"),
        ("imagenet", {"recipe": "imagenet", "scale": "mini"}, "studies at one scale, got mini, quick"),
        ("mnist", {"recipe": "mnist"}, "mnist is no experiment of the paper"),
    ],
)
def test_summaries_that_do_not_belong_on_one_page_are_refused(name, changes, message, tmp_path):
    runs = study("cifar10", {"mda": 95.0, "sgd": 94.0})
    files = published(tmp_path, cifar10=runs)
    other = summarize(runs).model_copy(update=changes)
    write_document(tmp_path / f"{name}.json", other)
    with pytest.raises(ValueError, match=message):
        reproduction.write_page([*files, tmp_path / f"{name}.json"], tmp_path / "paper.html")
    assert not (tmp_path / "paper.html").exists()


def test_a_claim_of_equal_shows_its_margin_interval_and_n():
    train = {"mda": 3.0, "adam": 3.03, "sgd": 4.0}
    one = summarize(study("iwslt14", {"mda": 30.0, "adam": 31.0, "sgd": 20.0}, train=train))
    text = words(paper_page.render("mini", {"iwslt14": (one, ())}, {}, {}))
    row = next(r for r in paper.judge({"iwslt14": one}) if r.claim.split == "train")
    assert (row.n, row.verdict) == (5, "agrees")
    interval = f"{row.low:+.4f} to {row.high:+.4f}".replace("-", "\N{MINUS SIGN}")
    shown = re.escape(f"{interval}margin ±{row.margin:.4f} (3%)")
    assert re.search(rf"\(5\)\s*{shown}", text)
    assert "(margin ±1)" in text  # of imagenet, which was not run
    assert text.count("margin ±") == sum(claim.relation == "equal" for claim in paper.CLAIMS)


@pytest.mark.parametrize(
    ("scores", "theirs"), [({"mda": 2.0, "adam": 1.0}, "> 0"), ({"mda": 2.0, "sgd": 1.0}, "equal")]
)
def test_a_claim_without_a_number_shows_what_the_difference_has_to_be(scores, theirs):
    one = summarize(study("imagenet", scores))
    text = words(paper_page.render("mini", {"imagenet": (one, ())}, {}, {}))
    assert re.search(rf" {theirs} \+[\d.]+ \(5\)", text)


def test_miniatures_are_called_a_fair_picture_whose_sizes_are_not_the_paper_s():
    for scale in ("quick", "mini"):
        caution = paper_page.CAUTIONS[scale]
        assert "keeps the paper's regime" in caution
        assert "Directions can be compared with the paper's, sizes cannot." in caution
    assert "a fair picture of the method on small tasks" in paper_page.CAUTIONS["quick"]
