"""ImageNet's crops: random for training, central for evaluation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.small_images import SMALL, smooth, unnormalized, write_folders

from dualavg_bench.data import imagenet

pytestmark = pytest.mark.usefixtures("one_thread")


def source_of(*arrays, size=16, resize=18):
    return imagenet.Images(list(arrays), torch.arange(len(arrays)), size, resize, "source")


def boxes(height, width, n=4000, seed=0):
    draws = torch.rand(n, 10, 4, generator=torch.Generator().manual_seed(seed)).tolist()
    return np.array([imagenet.random_box(each, height, width) for each in draws])


def test_random_crops_have_the_area_and_aspect_of_the_paper():
    size = 3000  # large, so that rounding does not matter
    top, left, height, width = boxes(size, size).T
    area, aspect = height * width / size**2, np.log(width / height) / math.log(4 / 3)
    assert 0.079 < area.min() < 0.09
    assert 0.95 < area.max() <= 1
    assert -1.001 < aspect.min() < -0.98
    assert 0.98 < aspect.max() < 1.001
    # Up to 3/4 of the area every aspect fits and the first attempt counts: all four must be uniform ...
    free = area < 0.75
    drawn = np.stack(
        [(area - 0.08) / 0.67, (aspect + 1) / 2, top / (size - height + 1), left / (size - width + 1)]
    )[:, free]
    for values in drawn:
        counts, _ = np.histogram(values, bins=10, range=(0, 1))
        expected = free.sum() / 10
        assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-squared, 9 degrees, 0.1%
    # ... and independent.
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 4 / math.sqrt(free.sum())


def test_random_crops_lie_inside_and_touch_every_edge():
    top, left, height, width = boxes(12, 16).T
    assert (top.min(), left.min()) == (0, 0)
    for offset, edge, limit in ((top, height, 12), (left, width, 16)):
        assert (offset + edge).max() == limit
        assert (offset + edge)[edge < limit].max() == limit  # also for crops that could lie elsewhere
    assert min(height.min(), width.min()) >= 1


def test_if_no_attempt_fits_the_crop_is_the_largest_centred_one():
    assert {tuple(box) for box in boxes(10, 1000, n=50)} == {(0, 493, 10, 13)}
    assert {tuple(box) for box in boxes(1000, 10, n=50)} == {(493, 0, 13, 10)}
    # 20 x 21 has an allowed aspect: the full image
    assert imagenet.random_box([[1.0, 1.0, 0.5, 0.5]] * 10, 20, 21) == (0, 0, 20, 21)


def test_an_attempt_that_does_not_fit_is_repeated():
    misfit, fit = [1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]
    assert imagenet.random_box([*[misfit] * 9, fit], 100, 100) == (0, 0, 28, 28)
    assert imagenet.random_box([misfit] * 10, 100, 100) == (0, 0, 100, 100)


def test_half_of_the_images_are_flipped():
    slope = np.broadcast_to(np.linspace(0, 255, 40, dtype=np.uint8)[None, :, None], (40, 40, 3))
    source = source_of(np.ascontiguousarray(slope))
    n = 1000
    images, _ = source.batch(torch.zeros(n, dtype=torch.long), torch.Generator().manual_seed(0))
    flipped = images[:, 0, 8, 0] > images[:, 0, 8, -1]
    assert abs(int(flipped.sum()) - n / 2) < 4 * math.sqrt(n) / 2


BOXES = [(0, 0, 60, 80), (5, 7, 40, 30), (30, 50, 16, 16), (11, 3, 9, 12), (0, 64, 60, 16)]


@pytest.mark.parametrize("box", BOXES)
def test_a_crop_agrees_with_pillow_and_with_torch(box, monkeypatch):
    image = smooth(60, 80)
    monkeypatch.setattr(imagenet, "random_box", lambda *_: box)
    cropped, _ = source_of(np.asarray(image)).batch(torch.tensor([0]), torch.Generator().manual_seed(1))
    top, left, height, width = box
    pillow = image.crop((left, top, left + width, top + height)).resize((16, 16), Image.Resampling.BILINEAR)
    exact = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).float()
    part = torch.from_numpy(np.array(image)[top : top + height, left : left + width]).permute(2, 0, 1)[None]
    near = F.interpolate(part.float(), (16, 16), mode="bilinear", antialias=True)[0]
    flips = [cropped[0], cropped[0].flip(2)]
    assert min((unnormalized(each) - exact).abs().max() for each in flips) < 0.01
    assert min((unnormalized(each) - near).abs().max() for each in flips) < 1.1


def test_downsizing_does_not_alias():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    cropped, _ = source_of(stripes, size=16, resize=16).batch(torch.tensor([0]), None)
    assert (unnormalized(cropped)[0, :, :, 1:-1] - 127.5).abs().max() < 8


@pytest.mark.parametrize(
    ("height", "width", "corner"), [(375, 500, (16, 58)), (500, 375, (58, 16)), (224, 224, (16, 16))]
)
def test_evaluation_takes_the_centre_of_the_shorter_edge_at_256(height, width, corner):
    image = smooth(height, width)
    cropped, _ = source_of(np.asarray(image), size=224, resize=256).batch(torch.tensor([0]), None)
    # As in torchvision, the longer edge is rounded down.
    resized = (256, 341) if width > height else (341, 256) if height > width else (256, 256)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    near = F.interpolate(pixels, resized, mode="bilinear", antialias=True)[0]
    top, left = corner
    assert (unnormalized(cropped[0]) - near[:, top : top + 224, left : left + 224]).abs().max() < 1.1


def test_augmentation_is_drawn_from_rng_alone(tmp_path):
    source, indices = imagenet.load(write_folders(tmp_path), **SMALL).train, torch.arange(12)
    state = torch.get_rng_state()
    first, second = (source.batch(indices, torch.Generator().manual_seed(5))[0] for _ in range(2))
    other = source.batch(indices, torch.Generator().manual_seed(6))[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_each_image_of_a_batch_has_its_own_crop():
    source = source_of(np.asarray(smooth(40, 40)))
    images, _ = source.batch(torch.zeros(8, dtype=torch.long), torch.Generator().manual_seed(0))
    assert len({tuple(image.flatten().tolist()) for image in images}) == 8
