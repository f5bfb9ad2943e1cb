"""The paper's claims against ours: every row, each verdict, sceptical ones as plainly as flattering ones."""

import random
import re
from pathlib import Path

import pytest
from page_reader import words
from synthetic_runs import run

from dualavg_bench import cli, commands, paper, reproduction, stats
from dualavg_bench.recipe import RecipeError
from dualavg_bench.recipes import builtin

TEX = Path(__file__).parents[2] / "shared" / "paper.tex"


def study(recipe, scores, n=5, higher=True, train=None):
    """Runs of a study whose optimizers have these test scores, give or take a little, the same for a seed."""
    runs = []
    for name, score in scores.items():
        kind = {"recipe": recipe, "higher_is_better": higher, "metric": "accuracy"}
        runs.append(run(name, 1.0, 0, "tune", score, **kind))
        for seed in range(n):
            wiggle = random.Random(f"{name} {seed}").gauss(0, 0.01)
            made = run(name, 1.0, 1000 + seed, "confirm", score, test_score=score + wiggle, **kind)
            if train:
                made["train"] = {"step": [10, 20], "loss": [9.0, train[name] + wiggle]}
            runs.append(made)
    return runs


def verdicts(recipe, **arguments):
    return {
        (row["a"], row["b"], row["split"]): row["verdict"]
        for row in paper.judge({recipe: study(recipe, **arguments)})
        if row["recipe"] == recipe
    }


def test_every_experiment_of_the_paper_is_a_recipe_and_the_reverse():
    assert set(paper.RECIPES) == set(builtin())
    assert {claim.recipe for claim in paper.CLAIMS} == set(paper.RECIPES)
    assert {score.recipe for score in paper.SCORES} <= set(paper.RECIPES)


@pytest.mark.skipif(not TEX.exists(), reason="the paper's text is not beside the project")
def test_every_score_stands_in_the_paper():
    text = TEX.read_text()
    for score in paper.SCORES:
        if (score.recipe, score.optimizer) != (
            "cifar10",
            "sgd",
        ):  # 95.58 - 0.36: the text gives the difference
            assert f"{score.value:g}" in text.replace("90.80", "90.8"), score
        if score.se:
            assert rf"{score.value:.2f}\pm{score.se}" in text


def test_differences_follow_from_the_scores():
    values = {(score.recipe, score.optimizer): score.value for score in paper.SCORES}
    for claim in paper.CLAIMS:
        a, b = values.get((claim.recipe, claim.a)), values.get((claim.recipe, claim.b))
        if claim.by is not None:
            assert abs(a - b) == pytest.approx(claim.by, abs=1e-9), claim
            lower = claim.recipe in ("roberta", "wikitext103")
            assert (a < b) == lower, claim


def test_a_claimed_difference_agrees_disagrees_or_is_noise():
    key = ("mda", "sgd", "test")
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 94.0})[key] == "agrees"
    assert verdicts("cifar10", scores={"mda": 94.0, "sgd": 95.0})[key] == "disagrees"
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 95.0})[key] == "within noise"
    assert verdicts("cifar10", scores={"mda": 95.0, "sgd": 94.0}, n=1)[key] == "no test"
    assert verdicts("cifar10", scores={"mda": 95.0})[key] == "not run"


def test_lower_perplexity_is_better():
    key = ("mda", "adam", "test")
    assert verdicts("wikitext103", scores={"mda": 31.0, "adam": 33.0}, higher=False)[key] == "agrees"
    assert verdicts("wikitext103", scores={"mda": 33.0, "adam": 31.0}, higher=False)[key] == "disagrees"


def test_likeness_is_not_told_apart_or_disagrees_but_is_never_shown():
    key = ("mda", "adam", "test")
    scores = [{"mda": 0.9, "adam": 0.9}, {"mda": 5.0, "adam": 0.9}, {"mda": 0.9, "adam": 5.0}]
    assert [verdicts("fastmri", scores=s)[key] for s in scores] == [
        *("not told apart", "disagrees", "disagrees")
    ]


