"""A hundred MR images of chests, one array of magnitudes, measured once more by simulation, as fastMRI."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualavg_bench.data import fastmri
from dualavg_bench.data.embedded import once, phantoms
from dualavg_bench.recipe import Splits

FOLDER, NAME = "chest-mri", "chest100_uint16.npy"
VERSION = "fastmri-1"  # another simulation, another number: finished runs keep what they saw
SOURCE = (
    "it is an array of 100 MR magnitude images of chests, for which any other of that shape can stand, "
    "or use the scale quick, which needs no data"
)
EXPECTED = "an array of uint16 of the shape (100, 256, 256)"
SLICES, SIZE, COILS = 7, 128, 4
# Neighbours can be of one subject, and some come again 13 to 22 images later, and 67 to 69 as 85 to 83.
# Cut here, no image is much like one of another block.
BLOCKS = {"a": (fastmri.TRAIN, 0, 67), "b": (fastmri.VALID, 67, 86), "c": (fastmri.VALID, 86, 100)}


def load(folder: Path, *, centre: int) -> Splits:
    """Write the volumes beside the array, once, and read them; a block of images counts as one patient.

    Args:
        folder: `chest-mri`, or the folder that it is in.
        centre: low-frequency lines that every mask has.
    """
    inner = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    written = once(inner / VERSION, lambda draft: _write(_read(inner / NAME), draft))
    return fastmri.load(
        written, centre=centre, keep=True, source=f"remove {written}, and it is written again"
    )


def _read(path: Path) -> NDArray[np.uint16]:
    try:
        images: NDArray[np.uint16] = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {EXPECTED}, was expected; {SOURCE}.") from None
    except Exception as error:  # a spoilt array can raise anything
        raise ValueError(f"{path} is not {EXPECTED} ({error}); {SOURCE}.") from error
    if not isinstance(images, np.ndarray) or images.dtype != np.uint16 or images.shape != (100, 256, 256):
        found = (
            f"{images.dtype} of the shape {images.shape}" if isinstance(images, np.ndarray) else "an archive"
        )
        raise ValueError(f"{path} is not {EXPECTED} (it is {found}); {SOURCE}.")
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
