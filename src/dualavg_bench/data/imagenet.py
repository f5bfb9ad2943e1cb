"""ImageNet in its usual folders, `train/<class>/*.JPEG` and `val/<class>/*.JPEG`, read by Pillow.

Crops and resizing follow torchvision's for Pillow images: bilinear, and with antialiasing when an image gets
smaller, because Pillow always does that.
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

from dualavg_bench.data.reading import check_count, find_folder, missing, reading
from dualavg_bench.recipe import Splits

OFFICIAL = "get ILSVRC 2012 from https://image-net.org/download-images.php"
TINY = (
    "get Tiny ImageNet from http://cs231n.stanford.edu/tiny-imagenet-200.zip and sort 20 of its classes into "
    "train/<class> and val/<class> of a folder tiny-imagenet-20"
)
EXPECTED = "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG, the same classes in both"
SUFFIXES = (".jpeg", ".jpg", ".png")
SPLIT_SEED = 20201020
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Pixels = NDArray[np.uint8]  # (height, width, 3)
Classes = dict[str, list[str]]  # files by class
Box = tuple[int, int, int, int]  # top, left, height, width


class Images:
    """Images of one split, normalized with ImageNet's usual mean and standard deviation.

    With `rng`, `batch` takes a random crop of each image and flips it with probability 1/2; without, it takes
    the centre.

    Args:
        images: pixels, or paths of files that are read for each batch.
        labels: their classes.
        size: height and width of what `batch` returns.
        resize: length of the shorter edge before the centre crop.
        source: where to get the data set, for error messages.
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
            # Always as many numbers per image, so that crops do not depend on the other images.
            draws = torch.rand(n, TRIES, 4, generator=rng).tolist()
            flip = torch.rand(n, 1, 1, 1, generator=rng) < 0.5
        images = [self.images[i] for i in indices.tolist()]
        apply = _in_threads if isinstance(images[0], str) else map  # threads are faster for files only
        pixels = torch.from_numpy(np.stack(list(apply(self._crop, images, draws)))).permute(0, 3, 1, 2)
        if rng is not None:
            pixels = torch.where(flip, pixels.flip(3), pixels)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return (pixels.contiguous().float() / 255 - mean) / std, self.labels[indices]

    def _crop(self, image: Pixels | str, draws: list[list[float]] | None) -> Pixels:
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
    """Read the splits. `val` is the test set; a fixed seed draws the validation images from `train`.

    Args:
        folder: the folder with `train` and `val`, or its parent folder.
        name: name of the folder with `train` and `val`.
        classes: required number of classes.
        images: required numbers of images in `train` and in `val`; any if None.
        valid_of_class: number of images of each class that are kept for validation.
        size: height and width of the images of a batch.
        resize: length of the shorter edge before the centre crop, in evaluation.
        in_memory: read all images now and keep their pixels, for small data sets.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, name, "train", EXPECTED, source)
    train, test = (_files(inner / part, source) for part in ("train", "val"))
    _check_classes(inner, train, test, classes, source)
    if images is not None:
        for part, files_by_class, expected in zip(("train", "val"), (train, test), images, strict=True):
            check_count(inner / part, "images", sum(map(len, files_by_class.values())), expected, source)
    rng = torch.Generator().manual_seed(SPLIT_SEED)
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "valid": [], "test": []}
    for label, (class_name, files) in enumerate(train.items()):
        if len(files) <= valid_of_class:
            raise ValueError(
                f"{inner / 'train' / class_name} has {len(files)} images, expected more than the "
                f"{valid_of_class} for validation; {source}."
            )
        order = torch.randperm(len(files), generator=rng).tolist()
        parts["valid"] += [(files[i], label) for i in order[:valid_of_class]]
        parts["train"] += [(files[i], label) for i in order[valid_of_class:]]
        parts["test"] += [(file, label) for file in test[class_name]]
    splits = {}
    for part, pairs in parts.items():
        files = [file for file, _ in pairs]
        pictures = _in_threads(read, files, [source] * len(files)) if in_memory else files
        splits[part] = Images(pictures, torch.tensor([label for _, label in pairs]), size, resize, source)
    return Splits(**splits)


def read(path: str, source: str = OFFICIAL) -> Pixels:
    """Return the pixels of an image file, converted to RGB."""
    from PIL import Image

    with reading(path, "a readable JPEG", source), Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def random_box(draws: list[list[float]], height: int, width: int) -> Box:
    """Return a random crop of an image of this size.

    Its area is 8% to 100% of the image's, and its aspect ratio 3/4 to 4/3, uniform in the logarithm. If no
    attempt fits into the image, it is the largest centred crop with an aspect ratio in that range.

    Args:
        draws: for each attempt four uniform numbers from 0 to 1: area, aspect ratio, top and left.
        height: of the image.
        width: of the image.
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
    """Resize the shorter edge to `resize` and return the central square of `size`."""
    height, width, _ = pixels.shape
    short = min(height, width)
    height, width = resize * height // short, resize * width // short
    top, left = round((height - size) / 2), round((width - size) / 2)
    return _resized(pixels, height, width)[top : top + size, left : left + size]


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def _in_threads(function: Callable[..., Pixels], *arguments: Iterable[Any]) -> list[Pixels]:
    """Map, in order, in threads: Pillow releases the interpreter lock while it reads and resizes."""
    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        warnings.simplefilter("ignore")  # some ImageNet files have broken EXIF data, their pixels are fine
        return list(pool.map(function, *arguments))


def _files(folder: Path, source: str) -> Classes:
    """Return the images of each class. Classes and images are sorted by name: disks have their own order."""
    with reading(folder, EXPECTED, source):
        names = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    classes = {}
    for name in names:
        with reading(folder / name, EXPECTED, source):
            files = sorted(e.path for e in _entries(folder / name) if e.name.lower().endswith(SUFFIXES))
        if not files:
            raise FileNotFoundError(f"{folder / name} has no images: expected {EXPECTED}; {source}.")
        classes[name] = files
    if not classes:
        raise FileNotFoundError(
            f"{folder} has no class folders (images directly in it must be sorted into them): "
            f"expected {EXPECTED}; {source}."
        )
    return classes


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _check_classes(folder: Path, train: Classes, test: Classes, classes: int, source: str) -> None:
    for name in [*train, *test]:
        for part, found in (("train", train), ("val", test)):
            if name not in found:
                raise missing(folder / part / name, EXPECTED, source)
    check_count(folder / "train", "classes", len(train), classes, source)
