"""Scikit-learn's handwritten digits in CIFAR-10's format."""

import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dualavg_bench.data import cifar
from dualavg_bench.data.embedded import once

VERSION = "embedded-1"  # change it with the data: finished runs keep theirs
TEST_DIGITS = 297


def write(folder: Path) -> Path:
    """Write the 1,797 digits unless they exist. Return their folder."""
    return once(folder / VERSION / cifar.FOLDER, _write)


def read() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return grey pixels (n, 32, 32), labels (n,), and the numbers of the training and of the test digits."""
    from sklearn.datasets import load_digits  # slow to import

    small, labels = load_digits(return_X_y=True)
    grey = np.round(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    order = np.random.default_rng(0).permutation(len(labels))  # neighbours are by one writer
    return grey, labels, order[TEST_DIGITS:], order[:TEST_DIGITS]


def _write(folder: Path) -> None:
    grey, labels, train, test = read()
    pixels = grey[:, None].repeat(3, axis=1).reshape(-1, 3072)
    for name, numbers in (("data_batch_1", train), ("test_batch", test)):
        batch = {b"batch_label": name.encode(), b"labels": labels[numbers].tolist(), b"data": pixels[numbers]}
        file = io.BytesIO()
        _Python2Pickler(file, protocol=2).dump(batch)
        (folder / name).write_bytes(file.getvalue())


_Pickler: Any = pickle._Pickler  # the Python version, whose methods can be replaced; type stubs hide it


class _Python2Pickler(_Pickler):  # type: ignore[misc]
    """Writes bytes as Python 2 wrote strings; Python 3 would write a call of `_codecs.encode`."""

    dispatch: ClassVar[dict[type, Any]] = dict(_Pickler.dispatch)

    def _save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = _save_bytes
