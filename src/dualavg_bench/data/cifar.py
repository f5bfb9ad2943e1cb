"""CIFAR-10 in its official format: Python 2 pickles, read without running any code in them."""

import io
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from dualavg_bench.data.reading import check_count, find_folder, reading
from dualavg_bench.recipe import Splits

FOLDER = "cifar-10-batches-py"
EXPECTED = f"a folder {FOLDER} with data_batch_1 to data_batch_5 and test_batch"
OFFICIAL = "get 'CIFAR-10 python version' from https://www.cs.toronto.edu/~kriz/cifar.html"
SPLIT_SEED = 20201020


class Images:
    """Images of one split, stored as bytes. `batch` returns floats from -1 to 1.

    With `rng`, each image is flipped with probability 1/2 and shifted by up to `padding` pixels, with black
    borders.
    """

    def __init__(self, pixels: Tensor, labels: Tensor, padding: int = 4) -> None:
        self.pixels, self.labels, self.padding = pixels, labels, padding

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return images (n, 3, 32, 32) and labels (n,)."""
        pixels = self.pixels[indices]
        if rng is not None:
            pixels = self._augment(pixels, rng)
        return pixels.float().div_(127.5).sub_(1.0), self.labels[indices]

    def _augment(self, pixels: Tensor, rng: torch.Generator) -> Tensor:
        n, size = len(pixels), pixels.shape[-1]
        flip = torch.rand(n, 1, generator=rng) < 0.5
        top, left = torch.randint(2 * self.padding + 1, (2, n, 1), generator=rng)
        offset = torch.arange(size)
        rows, columns = top + offset, left + torch.where(flip, offset.flip(0), offset)
        padded = F.pad(pixels, 4 * [self.padding])
        # Index tensors with a slice between them put the indexed dimensions first: (n, 32, 32, 3).
        shifted = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return shifted.permute(0, 3, 1, 2).contiguous()


def load(
    folder: Path,
    *,
    one_in: int = 10,
    images: tuple[int, int] | None = None,
    batches: int = 5,
    part: int | None = None,
    source: str = OFFICIAL,
) -> Splits:
    """Read the splits. A fixed seed draws the validation images from the training images.

    Args:
        folder: `cifar-10-batches-py`, or its parent folder. The first few of the five training batches are
            enough.
        one_in: one training image in `one_in` is kept for validation.
        images: required numbers of training and test images; any if None.
        batches: how many training batches are read, if there are as many.
        part: train on so many of the images that are left after validation; on all of them if None.
        source: where to get the data set, for error messages.
    """
    inner = find_folder(folder, FOLDER, "data_batch_1", EXPECTED, source)
    last = max((i for i in range(1, batches + 1) if os.path.lexists(inner / f"data_batch_{i}")), default=1)
    # A missing batch before the last one is an error.
    parts = [_read(inner / f"data_batch_{i}", source) for i in range(1, last + 1)]
    pixels, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    test = Images(*_read(inner / "test_batch", source))
    if images is not None:
        check_count(inner, "training images", len(labels), images[0], source)
        check_count(inner, "test images", len(test), images[1], source)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    valid, train = order[: len(order) // one_in], order[len(order) // one_in :]
    if part is not None:
        if part > len(train):
            raise ValueError(f"{inner} has {len(train):,} images for training, expected {part:,}; {source}.")
        train = train[:part]
    return Splits(
        train=Images(pixels[train], labels[train]),
        valid=Images(pixels[valid], labels[valid]),
        test=test,
    )


def _read(path: Path, source: str) -> tuple[Tensor, Tensor]:
    expected = "a pickled dict with b'data', bytes of shape (n, 3072), and b'labels', n numbers from 0 to 9"
    with reading(path, expected, source):
        pixels, labels = _unpickle(path.read_bytes())
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.tensor(labels)


def _unpickle(raw: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    batch = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(batch, dict) or not isinstance(array := batch.get(b"data"), _Array):
        raise TypeError("it has no such dict")
    pixels, labels = array.value, batch.get(b"labels")
    if pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) == 0:
        raise ValueError(f"its data has the shape {pixels.shape}")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise ValueError(f"it does not have {len(pixels)} labels")
    if not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("a label is not a number from 0 to 9")
    return pixels, labels


class _DType:
    """Replaces numpy.dtype; CIFAR needs only bytes."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array of {code!r}, expected bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like: bytes have none."""


class _Array:
    """Replaces numpy's array and its constructor, so that numpy never sees arguments from the file."""

    value: NDArray[np.uint8]

    def __init__(self, *_: object) -> None:
        self.value = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of other values than bytes")
        flat = np.frombuffer(bytearray(raw), np.uint8)
        self.value = np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))


class _Unpickler(pickle.Unpickler):
    """Accepts lists, dicts, strings, numbers and arrays of bytes. Imports nothing."""

    ACCEPTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of an accepted class; refuse all others."""
        if (module, name) not in self.ACCEPTED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is not an array and was not run"
            )
        return self.ACCEPTED[module, name]
