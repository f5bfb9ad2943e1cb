"""Samples: what a trained network makes of a few test examples, in the result and in the report."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.metrics import structural_similarity
from support.lines import execute, make_recipe, make_spec
from support.page_reader import without_own_script, words
from support.synthetic_runs import run, study, summarize

from dualavg_bench.recipe import Passage, Picture
from dualavg_bench.report import samples as shown_samples
from dualavg_bench.report import study_page
from dualavg_bench.report.samples import gallery
from dualavg_bench.run import code as sources
from dualavg_bench.run import samples
from dualavg_bench.store.results import PassageSample

TRUTH = torch.arange(12.0).reshape(3, 4)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures: drawing takes most of the time."""
    monkeypatch.setattr(study_page, "_figures", lambda *_: {})


def shown(model, source):
    assert not model.training
    assert not torch.is_grad_enabled()
    return [Picture("slice 1", TRUTH, TRUTH / 2), Passage("ein Haus", "a house", f"{len(source)} houses")]


def decoded(uri):
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)


def with_samples(runs, make):
    return [r.model_copy(update={"samples": make(r) if r.phase == "confirm" else []}) for r in runs]


def test_a_confirmation_run_keeps_them_and_a_tuning_run_does_not(tmp_path):
    recipe = make_recipe(samples=shown)
    kept = execute(tmp_path, recipe, make_spec(recipe, test=True)).samples
    assert [sample.kind for sample in kept] == ["picture", "passage"]
    assert kept[1].made == "40 houses"
    assert execute(tmp_path, recipe, make_spec(recipe, test=False)).samples == []


def test_they_do_not_change_a_run_s_name():
    plain, showing = make_recipe(), make_recipe(samples=shown)
    assert make_spec(plain).hash == make_spec(showing).hash


def shown_picture(truth, **made):
    """The one picture of a gallery, of optimizers that made these of one truth."""
    runs = [
        run(name, 1.0, 1000, "confirm", samples=[samples.encode(Picture("slice", truth, one))])
        for name, one in made.items()
    ]
    (picture,) = gallery(list(made), runs).pictures
    return picture


def test_a_picture_survives_to_a_byte():
    picture = shown_picture(TRUTH, mda=TRUTH / 2, adam=TRUTH)
    truth = np.round(255 * TRUTH.numpy() / 11)
    assert np.array_equal(decoded(picture.truth), truth)
    mda, adam = picture.reconstructions
    assert (mda.optimizer, adam.optimizer) == ("mda", "adam")
    assert abs(decoded(mda.picture) - truth / 2).max() <= 0.5
    wrong = float(picture.factor) * abs(decoded(mda.picture) - truth)
    assert abs(decoded(mda.difference) - np.clip(wrong, 0, 255)).max() <= 0.5
    assert np.array_equal(decoded(adam.picture), truth)
    assert not decoded(adam.difference).any()
    assert mda.ssim is None  # 3 x 4 pixels are too few for SSIM's window


SLICE = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.5
NOISE = torch.randn(40, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("amount", [0.03, 0.1, 0.2])
def test_differences_are_as_bright_as_their_size_allows_and_alike_for_all(amount):
    picture = shown_picture(SLICE, mda=SLICE - amount * NOISE.abs(), adam=SLICE - amount / 4 * NOISE.abs())
    worse, better = (decoded(one.difference) for one in picture.reconstructions)
    assert 240 < np.percentile(worse, 99) <= 255  # nearly white
    assert (worse == 255).mean() < 0.02  # and not saturated
    assert np.median(better) / np.median(worse) == pytest.approx(1 / 4, abs=0.08)  # one factor for both
    assert float(picture.factor) > 1


def test_differences_of_a_grey_or_none_are_not_blown_up():
    assert shown_picture(SLICE, mda=SLICE).factor == "1"
    assert shown_picture(SLICE, mda=SLICE - 0.004).factor == f"{shown_samples.BRIGHTEST}"
    assert shown_picture(SLICE, mda=0 * SLICE).factor == "1"  # never darker than it is


def test_each_reconstruction_has_its_ssim_and_every_image_a_caption(undrawn):
    blurred = SLICE - 0.1 * NOISE.abs()
    picture = shown_picture(SLICE, mda=blurred, adam=SLICE)
    white = SLICE.max()
    wanted = structural_similarity((SLICE / white).numpy(), (blurred / white).numpy(), data_range=1.0)
    assert [one.ssim for one in picture.reconstructions] == [f"{wanted:.3f}", "1.000"]
    runs = with_samples(study(), lambda _: [samples.encode(Picture("slice 7", SLICE, blurred))])
    page = study_page.render(summarize(runs), runs)
    text = words(page)
    assert "slice 7ground truth" in text
    assert text.count(f"SSIM {wanted:.3f}") == 3
    assert text.count(f"difference \N{MULTIPLICATION SIGN} {picture.factor}") == 3
    shown = page[page.index('<div class="pictures">') :]
    assert shown.count("<img") == shown.count("<figcaption>") == 7


def test_hidden_pieces_of_a_text_are_explained(undrawn):
    def page(*made):
        passages = [PassageSample(given="s[masked]ction", truth="e", made=one) for one in made]
        runs = with_samples(study(), lambda _: passages)
        return words(study_page.render(summarize(runs), runs))

    spaced, plain = page("e | _"), page("e | ed")
    assert "[masked]: a hidden token." in plain
    assert "separated by bars." in plain
    assert "separated by bars; _ is a space." in spaced
    translated = [PassageSample(given="ein Haus", truth="a house", made="_")]
    runs = with_samples(study(), lambda _: translated)
    assert "hidden" not in words(study_page.render(summarize(runs), runs))


def test_how_pages_show_samples_is_no_part_of_a_run_s_name(monkeypatch):
    """Nor are the packages for it: a page may change, and no run is done again."""
    followed = []
    read = sources._read
    monkeypatch.setattr(sources, "_read", lambda text, package: followed.append(text) or read(text, package))
    packages = sources.trace(Path(samples.__file__), ["dualavg_bench.samples"]).packages
    assert Path(samples.__file__).read_bytes() in followed
    assert Path(shown_samples.__file__).read_bytes() not in followed
    assert not {"pillow", "scikit-image"} & {name.lower() for name in packages}


def test_unequal_pictures_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\) \(truth\) and \(2, 4\)"):
        samples.encode(Picture("slice", TRUTH, TRUTH[:2]))


def test_the_first_confirmation_seed_is_shown_for_all():
    runs = with_samples(study(), lambda run: [PassageSample(given="x", truth="y", made=str(run.seed))])
    shown = gallery(["mda", "sgd"], runs)
    assert shown.seeds == [min(run.seed for run in runs if run.phase == "confirm")]
    assert [made for _, made in shown.passages[0].outputs] == 2 * [str(shown.seeds[0])]


def test_a_study_without_samples_has_no_such_section(undrawn):
    runs = study()
    assert gallery(["mda"], runs) is None
    assert "<h2>Samples</h2>" not in study_page.render(summarize(runs), runs)


def test_the_report_escapes_them(undrawn):
    text = "<script>alert(1)</script>"
    passage = PassageSample(given=text, truth=text, made=text)
    picture = samples.encode(Picture(text, TRUTH, TRUTH))
    runs = with_samples(study(), lambda _: [passage, picture])
    page = study_page.render(summarize(runs), runs)
    assert "<h2>Samples</h2>" in page
    assert "<script" not in without_own_script(page)
    assert page.count("&lt;script&gt;") >= 5
