"""The Fourier transform between k-space and images, and the mask of measured lines."""

import pytest
import torch
from support.small_volumes import random_kspace

from dualavg_bench.data.fastmri import centre_crop, fft2c, ifft2c, offset_mask, root_sum_of_squares

pytestmark = pytest.mark.usefixtures("one_thread")


# The transform


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (7, 12), (10, 9), (5, 5)])
def test_transforms_are_orthonormal_and_inverse_to_each_other(rows, columns):
    image = random_kspace(2, 3, rows, columns)
    assert torch.allclose(ifft2c(fft2c(image)), image, atol=1e-12)
    assert torch.allclose(fft2c(ifft2c(image)), image, atol=1e-12)
    assert fft2c(image).norm().item() == pytest.approx(image.norm().item(), rel=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (7, 12), (10, 9)])
def test_transforms_are_centred(rows, columns):
    # A constant image is a point in the middle of k-space, and vice versa.
    middle = torch.zeros(rows, columns, dtype=torch.complex128)
    middle[rows // 2, columns // 2] = (rows * columns) ** 0.5
    ones = torch.ones(rows, columns, dtype=torch.complex128)
    assert torch.allclose(fft2c(ones), middle, atol=1e-12)
    assert torch.allclose(fft2c(middle), ones, atol=1e-12)


def test_the_transform_is_the_discrete_fourier_sum():
    image = random_kspace(5, 6)
    y, x = torch.arange(5).double() - 2, torch.arange(6).double() - 3
    wave = torch.exp(-2j * torch.pi * (1 * y[:, None] / 5 - 2 * x[None] / 6))
    expected = (image * wave).sum() / 30**0.5
    assert fft2c(image)[2 + 1, 3 - 2].item() == pytest.approx(expected.item(), abs=1e-12)


def test_root_sum_of_squares_combines_the_coils():
    coils = torch.tensor([3 + 4j, 12j]).view(2, 1, 1).expand(2, 3, 4)
    assert torch.allclose(root_sum_of_squares(coils), torch.full((3, 4), 13.0))


def test_the_crop_is_central():
    image = torch.arange(7 * 8).view(7, 8)
    assert centre_crop(image, 3, 4).tolist() == image[2:5, 2:6].tolist()


# The mask


@pytest.mark.parametrize("columns", [368, 372, 320, 640])
@pytest.mark.parametrize("offset", [1, -1])
def test_the_mask_has_16_lines_in_the_middle_and_every_fourth_off_by_one(columns, offset):
    mask = offset_mask(columns, 16, offset)
    frequency = torch.arange(columns) - columns // 2
    assert mask[(frequency >= -8) & (frequency < 8)].all()
    outer = frequency[mask & ((frequency < -8) | (frequency >= 8))]
    assert set((outer % 4).tolist()) == {offset % 4}
    assert mask.sum() == columns // 4 + 12
    assert 3.4 < columns / mask.sum() < 4


def test_the_mask_measures_no_line_twice_by_symmetry():
    # Defazio's point: no outer line is the mirror image of another, so half of all lines are known.
    frequency = torch.arange(368) - 184
    for offset, mirrored in ((1, 0), (-1, 0), (0, 1), (2, 1)):
        outer = set(frequency[offset_mask(368, 0, offset)].tolist()) - {-184}
        twice = sum(-k in outer for k in outer) / len(outer)
        assert twice == pytest.approx(mirrored, abs=0.02)


def test_the_mask_is_fastmris():
    # MagicMaskFunc of fastmri 0.3.0, acceleration 4, 37 columns of which 4 are central, offsets 0 and 1.
    theirs = {
        1: [3, 7, 11, 15, 17, 18, 19, 20, 23, 27, 31, 35],
        -1: [1, 5, 9, 13, 17, 18, 19, 20, 21, 25, 29, 33],
    }
    for offset, lines in theirs.items():
        assert offset_mask(37, 4, offset).nonzero().flatten().tolist() == lines
