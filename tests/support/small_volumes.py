"""fastMRI's files at a size of a few numbers, and k-space by chance."""

import h5py
import numpy as np
import torch

from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import phantoms


def kspace_of(*shape, seed=0, dtype=torch.complex128):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def write_small(folder, *, train=2, valid=4, **change):
    """A data set of volumes of two slices, two coils, 8 x 12, whose reconstructions are 6 x 10."""
    for name, count in ((fastmri.TRAIN, train), (fastmri.VALID, valid)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            write_file(folder / name / f"file{name[-3:]}{i}.h5", seed=i, patient=f"{name}{i // 2}", **change)
    return folder


def write_file(path, *, seed=0, patient="p", without=(), padding=0, slices=2, **change):
    kspace = kspace_of(slices, 2, 8, 12, seed=seed, dtype=torch.complex64).numpy()
    header = phantoms.HEADER.format(
        rows=8, columns=12, height=6, width=10, last=11 - 2 * padding, centre=6 - padding
    )
    content = {
        "kspace": kspace,
        "reconstruction_rss": np.full((slices, 6, 10), 3.0 + seed, np.float32),
        "ismrmrd_header": header.encode(),
        **change,
    }
    attributes = {
        "max": content.pop("max", 3.0 + seed),
        "norm": 1.0,
        "patient_id": patient,
        "acquisition": "x",
    }
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if name not in without:
                file[name] = value
        file.attrs.update({name: value for name, value in attributes.items() if name not in without})


def write_chests(folder, array=None):
    """The array of chests at its true size, each image a square of its own brightness."""
    (folder / chest_mri.FOLDER).mkdir(parents=True, exist_ok=True)
    if array is None:
        array = np.zeros((100, 256, 256), np.uint16)
        array[:, 64:192, 64:192] = 1000 * (1 + np.arange(100)[:, None, None] % 60)
    np.save(folder / chest_mri.FOLDER / chest_mri.NAME, array)
    return folder