def test_a_lower_training_loss_is_better_whatever_the_metric():
    scores = {"mda": 30.0, "adam": 40.0}
    for higher in (True, False):
        low = verdicts("wikitext103", scores=scores, higher=higher, train={"mda": 3.0, "adam": 2.0})
        assert low["adam", "mda", "train"] == "agrees"
        high = verdicts("wikitext103", scores=scores, higher=higher, train={"mda": 2.0, "adam": 3.0})
        assert high["adam", "mda", "train"] == "disagrees"


def test_p_is_corrected_over_all_claims_of_the_page():
    studies = {
        "cifar10": study("cifar10", {"mda": 95.0, "sgd": 94.9}),
        "imagenet": study("imagenet", {"mda": 70.0, "sgd": 69.9, "adam": 69.9}),
    }
    rows = [row for row in paper.judge(studies) if row["n"]]
    assert len(rows) == 4
    assert [row["p_holm"] for row in rows] == stats.holm([row["p"] for row in rows])
    alone = next(row for row in paper.judge({"cifar10": studies["cifar10"]}) if row["n"])
    assert alone["p_holm"] < rows[0]["p_holm"]


def test_the_sentence_counts_every_claim():
    rows = paper.judge({"cifar10": study("cifar10", {"mda": 94.0, "sgd": 95.0})})
    said = paper.finding(rows, "quick")
    assert "1 disagrees, " in said
    assert sum(map(int, re.findall(r"\d+", said.partition(":")[2]))) == len(paper.CLAIMS)


@pytest.fixture
def page():
    runs = study(
        "iwslt14", {"mda": 30.0, "adam": 31.0, "sgd": 20.0}, train={"mda": 3.0, "adam": 3.0, "sgd": 4.0}
    )
    studies = {"iwslt14": (stats.summarize(runs, paper="<b>Section</b>"), runs)}
    return reproduction.render(
        "mini", studies, {"iwslt14": "iwslt14-mini/report.html"}, {"fastmri": "No <i>."}
    )


def test_the_page_has_every_row_and_every_claim(page):
    text = words(page)
    for claim in paper.CLAIMS:
        assert claim.says in text
    for score in paper.SCORES:
        assert f"{score.value:g}" in text
    assert text.count("not run") >= len(paper.RECIPES) - 1
    assert "disagrees" in text
    assert "34.1 ± 0.13" in text
    assert 'href="iwslt14-mini/report.html"' in page


def test_the_page_says_what_is_missing_and_escapes_it(page):
    assert "fastmri was not run to its end. No <i>." in words(page)
    assert "<i>" not in page
    assert "<b>" not in page


def test_one_study_that_fails_does_not_keep_the_others_from_running(tmp_path, monkeypatch, capsys):
    def run_study(name, scale, *, out, **_):
        if name == "imagenet":
            raise RecipeError("There is no ImageNet here.")
        runs = study(name, {"mda": 30.0, "adam": 31.0, "sgd": 20.0, "da": 1.0, "da+momentum": 2.0})
        return commands.Finished(
            stats.summarize(runs), runs, out.absolute() / f"{name}-{scale}" / "report.html"
        )

    monkeypatch.setattr(commands, "run_study", run_study)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["reproduce", "--out", str(tmp_path)])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "imagenet was not run to its end: There is no ImageNet here." in printed
    text = words((tmp_path / "reproduction-quick.html").read_text())
    assert "There is no ImageNet here." in text
    assert "wikitext103: " not in text  # a study without a part of the paper is called by its name
    assert text.count("Its own page") == len(paper.RECIPES) - 1


def test_an_unknown_experiment_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match="'mnist' is no experiment of the paper"):
        cli.main(["reproduce", "--recipes", "mnist", "--out", str(tmp_path)])
