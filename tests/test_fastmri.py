"""fastMRI: the official format, the mask, the network number for number, SSIM, and the recipe's claims."""

import os
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from dualavg_bench import optimizers, samples
from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import phantoms
from dualavg_bench.data.fastmri import centre_crop, fft2c, ifft2c, offset_mask, root_sum_of_squares
from dualavg_bench.models.varnet import Cascade, NormUNet, UNet, VarNet
from dualavg_bench.recipe import Point
from dualavg_bench.recipes import fastmri as experiment

BESIDE = Path(__file__).parent.parent.parent / "shared" / "data"
REAL = Path(os.environ.get("DUALAVG_DATA", BESIDE))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return phantoms.write(tmp_path_factory.mktemp("embedded"))


@pytest.fixture
def splits(written):
    return fastmri.load(written, centre=2, keep=True)


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


# The transform


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (7, 12), (10, 9), (5, 5)])
def test_transforms_are_orthonormal_and_each_other_s_inverse(rows, columns):
    image = kspace_of(2, 3, rows, columns)
    assert torch.allclose(ifft2c(fft2c(image)), image, atol=1e-12)
    assert torch.allclose(fft2c(ifft2c(image)), image, atol=1e-12)
    assert fft2c(image).norm().item() == pytest.approx(image.norm().item(), rel=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (7, 12), (10, 9)])
