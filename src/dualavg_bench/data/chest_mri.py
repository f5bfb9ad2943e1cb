"""A hundred MR images of chests, one array of magnitudes, measured once more by simulation, as fastMRI."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualavg_bench.data import fastmri
from dualavg_bench.data.embedded import phantoms
from dualavg_bench.data.reading import folder_of, reading
from dualavg_bench.recipe import Splits
from dualavg_bench.store.files import StoreError

FOLDER, NAME = "chest-mri", "chest100_uint16.npy"
EXPECTED = "an array of uint16 of the shape (100, 256, 256), as numpy.save writes it"
SOURCE = (
    "ours holds 100 MR magnitude images of chests, each scaled to its own maximum; any 100 MR magnitude "
    "images of 256x256 will do, those of one subject side by side, and the scale quick needs none"
)
SLICES, SIZE, COILS = 7, 128, 4
# Neighbours can be of one subject, and some come again 13 to 22 images later, and 67 to 69 as 85 to 83.
# Cut here, no image is much like one of another block.
BLOCKS = {"a": (fastmri.TRAIN, 0, 67), "b": (fastmri.VALID, 67, 86), "c": (fastmri.VALID, 86, 100)}


def load(folder: Path, *, centre: int) -> Splits:
    """Simulate the volumes in a temporary folder and read them; a block of images counts as one patient.

    Nothing is written to `folder`: it may be read-only, and what was kept there could be of another array.

    Args:
        folder: `chest-mri`, or the folder that it is in.
        centre: low-frequency lines that every mask has.
    """
    images = _read(folder_of(folder, FOLDER, NAME, EXPECTED, SOURCE) / NAME)
    try:
        with tempfile.TemporaryDirectory(prefix="dualavg-") as written:
            _write(images, Path(written))
            return fastmri.load(Path(written), centre=centre, keep=True)
    except OSError as error:
        raise StoreError(
            f"A temporary folder for simulated volumes cannot be written ({error.strerror or error}): make "
            "room, or name another place in the environment variable TMPDIR."
        ) from error


def _read(path: Path) -> NDArray[np.uint16]:
    with reading(path, EXPECTED, SOURCE):
        images: NDArray[np.uint16] = np.load(path, allow_pickle=False)
        if not isinstance(images, np.ndarray):
            raise TypeError("it is an archive")
        if images.dtype != np.uint16 or images.shape != (100, 256, 256):
            raise ValueError(f"it is {images.dtype} of the shape {images.shape}")
    return images


def _write(images: NDArray[np.uint16], folder: Path) -> None:
    # Half the resolution, by means of two by two.
    halves = images.reshape(100, SIZE, 2, SIZE, 2).mean(axis=(2, 4)) / np.iinfo(np.uint16).max
    for patient, (name, first, end) in BLOCKS.items():
        (folder / name).mkdir(exist_ok=True)
        for start in range(first, end, SLICES):
            kspace = phantoms.measure(
                halves[start : min(start + SLICES, end)], np.random.default_rng(start), coils=COILS
            )
            path = folder / name / f"chest{start:03d}.h5"
            phantoms.write_volume(path, kspace, crop=SIZE, patient=patient)
