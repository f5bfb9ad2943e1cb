"""The end-to-end variational network for MRI (Sriram et al. 2020, arXiv:2004.06688), as in fastMRI.

The layers are those of fastMRI's public code, but complex numbers are complex tensors. Padding inside the
U-Net is omitted: images are padded to multiples of 16 before.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data.fastmri import fft2c, ifft2c, root_sum_of_squares

MULTIPLE = 16  # a U-Net's images have sides that can be halved four times


class VarNet(nn.Module):
    """Estimates the sensitivities of the coils, then applies `cascades` of data consistency and refinement.

    Args:
        cascades: number of cascades.
        chans: channels of the first layer of a cascade's U-Net.
        pools: how often that U-Net halves the image, at most four times.
        sens_chans: channels of the first layer of the sensitivities' U-Net.
        sens_pools: how often that U-Net halves the image.
        centre: number of low-frequency lines from which the sensitivities are estimated.
    """

    def __init__(
        self,
        cascades: int = 12,
        chans: int = 18,
        pools: int = 4,
        sens_chans: int = 8,
        sens_pools: int = 4,
        *,
        centre: int = 16,
    ) -> None:
        super().__init__()
        self.sensitivities = Sensitivities(sens_chans, sens_pools, centre)
        self.cascades = nn.ModuleList([Cascade(chans, pools) for _ in range(cascades)])

    def forward(self, measured: Tensor, mask: Tensor) -> Tensor:
        """Return images (n, rows, columns) from k-spaces (n, coils, rows, columns) and masks (n, columns)."""
        maps = self.sensitivities(measured)
        kspace = measured
        for cascade in self.cascades:
            kspace = cascade(kspace, measured, mask[:, None, None], maps)
        return root_sum_of_squares(ifft2c(kspace))


class Cascade(nn.Module):
    """One cascade: k-space minus its error on the measured lines, minus the U-Net's correction."""

    def __init__(self, chans: int, pools: int) -> None:
        super().__init__()
        self.refine = NormUNet(chans, pools)
        self.consistency = nn.Parameter(torch.ones(1))

    def forward(self, kspace: Tensor, measured: Tensor, mask: Tensor, maps: Tensor) -> Tensor:
        """Return the next k-space."""
        error = torch.where(mask, kspace - measured, 0)
        image = (ifft2c(kspace) * maps.conj()).sum(dim=1, keepdim=True)
        correction = fft2c(self.refine(image) * maps)
        return kspace - self.consistency * error - correction


class Sensitivities(nn.Module):
    """The sensitivities of the coils, from the fully measured lines in the middle of k-space."""

    def __init__(self, chans: int, pools: int, centre: int) -> None:
        super().__init__()
        self.refine, self.centre = NormUNet(chans, pools), centre

    def forward(self, measured: Tensor) -> Tensor:
        """Return maps (n, coils, rows, columns) whose squares sum to one over the coils."""
        columns = measured.shape[-1]
        before = (columns - self.centre + 1) // 2
        middle = F.pad(measured[..., before : before + self.centre], (before, columns - self.centre - before))
        coils = ifft2c(middle).flatten(0, 1).unsqueeze(1)  # the same U-Net for each coil
        maps: Tensor = self.refine(coils).view_as(measured)
        return maps / root_sum_of_squares(maps).unsqueeze(1)


class NormUNet(nn.Module):
    """A U-Net for complex images: normalized, padded with zeros, as two real channels."""

    def __init__(self, chans: int, pools: int) -> None:
        super().__init__()
        self.unet = UNet(2, 2, chans, pools)

    def forward(self, image: Tensor) -> Tensor:
        """Map complex images (n, 1, rows, columns) to images of the same shape."""
        real = torch.view_as_real(image[:, 0]).permute(0, 3, 1, 2)
        std, mean = torch.std_mean(real, dim=(-2, -1), keepdim=True)
        rows, columns = real.shape[-2:]
        down, right = -rows % MULTIPLE, -columns % MULTIPLE
        top, left = down // 2, right // 2
        padded = F.pad((real - mean) / std, (left, right - left, top, down - top))
        refined = self.unet(padded)[..., top : top + rows, left : left + columns] * std + mean
        return torch.view_as_complex(refined.permute(0, 2, 3, 1).contiguous()).unsqueeze(1)


class UNet(nn.Module):
    """Ronneberger's U-Net with instance norm, average pooling and transposed convolutions."""

    def __init__(self, inputs: int, outputs: int, chans: int, pools: int) -> None:
        super().__init__()
        if not 1 <= pools <= 4:
            raise ValueError(
                f"pools must be 1 to 4, because images are padded to multiples of 16, got {pools}."
            )
        widths = [chans * 2**level for level in range(pools + 1)]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([_two_convolutions(a, b) for a, b in [(inputs, chans), *pairs]])
        self.up = nn.ModuleList([_upsample(b, a) for a, b in reversed(pairs)])
        self.merge = nn.ModuleList([_two_convolutions(b, a) for a, b in reversed(pairs)])
        self.last = nn.Conv2d(chans, outputs, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        """Map images (n, inputs, rows, columns) to images (n, outputs, rows, columns)."""
        levels = [self.down[0](image)]
        for down in self.down[1:]:
            levels.append(down(F.avg_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), levels.pop()], dim=1))
        y: Tensor = self.last(x)
        return y


def _two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with instance norm and leaky ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), *_norm_and_relu(outputs)),
        *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), *_norm_and_relu(outputs)),
    )


def _upsample(inputs: int, outputs: int) -> nn.Sequential:
    """A transposed convolution that doubles the resolution, with instance norm and leaky ReLU."""
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, outputs, 2, stride=2, bias=False), *_norm_and_relu(outputs)
    )


def _norm_and_relu(chans: int) -> tuple[nn.Module, nn.Module]:
    return nn.InstanceNorm2d(chans), nn.LeakyReLU(0.2, inplace=True)
