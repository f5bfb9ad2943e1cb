"""ImageNet as its folders are laid out: `train/<class>/*.JPEG` and `val/<class>/*.JPEG`, read by Pillow.

Crops and sizes are torchvision's for Pillow images, written anew: bilinear, and with antialias where an image
is made smaller, because Pillow has no other way.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data.reading import check_count, folder_of, reading
from dualavg_bench.recipe import Splits

OFFICIAL = "get ILSVRC 2012 from https://image-net.org/download-images.php"
TINY = (
    "sort 20 classes of Tiny ImageNet, http://cs231n.stanford.edu/tiny-imagenet-200.zip, into train/<class> "
    "and val/<class> of a folder tiny-imagenet-20"
)
EXPECTED = "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG, the same classes in both"
SUFFIXES = (".jpeg", ".jpg", ".png")
SPLIT_SEED = 20201020
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Pixels = NDArray[np.uint8]  # (height, width, 3)
Classes = dict[str, list[str]]  # the files of each
Box = tuple[int, int, int, int]  # top, left, height, width


class Images:
    """Images of one split, all of one size in a batch, with the channels' usual mean and deviation taken out.

    With `rng`, each image is a random part of itself, flipped half of the time; without, its centre.

    Args:
        images: pixels, or files that are read anew for each batch.
        labels: their classes.
        size: pixels of an edge of what `batch` returns.
        resize: pixels of the shorter edge before the centre is taken.
        source: where the data set can be had, for messages.
    """

    def __init__(
        self, images: Sequence[Pixels | str], labels: Tensor, size: int, resize: int, source: str
    ) -> None:
        self.images, self.labels, self.size, self.resize = images, labels, size, resize
        self.source = source

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return images (n, 3, size, size) and labels (n,)."""
        n = len(indices)
        draws: list[list[list[float]] | None] = [None] * n
        if rng is not None:
            # Of the same shape whatever the images are: their order of reading must not matter.
            draws = torch.rand(n, TRIES, 4, generator=rng).tolist()
            flip = torch.rand(n, 1, 1, 1, generator=rng) < 0.5
        images = [self.images[i] for i in indices.tolist()]
        apply = _in_threads if isinstance(images[0], str) else map  # threads pay where files are read
        pixels = torch.from_numpy(np.stack(list(apply(self._one, images, draws)))).permute(0, 3, 1, 2)
        if rng is not None:
            pixels = torch.where(flip, pixels.flip(3), pixels)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return (pixels.contiguous().float() / 255 - mean) / std, self.labels[indices]

    def _one(self, image: Pixels | str, draws: list[list[float]] | None) -> Pixels:
        pixels = read(image, self.source) if isinstance(image, str) else image
        if draws is None:
            return centre(pixels, self.resize, self.size)
        top, left, height, width = random_box(draws, pixels.shape[0], pixels.shape[1])
        return _resized(pixels[top : top + height, left : left + width], self.size, self.size)


