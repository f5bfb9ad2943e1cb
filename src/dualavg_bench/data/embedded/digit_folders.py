"""Scikit-learn's handwritten digits in ImageNet's folders: grey JPEGs, one folder per digit."""

from pathlib import Path

from dualavg_bench.data.embedded import digits, once

VERSION = "embedded-1"  # change it with the data: finished runs keep theirs
FOLDER = "digits-as-imagenet"


def write(folder: Path) -> Path:
    """Write the 1,797 digits unless they exist. Return their folder."""
    return once(folder / VERSION / FOLDER, _write)


def _write(folder: Path) -> None:
    from PIL import Image

    grey, labels, train, test = digits.read()
    for part, numbers in (("val", test), ("train", train)):
        for label in range(10):
            (folder / part / str(label)).mkdir(parents=True)
        for i in numbers:
            path = folder / part / str(labels[i]) / f"{i:04}.JPEG"
            Image.fromarray(grey[i]).save(path, format="JPEG", quality=95)
