"""fastMRI's multi-coil data in its official format: one HDF5 file per volume, k-space and reconstruction."""

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dualavg_bench.data.reading import check_count, reading
from dualavg_bench.recipe import Splits

TRAIN, VALID = "multicoil_train", "multicoil_val"
OFFICIAL = "ask for the knee data, multi-coil, at https://fastmri.med.nyu.edu/"
EXPECTED = (
    "an HDF5 file with kspace, complex, (slices, coils, rows, columns), reconstruction_rss, "
    "(slices, height, width), ismrmrd_header and the attributes max and patient_id"
)
SPLIT_SEED = 20201020
ACCELERATION = 4

T = TypeVar("T")


def fft2c(image: Tensor) -> Tensor:
    """Return the k-space of complex images: orthonormal Fourier transform, frequency zero in the middle."""
    shifted = torch.fft.ifftshift(image, dim=(-2, -1))
    kspace: Tensor = torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=(-2, -1))
    return kspace


def ifft2c(kspace: Tensor) -> Tensor:
    """Return the images of a k-space; the inverse of `fft2c`."""
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    image: Tensor = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))
    return image


def root_sum_of_squares(coils: Tensor) -> Tensor:
    """Return one magnitude image from the complex images of all coils (dimension -3)."""
    return torch.view_as_real(coils).square().sum(dim=(-4, -1)).sqrt()


def centre_crop(image: Tensor, height: int, width: int) -> Tensor:
    """Return the middle of images."""
    top, left = (image.shape[-2] - height) // 2, (image.shape[-1] - width) // 2
    return image[..., top : top + height, left : left + width]


