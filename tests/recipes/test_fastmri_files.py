"""fastMRI's format: what is read and measured, what is refused; phantoms and chests written in it."""

import pickle
import re
import shutil

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


@pytest.fixture
def splits(written):
    return fastmri.load(written, centre=2, keep=True)


# The reader


def test_a_slice_is_what_the_file_says(tmp_path):
    source = fastmri.load(write_small(tmp_path), centre=2).train
    batch = source.batch(torch.tensor([3]), None)
    with h5py.File(source.volumes[1].path) as file:
        kspace = torch.from_numpy(file["kspace"][1])
    mask = batch["mask"][0]
    assert torch.equal(batch["kspace"][0][..., mask], kspace[..., mask])
    assert batch["target"].shape == (1, 6, 10)
    assert batch["target"].unique().tolist() == batch["maximum"].tolist() == [4.0]
    assert batch["volume"].tolist() == [1]


def test_columns_that_the_scanner_never_acquired_are_not_in_the_mask(tmp_path):
    full = fastmri.load(write_small(tmp_path / "a"), centre=2).train.batch(torch.tensor([0]), None)["mask"][0]
    part = fastmri.load(write_small(tmp_path / "b", padding=2), centre=2).train
    assert part.volumes[0].acquired == (2, 10)
    mask = part.batch(torch.tensor([0]), None)["mask"][0]
    assert torch.equal(mask[2:10], full[2:10])
    assert not mask[:2].any()
    assert not mask[10:].any()
    assert full[:2].any() or full[10:].any()


def test_slices_are_read_when_asked_for_and_kept_if_wanted(tmp_path):
    write_small(tmp_path)
    for keep in (False, True):
        source = fastmri.load(tmp_path, centre=2, keep=keep).train
        before = source.batch(torch.tensor([0]), None)["target"].mean().item()
        with h5py.File(source.volumes[0].path, "a") as file:
            file["reconstruction_rss"][...] = before + 1
        after = source.batch(torch.tensor([0]), None)["target"].mean().item()
        assert after == (before if keep else before + 1)


def test_sources_travel_between_processes(splits):
    source = splits.valid
    source.batch(torch.arange(2), None)
    copy = pickle.loads(pickle.dumps(source))
    a, b = (each.batch(torch.arange(3), None) for each in (source, copy))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_no_volume_and_no_patient_is_in_two_splits(tmp_path, splits):
    for parts in (splits, fastmri.load(write_small(tmp_path, valid=16), centre=2)):
        for what in ("path", "patient"):
            seen = [
                {getattr(v, what) for v in part.volumes} for part in (parts.train, parts.valid, parts.test)
            ]
            assert sum(map(len, seen)) == len(set.union(*seen))
        assert len(parts.valid.volumes) == len(parts.test.volumes) > 0
    # Today's, and every day's.
    assert sorted({int(v.patient[-1]) for v in parts.valid.volumes}) == [3, 4, 6, 7]


def test_evaluation_has_one_mask_a_volume_and_training_one_by_chance(splits):
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


def test_what_was_not_measured_is_not_seen(splits):
    batch = splits.valid.batch(torch.arange(4), None)
    assert (batch["kspace"].abs().sum(dim=(1, 2)) > 0).eq(batch["mask"]).all()


