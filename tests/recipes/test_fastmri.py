"""fastMRI's recipe: SSIM, training, samples, and the numbers of the paper's appendix."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from support.real_data import REAL, needs

from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import phantoms
from dualavg_bench.data.fastmri import ifft2c, root_sum_of_squares
from dualavg_bench.recipe import Point, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipes import fastmri as experiment
from dualavg_bench.run import samples

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def splits(embedded):
    return fastmri.load(phantoms.write(embedded), centre=2, keep=True)


# SSIM


class ZeroFilled(torch.nn.Module):
    def forward(self, kspace, mask):
        return root_sum_of_squares(ifft2c(kspace))


def scores(model, source, size=9):
    with torch.no_grad():
        parts = torch.arange(len(source)).split(size)
        return experiment.evaluate(model, (source.batch(part, None) for part in parts))


def test_ssim_equals_scikit_images():
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.rand(3, 20, 31, dtype=torch.float64, generator=rng) for _ in range(2))
    b[1] = a[1] + 0.1 * b[1]
    maximum = torch.tensor([1.0, 0.3, 7.0], dtype=torch.float64)
    theirs = [
        structural_similarity(x.numpy(), y.numpy(), data_range=m.item())
        for x, y, m in zip(a, b, maximum, strict=True)
    ]
    assert experiment.ssim(a, b, maximum).tolist() == pytest.approx(theirs, abs=1e-12)
    assert experiment.ssim(a, a, maximum).tolist() == pytest.approx([1, 1, 1])


def test_ssim_is_averaged_over_volumes_and_the_loss_over_slices(splits):
    source = splits.valid
    shorter = [replace(v, slices=1) if i == 0 else v for i, v in enumerate(source.volumes)]
    source = fastmri.Slices(shorter, centre=2, keep=True)
    values = scores(ZeroFilled(), source)
    batch = source.batch(torch.arange(len(source)), None)
    images = experiment.reconstruct(ZeroFilled(), batch)
    of_slice = experiment.ssim(images, batch["target"], batch["maximum"]).double()
    by_volume = [of_slice[batch["volume"] == v].mean() for v in range(len(shorter))]
    assert values["ssim"] == pytest.approx(torch.stack(by_volume).mean().item(), abs=1e-5)
    assert values["loss"] == pytest.approx(1 - of_slice.mean().item(), abs=1e-6)
    assert abs(values["ssim"] + values["loss"] - 1) > 1e-4


# The recipe


def test_a_trained_network_beats_zero_filling(splits):
    recipe = experiment.recipe("quick")
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = registry.make("adam", model.parameters(), Point(0.01), {})
    rng = torch.Generator().manual_seed(0)
    for _ in range(25):
        indices = torch.randint(len(splits.train), (recipe.batch_size,), generator=rng)
        optimizer.zero_grad()
        recipe.loss(model, splits.train.batch(indices, rng)).backward()
        optimizer.step()
    assert scores(model, splits.valid)["ssim"] > scores(ZeroFilled(), splits.valid)["ssim"]


def test_samples_are_the_middle_slices_of_two_test_volumes(splits):
    recipe = experiment.recipe("quick")
    torch.manual_seed(0)
    with torch.no_grad():
        pictures = recipe.samples(recipe.model(), splits.test)
    assert [p.title for p in pictures] == [v.path.stem for v in splits.test.volumes[:2]]
    for picture, volume in zip(pictures, splits.test.volumes, strict=False):
        with h5py.File(volume.path) as file:
            middle = torch.from_numpy(file["reconstruction_rss"][phantoms.SLICES // 2])
        assert torch.equal(picture.truth, middle)
        assert samples.encode(picture).shape == (phantoms.CROP, phantoms.CROP)
        assert not torch.equal(picture.made, picture.truth)


def test_paper_scale_is_the_appendix():
    recipe = experiment.recipe("paper")
    assert recipe.batch_size == recipe.accumulate == 8
    assert recipe.steps == 50 * (34_742 // 8)
    assert recipe.precision == "float32"
    assert recipe.seeds.confirm == 5
    assert recipe.data.keywords == {"centre": 16, "slices": 34_742}
    assert recipe.model().sensitivities.centre == 16
    assert fastmri.ACCELERATION == 4
    for grid in recipe.grids.values():
        assert grid.weight_decay == (0.0,)
        assert grid.schedule == ("flat_drop",)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule("flat_drop", recipe.schedules, optimizer, recipe.steps)
    epoch = recipe.steps // 50
    factors = [schedule.factor(k) for k in (0, 40 * epoch - 1, 40 * epoch, 50 * epoch - 1)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1])


@pytest.mark.slow
def test_two_steps_at_the_shape_of_a_knee(tmp_path):
    # 15 coils, 640 x 368, cropped to 320 x 320. Only two of twelve cascades, to save memory.
    recipe = experiment.recipe("paper")
    for name, count in ((fastmri.TRAIN, 1), (fastmri.VALID, 2)):
        (tmp_path / name).mkdir()
        for i in range(count):
            rng = np.random.default_rng(i)
            y, x = np.mgrid[-1:1:640j, -1:1:368j]
            body = ((y / 0.4) ** 2 + (x / 0.8) ** 2 < 1) * (1 + np.sin(40 * x * y))
            kspace = 1e-5 * phantoms.measure(body[None], rng, coils=15)
            phantoms.write_volume(tmp_path / name / f"knee{i}.h5", kspace, crop=320, patient=f"{name}{i}")
    source = recipe.data(tmp_path, slices=1).train  # instead of 34,742
    torch.manual_seed(0)
    model = recipe.model.func(2, **recipe.model.keywords)
    optimizer = registry.make("adam", model.parameters(), Point(0.001), {})
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        value = recipe.loss(model, source.batch(torch.tensor([0]), torch.Generator().manual_seed(0)))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert 0 < losses[1] < losses[0] < 1.5


@needs(chest_mri.FOLDER)
def test_the_real_chests():
    splits = experiment.recipe("mini").data(REAL)
    batch = splits.valid.batch(torch.arange(4), None)
    assert batch["kspace"].shape == (4, 4, 64, 64)
    assert batch["target"].shape == (4, 64, 64)
    values = scores(ZeroFilled(), splits.valid)
    assert 0.4 < values["ssim"] < 0.8
