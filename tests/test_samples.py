"""Samples: what a trained network makes of a few test examples, in the result and in the report."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic_runs import study
from test_runner import execute, make_recipe, make_spec

from dualavg_bench import report, samples, stats
from dualavg_bench.recipe import Passage, Picture

TRUTH = torch.arange(12.0).reshape(3, 4)


def shown(model, source):
    assert not model.training
    assert not torch.is_grad_enabled()
    return [Picture("slice 1", TRUTH, TRUTH / 2), Passage("ein Haus", "a house", f"{len(source)} houses")]


def decoded(uri):
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)


def with_samples(runs, make):
    return [{**run, "samples": make(run) if run["phase"] == "confirm" else []} for run in runs]


def test_a_confirmation_run_keeps_them_and_a_tuning_run_does_not(tmp_path):
    recipe = make_recipe(samples=shown)
    kept = execute(tmp_path, recipe, make_spec(recipe, test=True))["samples"]
    assert [sample["kind"] for sample in kept] == ["picture", "passage"]
    assert kept[1]["made"] == "40 houses"
    assert execute(tmp_path, recipe, make_spec(recipe, test=False))["samples"] == []


def test_they_do_not_change_a_run_s_name():
    plain, showing = make_recipe(), make_recipe(samples=shown)
    assert make_spec(plain).hash == make_spec(showing).hash


def test_a_picture_survives_to_a_byte():
    made = [samples.to_json(Picture("slice", TRUTH, TRUTH * factor)) for factor in (0.5, 1.0)]
    runs = [
        {"optimizer": name, "phase": "confirm", "seed": 1000, "samples": [sample]}
        for name, sample in zip(("mda", "adam"), made, strict=True)
    ]
    (picture,) = samples.side_by_side(["mda", "adam"], runs)["pictures"]
    truth = np.round(255 * TRUTH.numpy() / 11)
    assert np.array_equal(decoded(picture["truth"]), truth)
    (mda, half, wrong), (adam, whole, nothing) = picture["made"]
    assert (mda, adam) == ("mda", "adam")
    assert abs(decoded(half) - truth / 2).max() <= 0.5
    assert np.array_equal(decoded(wrong), np.clip(5 * abs(decoded(half) - truth), 0, 255))
    assert np.array_equal(decoded(whole), truth)
    assert not decoded(nothing).any()


def test_unequal_pictures_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\) \(truth\) and \(2, 4\)"):
        samples.to_json(Picture("slice", TRUTH, TRUTH[:2]))


def test_the_first_confirmation_seed_is_shown_for_all():
    runs = with_samples(
        study(), lambda run: [{"kind": "passage", "given": "x", "truth": "y", "made": str(run["seed"])}]
    )
    shown = samples.side_by_side(["mda", "sgd"], runs)
    assert shown["seeds"] == [min(run["seed"] for run in runs if run["phase"] == "confirm")]
    assert [made for _, made in shown["passages"][0]["made"]] == 2 * [str(shown["seeds"][0])]


def test_a_study_without_samples_has_no_such_section():
    runs = study()
    assert samples.side_by_side(["mda"], runs) is None
    assert "<h2>Samples</h2>" not in report.render(stats.summarize(runs), runs)


def test_the_report_escapes_them():
    text = "<script>alert(1)</script>"
    passage = {"kind": "passage", "given": text, "truth": text, "made": text}
    picture = samples.to_json(Picture(text, TRUTH, TRUTH))
    runs = with_samples(study(), lambda _: [passage, picture])
    page = report.render(stats.summarize(runs), runs)
    assert "<h2>Samples</h2>" in page
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5
