"""What the verdict says of its own limits: tuning was done once, and the test set is finite."""

from pathlib import Path

import pytest
from support.lines import Lines, make_recipe
from support.synthetic_runs import study, summarize

from dualavg_bench.recipe import Splits
from dualavg_bench.study import study as studies
from dualavg_bench.study.study import Study


@pytest.mark.parametrize(
    ("unit", "examples", "said"),
    [
        ("%", 400, "400 examples, one of them is 0.25 points."),
        ("%", 10_000, "10,000 examples, one of them is 0.01 points."),
        ("", 400, "400 examples."),
        ("dB", 400, "400 examples."),
    ],
)
def test_the_verdict_ends_with_what_its_interval_leaves_out(unit, examples, said):
    verdict = summarize(study(unit=unit), test_examples=examples).verdict
    end = "Not covered: tuning was done once (2 seeds), and the test set has "
    assert verdict.endswith(f". {end}{said}")


def test_without_an_interval_nothing_is_said_of_it():
    tuned = [run for run in study() if run.phase == "tune"]
    assert "Not covered" not in summarize(tuned).verdict


class Sentences(Lines):
    """Its items are batches of sentences."""

    def __init__(self, n, seed, examples):
        super().__init__(n, seed)
        self.examples = examples


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(1234, 1234), (["a", "list", "of", "the", "user's"], 40), (None, 40)],
)
def test_a_source_may_say_how_many_examples_it_has(examples, expected, monkeypatch, tmp_path):
    recipe = make_recipe(Splits(Lines(100, 0), Lines(40, 1), Sentences(40, 2, examples)))
    monkeypatch.setattr(studies, "load", lambda *_: (recipe, Path(__file__)))
    assert Study.of("lines.py", "quick", tmp_path).test_examples == expected
    plain = make_recipe()
    monkeypatch.setattr(studies, "load", lambda *_: (plain, Path(__file__)))
    assert Study.of("lines.py", "quick", tmp_path).test_examples == 40
