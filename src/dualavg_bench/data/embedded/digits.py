"""Scikit-learn's handwritten digits, written as CIFAR-10."""

import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dualavg_bench.data import cifar
from dualavg_bench.data.embedded import once

VERSION = "embedded-1"  # another picture, another number: finished runs keep what they saw
TEST_DIGITS = 297


def write(folder: Path) -> Path:
    """Write the 1,797 digits, once, and return where."""
    return once(folder / VERSION / cifar.FOLDER, _write)


def _write(folder: Path) -> None:
    from sklearn.datasets import load_digits  # slow to import, and needed once

    small, labels = load_digits(return_X_y=True)
    grey = np.round(small.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels = grey.repeat(3, axis=1).repeat(4, axis=2).repeat(4, axis=3).reshape(-1, 3072)
    order = np.random.default_rng(0).permutation(len(labels))  # neighbours are of one writer
    test, train = order[:TEST_DIGITS], order[TEST_DIGITS:]
    for name, part in (("data_batch_1", train), ("test_batch", test)):
        batch = {b"batch_label": name.encode(), b"labels": labels[part].tolist(), b"data": pixels[part]}
        file = io.BytesIO()
        _Python2Pickler(file, protocol=2).dump(batch)
        (folder / name).write_bytes(file.getvalue())


_Pickler: Any = pickle._Pickler  # the one in Python, whose parts can be replaced; type stubs hide its methods


class _Python2Pickler(_Pickler):  # type: ignore[misc]
    """Writes bytes as Python 2 wrote its strings; Python 3 would write a call of `_codecs.encode`."""

    dispatch: ClassVar[dict[type, Any]] = dict(_Pickler.dispatch)

    def _save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = _save_bytes