def test_transforms_are_centred(rows, columns):
    # A constant image is one point in the middle of k-space, and a point in the middle a constant k-space.
    middle = torch.zeros(rows, columns, dtype=torch.complex128)
    middle[rows // 2, columns // 2] = (rows * columns) ** 0.5
    ones = torch.ones(rows, columns, dtype=torch.complex128)
    assert torch.allclose(fft2c(ones), middle, atol=1e-12)
    assert torch.allclose(fft2c(middle), ones, atol=1e-12)


def test_the_transform_is_the_sum_it_should_be():
    image = kspace_of(5, 6)
    y, x = torch.arange(5).double() - 2, torch.arange(6).double() - 3
    wave = torch.exp(-2j * torch.pi * (1 * y[:, None] / 5 - 2 * x[None] / 6))
    expected = (image * wave).sum() / 30**0.5
    assert fft2c(image)[2 + 1, 3 - 2].item() == pytest.approx(expected.item(), abs=1e-12)


def test_root_sum_of_squares_adds_up_coils():
    coils = torch.tensor([3 + 4j, 12j]).view(2, 1, 1).expand(2, 3, 4)
    assert torch.allclose(root_sum_of_squares(coils), torch.full((3, 4), 13.0))


def test_the_crop_is_central():
    image = torch.arange(7 * 8).view(7, 8)
    assert centre_crop(image, 3, 4).tolist() == image[2:5, 2:6].tolist()


# The mask


@pytest.mark.parametrize("columns", [368, 372, 320, 640])
@pytest.mark.parametrize("offset", [1, -1])
def test_the_mask_has_16_lines_in_the_middle_and_every_fourth_off_by_one(columns, offset):
    mask = offset_mask(columns, 16, offset)
    frequency = torch.arange(columns) - columns // 2
    assert mask[(frequency >= -8) & (frequency < 8)].all()
    outer = frequency[mask & ((frequency < -8) | (frequency >= 8))]
    assert set((outer % 4).tolist()) == {offset % 4}
    assert mask.sum() == columns // 4 + 12
    assert 3.4 < columns / mask.sum() < 4


def test_the_mask_measures_no_line_twice_by_symmetry():
    # Defazio's point: of the outer lines, none is the mirror image of another, so that half are known.
    frequency = torch.arange(368) - 184
    for offset, mirrored in ((1, 0), (-1, 0), (0, 1), (2, 1)):
        outer = set(frequency[offset_mask(368, 0, offset)].tolist()) - {-184}
        twice = sum(-k in outer for k in outer) / len(outer)
        assert twice == pytest.approx(mirrored, abs=0.02)


def test_the_mask_is_that_of_fastmri():
    # MagicMaskFunc of fastmri 0.3.0, acceleration 4, 37 columns of which 4 are central, offsets 0 and 1.
    theirs = {
        1: [3, 7, 11, 15, 17, 18, 19, 20, 23, 27, 31, 35],
        -1: [1, 5, 9, 13, 17, 18, 19, 20, 21, 25, 29, 33],
    }
    for offset, lines in theirs.items():
        assert offset_mask(37, 4, offset).nonzero().flatten().tolist() == lines


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
        expected = re.escape(f"{tmp_path / name} has no .h5 files") + ".*https://fastmri"
        with pytest.raises(FileNotFoundError, match=expected):
            fastmri.load(tmp_path, centre=2)
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


def write_chests(folder, array=None):
    (folder / chest_mri.FOLDER).mkdir(parents=True, exist_ok=True)
    if array is None:
        array = np.zeros((100, 256, 256), np.uint16)
        array[:, 64:192, 64:192] = 1000 * (1 + np.arange(100)[:, None, None] % 60)
    np.save(folder / chest_mri.FOLDER / chest_mri.NAME, array)
    return folder


def test_chests_are_split_by_blocks_and_written_once_beside(tmp_path):
    splits = chest_mri.load(write_chests(tmp_path), centre=6)
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [67, 19, 14]
    numbers = [
        sorted(int(v.path.stem[-3:]) + s for v in part.volumes for s in range(v.slices))
        for part in (splits.train, splits.valid, splits.test)
    ]
    assert numbers == [list(range(67)), list(range(67, 86)), list(range(86, 100))]
    stamp = splits.train.volumes[0].path.stat().st_mtime_ns
    again = chest_mri.load(tmp_path / chest_mri.FOLDER, centre=6)
    assert again.train.volumes[0].path == splits.train.volumes[0].path
    assert again.train.volumes[0].path.stat().st_mtime_ns == stamp
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


def test_the_real_chests(tmp_path):
    if not (REAL / chest_mri.FOLDER / chest_mri.NAME).is_file():
        pytest.skip(f"no {chest_mri.FOLDER} in {REAL}")
    shutil.copytree(REAL / chest_mri.FOLDER, tmp_path / "chests")
    splits = experiment.recipe("mini").data(tmp_path / "chests")
    batch = splits.valid.batch(torch.arange(4), None)
    assert batch["kspace"].shape == (4, 4, 128, 128)
    assert batch["target"].shape == (4, 128, 128)
    values = scores(ZeroFilled(), splits.valid)
    assert 0.4 < values["ssim"] < 0.8


# The network


def fill(model):
    """Give every weight the sine of its number, so that a reference needs no file."""
    first = 0
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("consistency"):
                p.fill_(0.9)
            else:
                numbers = torch.arange(first, first + p.numel(), dtype=torch.float64)
                p.copy_(0.3 * numbers.sin().view_as(p))
                first += p.numel()
    return model


def test_the_network_is_fastmri_s_number_for_number():
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=3, centre=4).double())
    n = torch.arange(2 * 3 * 20 * 26, dtype=torch.float64)
    kspace = torch.complex((n * n / 50).cos(), (n / 7).sin()).view(2, 3, 20, 26)
    mask = torch.stack([offset_mask(26, 4, offset) for offset in (1, -1)])
    images = model(torch.where(mask[:, None, None], kspace, 0), mask)
    assert images.shape == (2, 20, 26)
    # What fastmri 0.3.0 makes of the same weights, k-space and mask, in double precision.
    theirs = [
        *(1.243738609, 0.703081136, 0.412631021, 0.99368432, 0.738175092, 0.601972401),
        *(2.317967707, 1.272648971, 0.81597725, 1.265685326, 0.751875361, 1.060870011),
        *(0.82694822, 0.562860732, 0.823171915, 2.235539167, 1.314841654, 2.16105719),
    ]
    assert images[:, ::9, ::11].flatten().tolist() == pytest.approx(theirs, abs=1e-8)
    assert images.mean().item() == pytest.approx(0.9435139482155384, abs=1e-12)


def test_the_network_of_the_paper_has_30_million_parameters():
    recipe = experiment.recipe("paper")
    with torch.device("meta"):
        model = recipe.model()
        mask = torch.ones(1, 368, dtype=torch.bool)
        assert model(torch.zeros(1, 15, 640, 368, dtype=torch.complex64), mask).shape == (1, 640, 368)
    assert len(model.cascades) == 12
    assert sum(p.numel() for p in model.parameters()) == 29_936_966  # fastmri 0.3.0's VarNet(12)


