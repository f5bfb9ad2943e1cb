"""Tiny files in fastMRI's format, and random k-space."""

import h5py
import numpy as np
import torch

from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import phantoms


def random_kspace(*shape, seed=0, dtype=torch.complex128):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def write_small(folder, *, train=2, valid=4, **change):
    """Volumes of two slices, two coils and 8 x 12 points, with reconstructions of 6 x 10 pixels."""
    for name, count in ((fastmri.TRAIN, train), (fastmri.VALID, valid)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            write_file(folder / name / f"file{name[-3:]}{i}.h5", seed=i, patient=f"{name}{i // 2}", **change)
    return folder


def write_file(path, *, seed=0, patient="p", without=(), padding=0, slices=2, **change):
    """One volume, without the entries in `without`; `change` replaces entries."""
    kspace = random_kspace(slices, 2, 8, 12, seed=seed, dtype=torch.complex64).numpy()
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
    """Chests at their true size: each image is a square of its own brightness."""
    (folder / chest_mri.FOLDER).mkdir(parents=True, exist_ok=True)
    if array is None:
        array = np.zeros((100, 256, 256), np.uint16)
        array[:, 64:192, 64:192] = 1000 * (1 + np.arange(100)[:, None, None] % 60)
    np.save(folder / chest_mri.FOLDER / chest_mri.NAME, array)
    return folder
