"""Phantoms: bodies of ellipsoids, measured by a simulated MRI scanner, in fastMRI's format."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dualavg_bench.data import fastmri
from dualavg_bench.data.embedded import once

VERSION = "embedded-2"  # change it with the data: finished runs keep theirs
VOLUMES = {fastmri.TRAIN: 32, fastmri.VALID: 12}
SLICES, SIZE, CROP, COILS = 3, 32, 28, 3
NOISE = 0.01  # standard deviation, real and imaginary, in a coil's k-space, for images of maximum 1

HEADER = """<?xml version="1.0" encoding="UTF-8"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>{rows}</x><y>{columns}</y><z>1</z></matrixSize></encodedSpace>
<reconSpace><matrixSize><x>{height}</x><y>{width}</y><z>1</z></matrixSize></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{centre}</center>
</kspace_encoding_step_1></encodingLimits></encoding></ismrmrdHeader>
"""


def write(folder: Path) -> Path:
    """Write the volumes unless they exist. Return their folder."""
    return once(folder / VERSION / "phantoms", _write)


def _write(folder: Path) -> None:
    number = 0
    for name, volumes in VOLUMES.items():
        (folder / name).mkdir()
        for _ in range(volumes):
            rng = np.random.default_rng(number)
            kspace = measure(_body(rng), rng, coils=COILS)
            title = f"phantom{number:03d}"
            write_volume(folder / name / f"{title}.h5", kspace, crop=CROP, patient=title)
            number += 1


def measure(images: NDArray[np.float64], rng: np.random.Generator, *, coils: int) -> NDArray[np.complex64]:
    """Simulate a measurement of slices. Return its k-space (slices, coils, rows, columns).

    The image has a smooth phase, the same in all slices, as from a field that is not quite uniform. The coils
    lie on a ring; each is most sensitive nearby and has a smooth phase of its own. The noise is white and
    complex.
    """
    y, x = _plane(*images.shape[1:])
    phase = np.exp(1j * _smooth(rng, y, x, scale=1.0))
    rotation = rng.uniform(0, 2 * np.pi)
    sensitivities = []
    for coil in range(coils):
        angle = rotation + 2 * np.pi * coil / coils
        squared_distance = (y - 1.2 * np.sin(angle)) ** 2 + (x - 1.2 * np.cos(angle)) ** 2
        sensitivities.append(np.exp(-squared_distance / 2.5 + 1j * (angle + _smooth(rng, y, x, scale=0.5))))
    kspace = fastmri.fft2c(torch.from_numpy((images * phase)[:, None] * np.stack(sensitivities))).numpy()
    noise = NOISE * images.max() * rng.standard_normal((2, *kspace.shape))
    measured: NDArray[np.complex64] = (kspace + noise[0] + 1j * noise[1]).astype(np.complex64)
    return measured


def write_volume(path: Path, kspace: NDArray[np.complex64], *, crop: int, patient: str) -> None:
    """Write a volume in fastMRI's format. Its reconstruction uses all lines, with their noise."""
    import h5py  # type: ignore[import-untyped]

    images = fastmri.root_sum_of_squares(fastmri.ifft2c(torch.from_numpy(kspace)))
    target = fastmri.centre_crop(images, crop, crop).numpy()
    rows, columns = kspace.shape[2:]
    sizes = {"rows": rows, "columns": columns, "height": crop, "width": crop}
    header = HEADER.format(**sizes, last=columns - 1, centre=columns // 2)
    with h5py.File(path, "w") as file:
        file["kspace"], file["reconstruction_rss"], file["ismrmrd_header"] = kspace, target, header.encode()
        file.attrs.update(
            max=float(target.max()),
            norm=float(np.linalg.norm(target)),
            patient_id=patient,
            acquisition="SIMULATED",
        )


def _plane(rows: int, columns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates y and x from -1 to 1."""
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    return y, x


def _smooth(
    rng: np.random.Generator, y: NDArray[np.float64], x: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """Return a random quadratic surface."""
    a, b, c, d, e = scale * rng.standard_normal(5)
    surface: NDArray[np.float64] = a * x + b * y + c * x * y + d * x * x + e * y * y
    return surface


def _body(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return slices of a body: one large ellipsoid, and twenty inside it, brighter or darker."""
    y, x = _plane(SIZE, SIZE)
    depth = np.linspace(-0.4, 0.4, SLICES)[:, None, None]
    total = 0.5 * _ellipsoid(y, x, depth, (0, 0, 0), (rng.uniform(0.6, 0.8), rng.uniform(0.6, 0.8), 1.5), 0)
    inside = total > 0.25
    for _ in range(20):
        centre = (*rng.uniform(-0.6, 0.6, 2), rng.uniform(-0.4, 0.4))
        axes = (*rng.uniform(0.04, 0.3, 2), rng.uniform(0.2, 0.8))
        height = rng.uniform(0.1, 0.4) * rng.choice([-1, 1])
        total += height * inside * _ellipsoid(y, x, depth, centre, axes, rng.uniform(0, np.pi))
    body: NDArray[np.float64] = np.clip(total, 0, None) / total.max()
    return body


def _ellipsoid(
    y: NDArray[np.float64],
    x: NDArray[np.float64],
    z: NDArray[np.float64],
    centre: tuple[float, ...],
    axes: tuple[float, ...],
    angle: float,
) -> NDArray[np.float64]:
    """Return 1 inside and 0 outside, with an edge about one pixel wide, as a scanner would see it."""
    v = np.cos(angle) * (y - centre[0]) + np.sin(angle) * (x - centre[1])
    u = np.cos(angle) * (x - centre[1]) - np.sin(angle) * (y - centre[0])
    radius = np.sqrt((v / axes[0]) ** 2 + (u / axes[1]) ** 2 + ((z - centre[2]) / axes[2]) ** 2)
    pixels = (1 - radius) * min(axes[:2]) * SIZE / 2
    shape: NDArray[np.float64] = 1 / (1 + np.exp(-4 * np.clip(pixels, -10, 10)))
    return shape
