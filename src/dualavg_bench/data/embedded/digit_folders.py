"""Scikit-learn's handwritten digits, written as ImageNet: a grey JPEG each, a folder for each digit."""

from pathlib import Path

import numpy as np

from dualavg_bench.data.embedded import once

VERSION = "embedded-1"  # another picture, another number: finished runs keep what they saw
FOLDER = "digits-as-imagenet"
TEST_DIGITS = 297


def write(folder: Path) -> Path:
    """Write the 1,797 digits, once, and return where."""
    return once(folder / VERSION / FOLDER, _write)


def _write(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits  # slow to import, and needed once

    small, labels = load_digits(return_X_y=True)
    grey = np.round(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    order = np.random.default_rng(0).permutation(len(labels))  # neighbours are of one writer
    for part, which in (("val", order[:TEST_DIGITS]), ("train", order[TEST_DIGITS:])):
        for label in range(10):
            (folder / part / str(label)).mkdir(parents=True)
        for i in which:
            path = folder / part / str(labels[i]) / f"{i:04}.JPEG"
            Image.fromarray(grey[i]).save(path, format="JPEG", quality=95)