def offset_mask(columns: int, centre: int, offset: int, acceleration: int = ACCELERATION) -> Tensor:
    """Return the mask of measured columns: Defazio's offset sampling (2019, arXiv:1912.01101).

    Measured are the `centre` lowest frequencies and every fourth line, counted from frequency `offset`.
    The k-space of a real image is symmetric, S(-k) = conj S(k), and that of a measured image nearly so. With
    offset 1 or -1, the measured lines k = 1 mod 4 therefore also determine the lines k = 3 mod 4. With offset
    0 or 2 they determine no other line.
    """
    column = torch.arange(columns)
    first = (columns - centre + 1) // 2
    spaced = (column - columns // 2 - offset) % acceleration == 0
    return spaced | ((column >= first) & (column < first + centre))


@dataclass(frozen=True)
class Volume:
    """The metadata of one file."""

    path: Path
    slices: int
    columns: int
    acquired: tuple[int, int]  # first measured column, and the first after the last; zeros outside
    maximum: float  # of the reconstruction, over all slices: the data range of SSIM
    patient: str


class Slices:
    """Slices of volumes, read from disk on demand or all at once. No file stays open.

    The offset of a slice's mask is 1 or -1: drawn from `rng` if there is one, else by the name of its file.

    Args:
        volumes: the files.
        centre: number of low-frequency lines in every mask.
        keep: read all slices now and keep them in memory; the files are not needed after that.
        source: where to get the data set, for error messages.
    """

    def __init__(self, volumes: list[Volume], *, centre: int, keep: bool, source: str = OFFICIAL) -> None:
        self.volumes, self.centre, self.keep, self.source = volumes, centre, keep, source
        self.index = [(v, s) for v, volume in enumerate(volumes) for s in range(volume.slices)]
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        if keep:
            self._kept = {i: self._slice(i) for i in range(len(self))}

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.index)

    def middle(self, volume: int) -> int:
        """Return the index of a volume's middle slice."""
        return self.index.index((volume, self.volumes[volume].slices // 2))

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> dict[str, Tensor]:
        """Return n slices of one size.

        `kspace` (n, coils, rows, columns) has zeros where nothing was measured; `mask` is (n, columns),
        `target` (n, height, width), `maximum` (n,), and `volume` (n,) the number of each slice's volume.
        """
        drawn = None if rng is None else torch.randint(2, (len(indices),), generator=rng).tolist()
        examples = []
        for row, i in enumerate(indices.tolist()):
            number, _ = self.index[i]
            volume = self.volumes[number]
            by_name = zlib.crc32(volume.path.name.encode()) % 2  # one mask per volume, as in fastMRI
            mask = self._mask(volume, 1 - 2 * (by_name if drawn is None else drawn[row]))
            kspace, target = self._slice(i)
            examples.append((torch.where(mask, kspace, 0), mask, target, volume.maximum, number))
        kspaces, masks, targets, maxima, numbers = zip(*examples, strict=True)
        return {
            "kspace": torch.stack(kspaces),
            "mask": torch.stack(masks),
            "target": torch.stack(targets),
            "maximum": torch.tensor(maxima),
            "volume": torch.tensor(numbers),
        }

    def _mask(self, volume: Volume, offset: int) -> Tensor:
        mask = offset_mask(volume.columns, self.centre, offset)
        first, end = volume.acquired
        mask[:first] = mask[end:] = False
        return mask

    def _slice(self, i: int) -> tuple[Tensor, Tensor]:
        if i in self._kept:
            return self._kept[i]
        number, position = self.index[i]
        path = self.volumes[number].path
        kspace, target = _read(
            path, self.source, lambda f: (f["kspace"][position], f["reconstruction_rss"][position])
        )
        return torch.from_numpy(kspace).to(torch.complex64), torch.from_numpy(target).float()


def load(
    folder: Path, *, centre: int, keep: bool = False, slices: int | None = None, source: str = OFFICIAL
) -> Splits:
    """Find the volumes. A fixed seed splits the patients of `multicoil_val` into validation and test.

    The official test set has no reconstructions. All files of one patient go to the same split.

    Args:
        folder: the folder with `multicoil_train` and `multicoil_val`.
        centre: number of low-frequency lines in every mask.
        keep: read all slices now and keep them in memory.
        slices: required number of training slices; any if None.
        source: where to get the data set, for error messages.
    """
    train, rest = (_volumes(folder / name, source) for name in (TRAIN, VALID))
    if slices is not None:
        found = sum(volume.slices for volume in train)
        check_count(folder / TRAIN, "slices", found, slices, source)
    patients = sorted({volume.patient for volume in rest})
    if len(patients) < 2:
        raise ValueError(
            f"{folder / VALID} has volumes of {len(patients)} patient, expected at least 2, one for "
            f"validation and one for test; {source}."
        )
    order = torch.randperm(len(patients), generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    chosen = {patients[i] for i in order[: len(order) // 2]}
    parts = {
        "train": train,
        "valid": [volume for volume in rest if volume.patient in chosen],
        "test": [volume for volume in rest if volume.patient not in chosen],
    }
    return Splits(
        **{name: Slices(part, centre=centre, keep=keep, source=source) for name, part in parts.items()}
    )


def _volumes(folder: Path, source: str) -> list[Volume]:
    expected = f"the folders {TRAIN} and {VALID}, with one .h5 file per volume"
    with reading(folder, expected, source):
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".h5")
    if not paths:
        raise FileNotFoundError(f"{folder} has no .h5 files: expected {expected}; {source}.")
    return [_read(path, source, lambda file, path=path: _describe(path, file)) for path in paths]  # type: ignore[misc]


def _read(path: Path, source: str, read: Callable[[Any], T]) -> T:
    import h5py  # type: ignore[import-untyped]

    with reading(path, EXPECTED, source), h5py.File(path, "r") as file:
        return read(file)


def _describe(path: Path, file: Any) -> Volume:
    kspace, target, header = file["kspace"], file["reconstruction_rss"], file["ismrmrd_header"][()]
    if kspace.ndim != 4 or kspace.dtype.kind != "c" or 0 in kspace.shape:
        raise ValueError(f"its kspace is {kspace.dtype} of the shape {kspace.shape}")
    if target.ndim != 3 or len(target) != len(kspace):
        raise ValueError(f"its reconstruction_rss has the shape {target.shape}, its kspace {kspace.shape}")
    if target.shape[1] > kspace.shape[2] or target.shape[2] > kspace.shape[3]:
        raise ValueError(f"its reconstruction_rss {target.shape} is larger than its kspace {kspace.shape}")
    maximum = float(file.attrs["max"])
    if not (math.isfinite(maximum) and maximum > 0):
        raise ValueError(f"its attribute max is {maximum}")
    columns = kspace.shape[3]
    return Volume(
        path, len(kspace), columns, _acquired(header, columns), maximum, str(file.attrs["patient_id"])
    )


def _acquired(header: bytes, columns: int) -> tuple[int, int]:
    """Return the range of acquired columns; the scanner pads the others with zeros."""
    text = header.decode()
    encoded = re.search(r"<encodedSpace>.*?<matrixSize>.*?<y>\s*(\d+)\s*</y>", text, re.DOTALL)
    limits = re.search(r"<kspace_encoding_step_1>(.*?)</kspace_encoding_step_1>", text, re.DOTALL)
    text = limits.group(1) if limits else ""
    last, centre = (re.search(rf"<{name}>\s*(\d+)\s*<", text) for name in ("maximum", "center"))
    if not (encoded and last and centre):
        raise ValueError("its ismrmrd_header has no encodedSpace or no kspace_encoding_step_1")
    first = int(encoded.group(1)) // 2 - int(centre.group(1))
    end = first + int(last.group(1)) + 1
    if not 0 <= first < end <= columns:
        raise ValueError(f"its ismrmrd_header has columns {first} to {end} of {columns}")
    return first, end