def test_data_consistency_restores_the_measured_lines():
    cascade = Cascade(4, 2).double()
    cascade.refine = FindsNothing()
    measured, kspace, maps = (kspace_of(1, 3, 16, 20, seed=i) for i in range(3))
    mask = offset_mask(20, 4, 1)
    made = cascade(kspace, measured, mask, maps)
    assert torch.allclose(made[..., mask], measured[..., mask], atol=1e-12)
    assert torch.equal(made[..., ~mask], kspace[..., ~mask])
    torch.nn.init.constant_(cascade.consistency, 0.25)
    made = cascade(kspace, measured, mask, maps)
    assert torch.allclose(made[..., mask], (0.75 * kspace + 0.25 * measured)[..., mask], atol=1e-12)


class FindsNothing(torch.nn.Module):
    def forward(self, image):
        return torch.zeros_like(image)


def test_images_scale_with_k_space():
    # fastMRI's values are about 1e-5; instance norm has a constant, but sees only what was normalized.
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    mask = offset_mask(24, 4, 1)[None]
    kspace = torch.where(mask[:, None, None], kspace_of(1, 2, 18, 24), 0)
    assert torch.allclose(model(1e-5 * kspace, mask), 1e-5 * model(kspace, mask), rtol=1e-9)


def test_slices_of_a_batch_do_not_see_each_other():
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    mask = torch.stack([offset_mask(24, 4, offset) for offset in (1, -1)])
    kspace = torch.where(mask[:, None, None], kspace_of(2, 2, 18, 24), 0)
    one_by_one = torch.cat([model(kspace[i : i + 1], mask[i : i + 1]) for i in range(2)])
    assert torch.allclose(model(kspace, mask), one_by_one, rtol=1e-9)


