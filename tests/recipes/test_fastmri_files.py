"""fastMRI's format: what is read and refused; phantoms and chests in this format."""

import pickle
import re

import h5py
import numpy as np
import pytest
import torch
from support.small_volumes import write_chests, write_file, write_small

from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import phantoms
from dualavg_bench.data.fastmri import centre_crop, ifft2c, root_sum_of_squares
from dualavg_bench.run.data import fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def written(embedded):
    return phantoms.write(embedded)


@pytest.fixture(scope="module")
def splits(written):
    return fastmri.load(written, centre=2, keep=True)


# The reader


def test_a_slice_is_read_unchanged(tmp_path):
    source = fastmri.load(write_small(tmp_path), centre=2).train
    batch = source.batch(torch.tensor([3]), None)
    with h5py.File(source.volumes[1].path) as file:
        kspace = torch.from_numpy(file["kspace"][1])
    mask = batch["mask"][0]
    assert torch.equal(batch["kspace"][0][..., mask], kspace[..., mask])
    assert batch["target"].shape == (1, 6, 10)
    assert batch["target"].unique().tolist() == batch["maximum"].tolist() == [4.0]
    assert batch["volume"].tolist() == [1]


def test_columns_that_were_not_acquired_are_not_in_the_mask(tmp_path):
    full = fastmri.load(write_small(tmp_path / "a"), centre=2).train.batch(torch.tensor([0]), None)["mask"][0]
    part = fastmri.load(write_small(tmp_path / "b", padding=2), centre=2).train
    assert part.volumes[0].acquired == (2, 10)
    mask = part.batch(torch.tensor([0]), None)["mask"][0]
    assert torch.equal(mask[2:10], full[2:10])
    assert not mask[:2].any()
    assert not mask[10:].any()
    assert full[:2].any() or full[10:].any()


def test_slices_are_read_on_demand_or_kept(tmp_path):
    write_small(tmp_path)
    for keep in (False, True):
        source = fastmri.load(tmp_path, centre=2, keep=keep).train
        before = source.batch(torch.tensor([0]), None)["target"].mean().item()
        with h5py.File(source.volumes[0].path, "a") as file:
            file["reconstruction_rss"][...] = before + 1
        after = source.batch(torch.tensor([0]), None)["target"].mean().item()
        assert after == (before if keep else before + 1)


def test_sources_can_be_pickled(splits):
    source = splits.valid
    source.batch(torch.arange(2), None)
    copy = pickle.loads(pickle.dumps(source))
    a, b = (each.batch(torch.arange(3), None) for each in (source, copy))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_no_volume_and_no_patient_is_in_two_splits(tmp_path, splits):
    for parts in (splits, fastmri.load(write_small(tmp_path, valid=16), centre=2)):
        for attribute in ("path", "patient"):
            seen = [
                {getattr(volume, attribute) for volume in part.volumes}
                for part in (parts.train, parts.valid, parts.test)
            ]
            assert sum(map(len, seen)) == len(set.union(*seen))
        assert len(parts.valid.volumes) == len(parts.test.volumes) > 0
    assert sorted({int(v.patient[-1]) for v in parts.valid.volumes}) == [3, 4, 6, 7]  # must never change


def test_masks_are_fixed_by_volume_in_evaluation_and_random_in_training(splits):
    source = splits.train
    everything = torch.arange(len(source))
    fixed = source.batch(everything, None)
    for volume in range(len(source.volumes)):
        assert len(fixed["mask"][fixed["volume"] == volume].unique(dim=0)) == 1
    assert len(fixed["mask"].unique(dim=0)) == 2
    assert torch.equal(fixed["mask"], source.batch(everything, None)["mask"])
    state = torch.get_rng_state()
    first, second = (source.batch(everything, torch.Generator().manual_seed(5))["mask"] for _ in range(2))
    other = source.batch(everything, torch.Generator().manual_seed(6))["mask"]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())
    assert {len(m.unique(dim=0)) for m in first.view(-1, phantoms.SLICES, phantoms.SIZE)} == {1, 2}
    assert 0.3 < (first == fixed["mask"]).all(dim=1).float().mean() < 0.7


