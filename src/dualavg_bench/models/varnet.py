"""The end-to-end variational network for MRI (Sriram et al. 2020, arXiv:2004.06688), as fastMRI has it.

Layer by layer the public implementation, with complex numbers as complex tensors. Left out is what never
happens: images whose sides are not multiples of 16 inside a U-Net, which are padded before.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data.fastmri import fft2c, ifft2c, root_sum_of_squares

MULTIPLE = 16  # of the sides of what a U-Net sees: it can halve them four times


class VarNet(nn.Module):
    """Sensitivities of the coils, then `cascades` steps of data consistency and refinement.

    Args:
        cascades: steps.
        chans: channels of the first layer of a step's U-Net.
        pools: how often that U-Net halves the image, at most four times.
        sens_chans: channels of the first layer of the sensitivities' U-Net.
        sens_pools: how often that one does.
        centre: low-frequency lines that the sensitivities are estimated from.
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
        """Return images (n, rows, columns) of k-spaces (n, coils, rows, columns) and masks (n, columns)."""
        maps = self.sensitivities(measured)
        kspace = measured
        for cascade in self.cascades:
            kspace = cascade(kspace, measured, mask[:, None, None], maps)
        return root_sum_of_squares(ifft2c(kspace))


class Cascade(nn.Module):
    """One step: k-space, less what contradicts the measured lines, less what a U-Net finds in the image."""

    def __init__(self, chans: int, pools: int) -> None:
        super().__init__()
        self.refine = NormUNet(chans, pools)
        self.consistency = nn.Parameter(torch.ones(1))

    def forward(self, kspace: Tensor, measured: Tensor, mask: Tensor, maps: Tensor) -> Tensor:
        """Return the next k-space."""
        contradiction = torch.where(mask, kspace - measured, 0)
        image = (ifft2c(kspace) * maps.conj()).sum(dim=1, keepdim=True)
        found = fft2c(self.refine(image) * maps)
        return kspace - self.consistency * contradiction - found


class Sensitivities(nn.Module):
    """The coils' sensitivities, from the fully measured lines in the middle of k-space."""

    def __init__(self, chans: int, pools: int, centre: int) -> None:
        super().__init__()
        self.refine, self.centre = NormUNet(chans, pools), centre

    def forward(self, measured: Tensor) -> Tensor:
        """Return maps (n, coils, rows, columns), whose squares sum to one."""
        columns = measured.shape[-1]
        before = (columns - self.centre + 1) // 2
        middle = F.pad(measured[..., before : before + self.centre], (before, columns - self.centre - before))
        one_by_one = ifft2c(middle).flatten(0, 1).unsqueeze(1)  # the same U-Net for each coil
        maps: Tensor = self.refine(one_by_one).view_as(measured)
        return maps / root_sum_of_squares(maps).unsqueeze(1)


class NormUNet(nn.Module):
    """A U-Net of a complex image, which it sees normalized, with zeros around, as two real channels."""

    def __init__(self, chans: int, pools: int) -> None:
        super().__init__()
        self.unet = UNet(2, 2, chans, pools)

    def forward(self, image: Tensor) -> Tensor:
        """Return complex images (n, 1, rows, columns) of such."""
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
            raise ValueError(f"A U-Net whose images are padded to sixteens has 1 to 4 pools, got {pools}.")
        widths = [chans * 2**level for level in range(pools + 1)]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([_twice(a, b) for a, b in [(inputs, chans), *pairs]])
        self.up = nn.ModuleList([_doubled(b, a) for a, b in reversed(pairs)])
        self.merge = nn.ModuleList([_twice(b, a) for a, b in reversed(pairs)])
        self.last = nn.Conv2d(chans, outputs, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        """Return `outputs` channels (n, outputs, rows, columns) of `inputs` ones."""
        levels = [self.down[0](image)]
        for down in self.down[1:]:
            levels.append(down(F.avg_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), levels.pop()], dim=1))
        y: Tensor = self.last(x)
        return y


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions, each with its norm and its rectifier."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), *_normed(outputs)),
        *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), *_normed(outputs)),
    )


def _doubled(inputs: int, outputs: int) -> nn.Sequential:
    """Twice the resolution."""
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 2, stride=2, bias=False), *_normed(outputs))


def _normed(chans: int) -> tuple[nn.Module, nn.Module]:
    return nn.InstanceNorm2d(chans), nn.LeakyReLU(0.2, inplace=True)