def test_sensitivities_come_from_the_middle_alone_and_have_norm_one():
    model = fill(VarNet(1, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    kspace = kspace_of(1, 3, 18, 24)
    maps = model.sensitivities(kspace)
    changed = kspace.clone()
    changed[..., :10] = changed[..., 14:] = 0
    assert torch.equal(model.sensitivities(changed), maps)
    assert torch.allclose(root_sum_of_squares(maps), torch.ones(1, 18, 24, dtype=torch.float64))
    changed[..., 10] = 0
    assert not torch.allclose(model.sensitivities(changed), maps)


def test_padding_leaves_no_trace_in_the_shape():
    net = fill(NormUNet(4, 3).double())
    for rows, columns in ((16, 16), (17, 31), (33, 20)):
        assert net(kspace_of(2, 1, rows, columns)).shape == (2, 1, rows, columns)


@pytest.mark.parametrize("pools", [0, 5])
def test_pools_beyond_the_padding_are_refused(pools):
    with pytest.raises(ValueError, match="1 to 4 pools"):
        UNet(2, 2, 4, pools)


# SSIM


class ZeroFilled(torch.nn.Module):
    def forward(self, kspace, mask):
        return root_sum_of_squares(ifft2c(kspace))


def scores(model, source, size=9):
    with torch.no_grad():
        parts = torch.arange(len(source)).split(size)
        return experiment.evaluate(model, (source.batch(part, None) for part in parts))


def test_ssim_is_scikit_image_s():
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.rand(3, 20, 31, dtype=torch.float64, generator=rng) for _ in range(2))
    b[1] = a[1] + 0.1 * b[1]
    maximum = torch.tensor([1.0, 0.3, 7.0], dtype=torch.float64)
    theirs = [
        structural_similarity(x.numpy(), y.numpy(), data_range=m.item())
        for x, y, m in zip(a, b, maximum, strict=True)
    ]
    assert experiment.ssim(a, b, maximum).tolist() == pytest.approx(theirs, abs=1e-12)
    assert experiment.ssim(a, a, maximum).tolist() == pytest.approx([1, 1, 1])


def test_ssim_is_a_mean_over_volumes_and_the_loss_over_slices(splits):
    source = splits.valid
    shorter = [replace(v, slices=1) if i == 0 else v for i, v in enumerate(source.volumes)]
    source = fastmri.Slices(shorter, centre=2, keep=True)
    values = scores(ZeroFilled(), source)
    batch = source.batch(torch.arange(len(source)), None)
    each = experiment.ssim(
        experiment.reconstruct(ZeroFilled(), batch), batch["target"], batch["maximum"]
    ).double()
    by_volume = [each[batch["volume"] == v].mean() for v in range(len(shorter))]
    assert values["ssim"] == pytest.approx(torch.stack(by_volume).mean().item(), abs=1e-5)
    assert values["loss"] == pytest.approx(1 - each.mean().item(), abs=1e-6)
    assert abs(values["ssim"] + values["loss"] - 1) > 1e-4


# The recipe


def test_training_beats_filling_with_zeros(splits):
    recipe = experiment.recipe("quick")
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = optimizers.make("adam", model.parameters(), Point(0.01), {})
    rng = torch.Generator().manual_seed(0)
    for _ in range(25):
        indices = torch.randint(len(splits.train), (recipe.batch_size,), generator=rng)
        optimizer.zero_grad()
        recipe.loss(model, splits.train.batch(indices, rng)).backward()
        optimizer.step()
    assert scores(model, splits.valid)["ssim"] > scores(ZeroFilled(), splits.valid)["ssim"]


def test_samples_are_the_middle_slices_of_two_test_volumes(splits):
    recipe = experiment.recipe("quick")
    torch.manual_seed(0)
    with torch.no_grad():
        pictures = recipe.samples(recipe.model(), splits.test)
    assert [p.title for p in pictures] == [v.path.stem for v in splits.test.volumes[:2]]
    for picture, volume in zip(pictures, splits.test.volumes, strict=False):
        with h5py.File(volume.path) as file:
            middle = torch.from_numpy(file["reconstruction_rss"][phantoms.SLICES // 2])
        assert torch.equal(picture.truth, middle)
        assert samples.to_json(picture)["shape"] == [phantoms.CROP, phantoms.CROP]
        assert not torch.equal(picture.made, picture.truth)


def test_spoilt_phantoms_say_how_to_mend_them(tmp_path):
    recipe = experiment.recipe("quick")
    recipe.data(tmp_path)
    next(tmp_path.rglob("*.h5")).write_bytes(b"")
    with pytest.raises(ValueError, match="remove the folder"):
        recipe.data(tmp_path)


def test_fastmri_at_paper_scale_is_the_appendix():
    recipe = experiment.recipe("paper")
    assert recipe.batch_size == recipe.accumulate == 8
    assert recipe.steps == 50 * (34_742 // 8)
    assert recipe.precision == "float32"
    assert recipe.seeds.confirm == 5
    assert recipe.data.keywords == {"centre": 16}
    assert recipe.model().sensitivities.centre == 16
    assert fastmri.ACCELERATION == 4
    for grid in recipe.grids.values():
        assert grid.weight_decay == (0.0,)
        assert grid.schedule == ("flat_drop",)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = optimizers.make_schedule("flat_drop", recipe.schedules, optimizer, recipe.steps)
    epoch = recipe.steps // 50
    factors = [schedule.factor(k) for k in (0, 40 * epoch - 1, 40 * epoch, 50 * epoch - 1)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1])


@pytest.mark.slow
def test_two_steps_at_the_shape_of_a_knee(tmp_path):
    # 15 coils, 640 x 368, cropped to 320 x 320. Two cascades of twelve: memory grows with their number.
    recipe = experiment.recipe("paper")
    for name, count in ((fastmri.TRAIN, 1), (fastmri.VALID, 2)):
        (tmp_path / name).mkdir()
        for i in range(count):
            rng = np.random.default_rng(i)
            y, x = np.mgrid[-1:1:640j, -1:1:368j]
            body = ((y / 0.4) ** 2 + (x / 0.8) ** 2 < 1) * (1 + np.sin(40 * x * y))
            kspace = 1e-5 * phantoms.measure(body[None], rng, coils=15)
            phantoms.write_volume(tmp_path / name / f"knee{i}.h5", kspace, crop=320, patient=f"{name}{i}")
    source = recipe.data(tmp_path).train
    torch.manual_seed(0)
    model = recipe.model.func(2, **recipe.model.keywords)
    optimizer = optimizers.make("adam", model.parameters(), Point(0.001), {})
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        value = recipe.loss(model, source.batch(torch.tensor([0]), torch.Generator().manual_seed(0)))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert 0 < losses[1] < losses[0] < 1.5