def test_kspace_is_zero_outside_the_mask(splits):
    batch = splits.valid.batch(torch.arange(4), None)
    assert (batch["kspace"].abs().sum(dim=(1, 2)) > 0).eq(batch["mask"]).all()


MALFORMED = {
    "no kspace": {"without": ("kspace",)},
    "no reconstruction": {"without": ("reconstruction_rss",)},
    "no header": {"without": ("ismrmrd_header",)},
    "no max": {"without": ("max",)},
    "no patient": {"without": ("patient_id",)},
    "a single coil": {"kspace": np.zeros((2, 8, 12), np.complex64)},
    "no complex numbers": {"kspace": np.zeros((2, 2, 8, 12), np.float32)},
    "no slices": {"slices": 0},
    "one reconstruction too few": {"reconstruction_rss": np.zeros((1, 6, 10), np.float32)},
    "a reconstruction too large": {"reconstruction_rss": np.zeros((2, 6, 13), np.float32)},
    "a flat reconstruction": {"reconstruction_rss": np.zeros((6, 10), np.float32)},
    "a maximum of zero": {"max": 0.0},
    "a maximum that is no number": {"max": float("nan")},
    "an empty header": {"ismrmrd_header": b"<ismrmrdHeader/>"},
    "a header that is no text": {"ismrmrd_header": b"\xff\xfe"},
    "a header of another file": {"padding": -3},
}


def is_one_line(message, path):
    assert str(path) in message
    assert "HDF5 file with kspace" in message
    assert "https://fastmri.med.nyu.edu/" in message
    assert "\n" not in message
    return True


@pytest.mark.parametrize("name", [fastmri.TRAIN, fastmri.VALID])
@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_volume_gives_a_one_line_error(tmp_path, change, name):
    path = write_small(tmp_path) / name / "other.h5"
    write_file(path, **change)
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        fastmri.load(tmp_path, centre=2)
    assert is_one_line(str(caught.value), path)


@pytest.mark.parametrize("raw", [b"", b"<html>404</html>", None], ids=["empty", "text", "truncated"])
def test_a_volume_that_is_not_hdf5_gives_a_one_line_error(tmp_path, raw):
    path = next((write_small(tmp_path) / fastmri.VALID).glob("*.h5"))
    path.write_bytes(path.read_bytes()[:-500] if raw is None else raw)
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        fastmri.load(tmp_path, centre=2)
    assert is_one_line(str(caught.value), path)


def test_a_volume_damaged_after_loading_gives_a_one_line_error(tmp_path):
    source = fastmri.load(write_small(tmp_path), centre=2).train
    path = source.volumes[0].path
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        source.batch(torch.tensor([0]), None)
    assert is_one_line(str(caught.value), path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="is missing") as caught:
        source.batch(torch.tensor([0]), None)
    assert is_one_line(str(caught.value), path)


@pytest.mark.parametrize("name", [fastmri.TRAIN, fastmri.VALID])
def test_a_folder_without_volumes_is_refused(tmp_path, name):
    for path in (write_small(tmp_path) / name).iterdir():
        path.unlink()
    message = re.escape(f"{tmp_path / name} has no .h5 files") + ".*https://fastmri"
    with pytest.raises(FileNotFoundError, match=message):
        fastmri.load(tmp_path, centre=2)


def test_a_single_patient_for_validation_and_test_is_refused(tmp_path):
    write_small(tmp_path, valid=2)
    message = r"multicoil_val has volumes of 1 patient, expected at least 2.*https://fastmri"
    with pytest.raises(ValueError, match=message):
        fastmri.load(tmp_path, centre=2)


def test_another_number_of_slices_is_refused(tmp_path):
    assert fastmri.load(write_small(tmp_path), centre=2, slices=4)
    with pytest.raises(ValueError, match=r"multicoil_train has 4 slices, expected 34,742.*https://fastmri"):
        fastmri.load(tmp_path, centre=2, slices=34_742)


# Phantoms and chests