def load(
    folder: Path,
    name: str = "imagenet",
    *,
    classes: int = 1000,
    images: tuple[int, int] | None = None,
    valid_of_class: int = 50,
    size: int = 224,
    resize: int = 256,
    in_memory: bool = False,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits; `val` is for testing, images for validation are drawn from `train` by a fixed seed.

    Args:
        folder: the folder with `train` and `val`, or the folder that it is in.
        name: what the folder with `train` and `val` is called.
        classes: how many there must be.
        images: how many there must be in `train` and in `val`; any number if None.
        valid_of_class: images of each class that are for validation.
        size: pixels of an edge.
        resize: pixels of the shorter edge before the centre is taken, where nothing is random.
        in_memory: read all images now and keep their pixels, for data sets that are small.
        source: where the data set can be had, for messages.
    """
    inner = folder_of(folder, name, "train", EXPECTED, source)
    train, test = (_files(inner / part, source) for part in ("train", "val"))
    _check_classes(inner, train, test, classes, source)
    for part, found, wanted in zip(("train", "val"), (train, test), images or (), strict=False):
        check_count(inner / part, "images", sum(map(len, found.values())), wanted, source)
    rng = torch.Generator().manual_seed(SPLIT_SEED)
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "valid": [], "test": []}
    for label, (name_of_class, files) in enumerate(train.items()):
        if len(files) <= valid_of_class:
            raise ValueError(
                f"{inner / 'train' / name_of_class} has {len(files)} images where more than the "
                f"{valid_of_class} for validation were expected; {source}."
            )
        order = torch.randperm(len(files), generator=rng).tolist()
        parts["valid"] += [(files[i], label) for i in order[:valid_of_class]]
        parts["train"] += [(files[i], label) for i in order[valid_of_class:]]
        parts["test"] += [(file, label) for file in test[name_of_class]]
    made = {}
    for part, pairs in parts.items():
        files = [file for file, _ in pairs]
        pictures = _in_threads(read, files, [source] * len(files)) if in_memory else files
        made[part] = Images(pictures, torch.tensor([label for _, label in pairs]), size, resize, source)
    return Splits(**made)


def read(path: str, source: str = OFFICIAL) -> Pixels:
    """Return an image in red, green and blue, whatever colours its file has."""
    from PIL import Image

    with reading(path, "a JPEG that can be read", source), Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def random_box(draws: list[list[float]], height: int, width: int) -> Box:
    """Return a part of an image of this size, from up to ten tries of four numbers from 0 to 1.

    Its area is 8% to 100% of the image's and its aspect 3/4 to 4/3, uniform in the logarithm. Where no try
    fits into the image, it is the largest centred part with an aspect in that range.
    """
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    for u_area, u_aspect, u_top, u_left in draws:
        area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * u_area)
        aspect = math.exp(low + (high - low) * u_aspect)
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            return int(u_top * (height - h + 1)), int(u_left * (width - w + 1)), h, w
    h, w = min(height, round(width / ASPECT[0])), min(width, round(height * ASPECT[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def centre(pixels: Pixels, resize: int, size: int) -> Pixels:
    """Return the central square of `size`, after the shorter edge was made `resize` long."""
    height, width, _ = pixels.shape
    short = min(height, width)
    height, width = resize * height // short, resize * width // short
    top, left = round((height - size) / 2), round((width - size) / 2)
    return _resized(pixels, height, width)[top : top + size, left : left + size]


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def _in_threads(function: Callable[..., Pixels], *arguments: Iterable[Any]) -> list[Pixels]:
    """Map in the order of the arguments; Pillow reads and resizes beside Python's other threads."""
    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        warnings.simplefilter("ignore")  # broken EXIF, of which ImageNet has some, says nothing of the pixels
        return list(pool.map(function, *arguments))


def _files(folder: Path, source: str) -> Classes:
    """Return the images of each class, both in the order of their names, which the disk's is not."""
    with reading(folder, EXPECTED, source):
        names = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    found = {}
    for name in names:
        with reading(folder / name, EXPECTED, source):
            files = sorted(e.path for e in _entries(folder / name) if e.name.lower().endswith(SUFFIXES))
        if not files:
            raise FileNotFoundError(f"{folder / name} has no images: {EXPECTED}, was expected; {source}.")
        found[name] = files
    if not found:
        raise FileNotFoundError(
            f"{folder} has no folders of classes (images that lie in it directly must be sorted into them): "
            f"{EXPECTED}, was expected; {source}."
        )
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _check_classes(folder: Path, train: Classes, test: Classes, classes: int, source: str) -> None:
    for part, other, this in (("train", train, test), ("val", test, train)):
        for name in this:
            if name not in other:
                raise FileNotFoundError(
                    f"{folder / part / name} is missing: {EXPECTED}, was expected; {source}."
                )
    check_count(folder / "train", "classes", len(train), classes, source)
