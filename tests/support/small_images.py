"""A few images in the formats of CIFAR-10 and ImageNet."""

import io

import numpy as np
import torch
from PIL import Image

from dualavg_bench.data.embedded import digits

MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
SMALL = {"classes": 3, "valid_of_class": 2, "size": 16, "resize": 18}


def python2_pickle(value):
    """The bytes that Python 2 would write."""
    file = io.BytesIO()
    digits._Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def cifar_batch(pixels, labels):
    """One file of CIFAR-10."""
    return python2_pickle({b"data": pixels, b"labels": labels})


def write_batches(folder, **files):
    """CIFAR-10 with 20 black training images and 20 black test images, except for `files`."""
    black = cifar_batch(np.zeros((20, 3072), np.uint8), [0] * 20)
    for name, raw in {"data_batch_1": black, "test_batch": black, **files}.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


def smooth(height, width, seed=0):
    """A picture without sharp edges: JPEG keeps it, and all ways to resize it agree."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(256, size=(6, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def write_folders(folder, *, train=6, val=2, classes=("n01", "n02", "n10")):
    """ImageNet with a few images per class."""
    for i, name in enumerate(classes):
        for part, count in (("train", train), ("val", val)):
            (folder / part / name).mkdir(parents=True)
            for j in range(count):
                path = folder / part / name / f"{name}_{j}.JPEG"
                smooth(20 + i, 24 + j, seed=100 * i + j).save(path, format="JPEG", quality=95)
    return folder


def unnormalized(images):
    """Pixels from 0 to 255 of a batch of ImageNet."""
    return (images * STD + MEAN) * 255