def test_phantoms_have_fastmris_format(written):
    paths = sorted(written.rglob("*.h5"))
    assert len(paths) == sum(phantoms.VOLUMES.values())
    with h5py.File(paths[0]) as file:
        assert set(file) == {"kspace", "reconstruction_rss", "ismrmrd_header"}
        assert set(file.attrs) == {"max", "norm", "patient_id", "acquisition"}
        kspace, target = file["kspace"][()], file["reconstruction_rss"][()]
        assert (kspace.dtype, target.dtype) == (np.complex64, np.float32)
        assert kspace.shape == (phantoms.SLICES, phantoms.COILS, phantoms.SIZE, phantoms.SIZE)
        images = root_sum_of_squares(ifft2c(torch.from_numpy(kspace)))
        assert np.array_equal(centre_crop(images, phantoms.CROP, phantoms.CROP).numpy(), target)
        assert file.attrs["max"] == target.max()
        assert file.attrs["norm"] == pytest.approx(np.linalg.norm(target))


def test_phantoms_are_deterministic(written, tmp_path):
    again = phantoms.write(tmp_path)
    one, two = (fastmri.load(each, centre=2).test.batch(torch.arange(5), None) for each in (written, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert len(torch.unique(one["target"], dim=0)) == 5


def test_each_coil_is_most_sensitive_at_its_own_place():
    rng = np.random.default_rng(0)
    images = np.ones((1, 32, 32))
    coils = ifft2c(torch.from_numpy(phantoms.measure(images, rng, coils=4)))[0].abs()
    places = {divmod(coil[4:-4, 4:-4].argmax().item(), 24) for coil in coils}
    assert len(places) == 4
    residue = coils - torch.nn.functional.avg_pool2d(coils[None], 3, 1, 1)[0]
    assert 0.5 * phantoms.NOISE < residue[:, 8:-8, 8:-8].std() < 1.2 * phantoms.NOISE


def test_chests_are_split_by_blocks_and_their_folder_is_not_changed(tmp_path):
    splits = chest_mri.load(write_chests(tmp_path), centre=6)
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [67, 19, 14]
    numbers = [
        sorted(int(v.path.stem[-3:]) + s for v in part.volumes for s in range(v.slices))
        for part in (splits.train, splits.valid, splits.test)
    ]
    assert numbers == [list(range(67)), list(range(67, 86)), list(range(86, 100))]
    assert [path.name for path in (tmp_path / chest_mri.FOLDER).iterdir()] == [chest_mri.NAME]
    again = chest_mri.load(tmp_path / chest_mri.FOLDER, centre=6)
    assert fingerprint(again, test=True) == fingerprint(splits, test=True)
    brightness = splits.train.batch(torch.tensor([0, 30]), None)["target"].amax(dim=(1, 2))
    assert brightness[1] / brightness[0] > 4


def test_chests_have_the_resolution_that_is_asked_for(tmp_path):
    array = np.zeros((100, 256, 256), np.uint16)
    array[:, :128] = 40_000  # the upper half is bright, whatever the resolution
    for size in (32, 64):
        batch = chest_mri.load(write_chests(tmp_path, array), centre=2, size=size).test.batch(
            torch.tensor([0]), None
        )
        assert batch["kspace"].shape == (1, chest_mri.COILS, size, size)
        assert batch["target"].shape == (1, size, size)
        upper, lower = batch["target"][0].split(size // 2)
        assert upper.mean() > 10 * lower.mean()


@pytest.mark.parametrize(
    "array",
    [np.zeros((99, 256, 256), np.uint16), np.zeros((100, 256, 256)), b"", b"<html>"],
    ids=["too few", "floats", "empty", "text"],
)
def test_a_malformed_array_of_chests_gives_a_one_line_error(tmp_path, array):
    path = write_chests(tmp_path, np.zeros(1)) / chest_mri.FOLDER / chest_mri.NAME
    if isinstance(array, bytes):
        path.write_bytes(array)
    else:
        np.save(path, array)
    message = re.escape(f"{path} is not an array of uint16 of the shape (100, 256, 256)")
    with pytest.raises(ValueError, match=message) as caught:
        chest_mri.load(tmp_path, centre=6)
    assert "\n" not in str(caught.value)
    assert [file.name for file in path.parent.iterdir()] == [chest_mri.NAME]
