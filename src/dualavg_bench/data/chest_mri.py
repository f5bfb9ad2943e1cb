"""100 MR magnitude images of chests in one array, turned into fastMRI volumes by simulation."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualavg_bench.data import fastmri
from dualavg_bench.data.embedded import phantoms
from dualavg_bench.data.reading import find_folder, reading
from dualavg_bench.recipe import Splits
from dualavg_bench.store.files import StoreError

FOLDER, NAME = "chest-mri", "chest100_uint16.npy"
EXPECTED = "an array of uint16 of the shape (100, 256, 256), as numpy.save writes it"
SOURCE = (
    "any 100 MR magnitude images of 256x256 pixels will do, each scaled to its own maximum, with the images "
    "of one subject next to each other (ours are chests); the scale quick needs no data"
)
SLICES, COILS = 7, 4
# Neighbouring images can show one subject. Some images repeat 13 to 22 images later, and 67 to 69 repeat as
# 85 to 83. With these cuts, no image resembles one of another block.
BLOCKS = {"a": (fastmri.TRAIN, 0, 67), "b": (fastmri.VALID, 67, 86), "c": (fastmri.VALID, 86, 100)}


def load(folder: Path, *, centre: int, size: int = 128) -> Splits:
    """Simulate the volumes in a temporary folder and read them. Each block of images counts as one patient.

    Nothing is written to `folder`: it may be read-only, and a cached copy could belong to another array.

    Args:
        folder: `chest-mri`, or its parent folder.
        centre: number of low-frequency lines in every mask.
        size: height and width of the images, a divisor of 256: a pixel is the mean of a square of pixels.
    """
    images = _read(find_folder(folder, FOLDER, NAME, EXPECTED, SOURCE) / NAME)
    try:
        with tempfile.TemporaryDirectory(prefix="dualavg-") as written:
            _write(images, Path(written), size)
            return fastmri.load(Path(written), centre=centre, keep=True)
    except OSError as error:
        raise StoreError(
            f"Cannot write simulated volumes to a temporary folder ({error.strerror or error}): free some "
            "space, or set the environment variable TMPDIR to another folder."
        ) from error


def _read(path: Path) -> NDArray[np.uint16]:
    with reading(path, EXPECTED, SOURCE):
        images: NDArray[np.uint16] = np.load(path, allow_pickle=False)
        if not isinstance(images, np.ndarray):
            raise TypeError("it is an archive")
        if images.dtype != np.uint16 or images.shape != (100, 256, 256):
            raise ValueError(f"it is {images.dtype} of the shape {images.shape}")
    return images


def _write(images: NDArray[np.uint16], folder: Path, size: int) -> None:
    square = images.shape[1] // size
    small = images.reshape(100, size, square, size, square).mean(axis=(2, 4)) / np.iinfo(np.uint16).max
    for patient, (name, first, end) in BLOCKS.items():
        (folder / name).mkdir(exist_ok=True)
        for start in range(first, end, SLICES):
            kspace = phantoms.measure(
                small[start : min(start + SLICES, end)], np.random.default_rng(start), coils=COILS
            )
            path = folder / name / f"chest{start:03d}.h5"
            phantoms.write_volume(path, kspace, crop=size, patient=patient)
