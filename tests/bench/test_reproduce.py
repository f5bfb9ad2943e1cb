"""`dualavg reproduce`: what fails, what is kept, and which studies are on its page."""

import json
import shutil

import pytest
from support.page_reader import words
from support.paper_study import study
from support.synthetic_runs import summarize

from dualavg_bench import cli, commands
from dualavg_bench.analysis import paper
from dualavg_bench.analysis.verdict import verdict
from dualavg_bench.recipe import RecipeError
from dualavg_bench.report import paper_page
from dualavg_bench.store.documents import write_document
from dualavg_bench.store.folder import RunFolder

SCORES = {"mda": 30.0, "adam": 31.0, "sgd": 20.0, "da": 1.0, "da+momentum": 2.0}


@pytest.fixture
def stand_in(monkeypatch):
    """Studies that take no time; those of `broken` raise. Returns their names, as they are run."""
    ran, broken = [], {}

    def run_study(name, scale, *, out, **_):
        ran.append(name)
        if name in broken:
            raise broken[name]
        runs = study(name, SCORES, n=2)
        folder = out.absolute() / f"{name}-{scale}"
        for one in runs:
            RunFolder.of(folder, name, one.hash).finish(one)
        summary = summarize(runs)
        write_document(folder / "summary.json", summary)
        (folder / "report.html").write_text("")
        return commands.Finished(summary, runs, folder / "report.html")

    monkeypatch.setattr(commands, "run_study", run_study)
    return ran, broken


def reproduce(out, *more):
    """The exit status, and the words of the page."""
    code = 0
    try:
        cli.main(["reproduce", "--out", str(out), *more])
    except SystemExit as stopped:
        code = stopped.code or 0
    return code, words((out / "reproduction-quick.html").read_text())


TOGETHER = ["--together", "--workers", "1"]


@pytest.mark.parametrize(
    ("error", "said", "traced", "more"),
    [
        (RecipeError("There is no ImageNet here."), "There is no ImageNet here.", False, []),
        (RecipeError("There is no ImageNet here."), "There is no ImageNet here.", False, TOGETHER),
        (IsADirectoryError(21, "Is a directory", "/d/x"), "/d/x: Is a directory.", False, []),
        (OSError(28, "No space left on device"), "No space left on device.", False, []),
        (ZeroDivisionError("by nothing"), "ZeroDivisionError: by nothing", True, []),
        (AssertionError(), "AssertionError", True, TOGETHER),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_one_study_that_fails_does_not_keep_the_others_from_running(
    error, said, traced, more, tmp_path, stand_in, monkeypatch, capfd
):
    monkeypatch.setattr(paper_page, "_section", unfigured)
    ran, broken = stand_in
    broken["imagenet"] = error
    code, text = reproduce(tmp_path, *more)
    assert code == 1
    assert sorted(ran) == sorted(paper.RECIPES)
    printed, errors = capfd.readouterr()
    assert f"imagenet failed: {said}\n" in printed
    assert f"imagenet is not complete. {said} Claims" in text
    assert text.count("Its own page") == len(paper.RECIPES) - 1
    assert ("Traceback" in errors) == traced


def unfigured(summary, _, link):
    """A study on the page without figures: drawing takes most of the time."""
    return paper_page.StudySection(
        title=summary.recipe,
        verdict=verdict(summary),
        link=link,
        order=[],
        imports="",
        copies=[],
        copy_warning="",
        figures=[],
        samples=None,
        colors={},
        decides="last",
    )


def test_ctrl_c_is_no_failure_of_a_study(tmp_path, stand_in):
    _, broken = stand_in
    broken["imagenet"] = KeyboardInterrupt()
    with pytest.raises(SystemExit) as stopped:
        cli.main(["reproduce", "--out", str(tmp_path)])
    assert stopped.value.code == 130
    assert not (tmp_path / "reproduction-quick.html").exists()


def test_the_page_keeps_finished_studies_that_were_not_asked_for(tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr(paper_page, "_section", unfigured)
    ran, _ = stand_in
    reproduce(tmp_path, "--recipes", "cifar10,fastmri")
    code, text = reproduce(tmp_path, "--recipes", "iwslt14")
    assert (code, ran) == (0, ["cifar10", "fastmri", "iwslt14"])
    assert text.count("Its own page") == 3
    assert text.count("lr 1, weight decay 0, linear") == 3 * len(SCORES)
    (tmp_path / "fastmri-quick" / "report.html").unlink()
    code, text = reproduce(tmp_path, "--recipes", "iwslt14")
    assert text.count("Its own page") == 2  # no link to what is not there
    assert text.count("lr 1, weight decay 0, linear") == 3 * len(SCORES)


def damages(folder):
    """What may have happened to a finished study, each in words."""
    summary, results = folder / "summary.json", sorted(folder.rglob("result.json"))
    whole = json.loads(summary.read_text())
    confirmed = next(file for file in results if '"confirm"' in file.read_text())
    run = {**json.loads(confirmed.read_text()), "test": {}}
    yield "no summary", summary.unlink
    yield "half a summary", lambda: summary.write_text(json.dumps(whole)[:100])
    yield "a newer summary", lambda: summary.write_text(json.dumps({**whole, "format": 99}))
    yield "a summary of nothing", lambda: summary.write_text('{"format": 1}')
    yield "another scale's", lambda: summary.write_text(json.dumps({**whole, "scale": "mini"}))
    yield "another recipe's", lambda: summary.write_text(json.dumps({**whole, "recipe": "imagenet"}))
    yield "lists where there are none", lambda: summary.write_text(json.dumps({**whole, "optimizers": []}))
    yield "half a run", lambda: results[0].write_text("{")
    yield "a run without its score", lambda: confirmed.write_text(json.dumps(run))


def test_a_study_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr(paper_page, "_section", unfigured)
    reproduce(tmp_path, "--recipes", "cifar10")
    folder = tmp_path / "cifar10-quick"
    for what, damage in damages(folder):
        commands.run_study("cifar10", "quick", out=tmp_path)  # whole again
        damage()
        code, text = reproduce(tmp_path, "--recipes", "iwslt14")
        assert code == 0, what
        assert text.count("Its own page") == 1, what
        assert "is not complete" not in text, what


def test_a_study_whose_runs_were_deleted_is_still_on_the_page(tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr(paper_page, "_section", unfigured)
    reproduce(tmp_path, "--recipes", "cifar10")
    shutil.rmtree(tmp_path / "cifar10-quick" / "runs")
    _, text = reproduce(tmp_path, "--recipes", "iwslt14")
    assert text.count("Its own page") == 2


def test_an_unknown_experiment_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match="'mnist' is no experiment of the paper"):
        cli.main(["reproduce", "--recipes", "mnist", "--out", str(tmp_path)])