SPOILT = {
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


def is_one_sentence(message, path):
    assert str(path) in message
    assert "HDF5 file with kspace" in message
    assert "https://fastmri.med.nyu.edu/" in message
    assert "\n" not in message
    return True


@pytest.mark.parametrize("name", [fastmri.TRAIN, fastmri.VALID])
@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_volume_is_one_sentence_with_path_and_remedy(tmp_path, change, name):
    path = write_small(tmp_path) / name / "other.h5"
    write_file(path, **change)
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        fastmri.load(tmp_path, centre=2)
    assert is_one_sentence(str(caught.value), path)


@pytest.mark.parametrize("raw", [b"", b"<html>404</html>", None], ids=["empty", "text", "truncated"])
def test_a_volume_that_is_no_hdf5_is_one_sentence_with_path_and_remedy(tmp_path, raw):
    path = next((write_small(tmp_path) / fastmri.VALID).glob("*.h5"))
    path.write_bytes(path.read_bytes()[:-500] if raw is None else raw)
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        fastmri.load(tmp_path, centre=2)
    assert is_one_sentence(str(caught.value), path)


def test_a_volume_that_vanishes_or_breaks_in_between_is_one_sentence_too(tmp_path):
    source = fastmri.load(write_small(tmp_path), centre=2).train
    path = source.volumes[0].path
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match="is not an HDF5 file") as caught:
        source.batch(torch.tensor([0]), None)
    assert is_one_sentence(str(caught.value), path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="is missing") as caught:
        source.batch(torch.tensor([0]), None)
    assert is_one_sentence(str(caught.value), path)


def test_missing_folders_and_a_single_patient_are_one_sentence(tmp_path):
    for name in (fastmri.TRAIN, fastmri.VALID):
        write_small(tmp_path)
        shutil.rmtree(tmp_path / name)
        for said in ("is missing", "has no .h5 files"):
            expected = re.escape(f"{tmp_path / name} {said}") + ".*https://fastmri"
            with pytest.raises(FileNotFoundError, match=expected):
                fastmri.load(tmp_path, centre=2)
            (tmp_path / name).mkdir(exist_ok=True)
    write_small(tmp_path / "one", valid=2)
    with pytest.raises(ValueError, match=r"multicoil_val has volumes of 1 patient .*https://fastmri"):
        fastmri.load(tmp_path / "one", centre=2)


# Phantoms and chests


def test_phantoms_are_official_files(written):
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


def test_phantoms_are_written_once_and_always_the_same(written, tmp_path):
    again = phantoms.write(tmp_path)
    stamp = next(again.rglob("*.h5")).stat().st_mtime_ns
    assert phantoms.write(tmp_path) == again
    assert next(again.rglob("*.h5")).stat().st_mtime_ns == stamp
    one, two = (fastmri.load(each, centre=2).test.batch(torch.arange(5), None) for each in (written, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert len(torch.unique(one["target"], dim=0)) == 5


def test_coils_see_the_same_body_from_different_sides():
    rng = np.random.default_rng(0)
    images = np.ones((1, 32, 32))
    coils = ifft2c(torch.from_numpy(phantoms.measure(images, rng, coils=4)))[0].abs()
    # Each coil is brightest at its own place on the rim, and its noise is what was said.
    places = {divmod(coil[4:-4, 4:-4].argmax().item(), 24) for coil in coils}
    assert len(places) == 4
    residue = coils - torch.nn.functional.avg_pool2d(coils[None], 3, 1, 1)[0]
    assert 0.5 * phantoms.NOISE < residue[:, 8:-8, 8:-8].std() < 1.2 * phantoms.NOISE


def test_chests_are_split_by_blocks_and_nothing_is_written_beside(tmp_path):
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


@pytest.mark.parametrize(
    "array",
    [np.zeros((99, 256, 256), np.uint16), np.zeros((100, 256, 256)), None, b"", b"<html>"],
    ids=["too few", "floats", "missing", "empty", "text"],
)
def test_a_bad_array_of_chests_is_one_sentence(tmp_path, array):
    path = write_chests(tmp_path, np.zeros(1)) / chest_mri.FOLDER / chest_mri.NAME
    if array is None:
        path.unlink()
    elif isinstance(array, bytes):
        path.write_bytes(array)
    else:
        np.save(path, array)
    kind, words = (FileNotFoundError, "is missing: an") if array is None else (ValueError, "is not an")
    expected = re.escape(f"{path} {words} array of uint16 of the shape (100, 256, 256)")
    with pytest.raises(kind, match=expected) as caught:
        chest_mri.load(tmp_path, centre=6)
    assert "\n" not in str(caught.value)
    assert [each.name for each in path.parent.iterdir()] == ([] if array is None else [chest_mri.NAME])
