"""ImageNet: its folders, its crops, its network, and the recipe that is made of them."""

import math
import os
import re
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dualavg_bench.data import imagenet
from dualavg_bench.data.embedded import digit_folders
from dualavg_bench.models.resnet import ResNet, resnet50
from dualavg_bench.recipes.imagenet import recipe

BESIDE = Path(__file__).parent.parent.parent / "shared" / "data"
REAL = Path(os.environ.get("DUALAVG_DATA", BESIDE))
MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
SMALL = {"classes": 3, "valid_of_class": 2, "size": 16, "resize": 18}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def smooth(height, width, seed=0):
    """A picture without sharp edges, which a JPEG keeps and every way to resize agrees on."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(256, size=(6, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def write_folders(folder, *, train=6, val=2, classes=("n01", "n02", "n10")):
    for i, name in enumerate(classes):
        for part, count in (("train", train), ("val", val)):
            (folder / part / name).mkdir(parents=True)
            for j in range(count):
                path = folder / part / name / f"{name}_{j}.JPEG"
                smooth(20 + i, 24 + j, seed=100 * i + j).save(path, format="JPEG", quality=95)
    return folder


def pixels_of(images):
    return (images * STD + MEAN) * 255


def source_of(*arrays, size=16, resize=18):
    return imagenet.Images(list(arrays), torch.arange(len(arrays)), size, resize, "source")


def boxes(height, width, n=4000, seed=0):
    draws = torch.rand(n, 10, 4, generator=torch.Generator().manual_seed(seed)).tolist()
    return np.array([imagenet.random_box(each, height, width) for each in draws])


# Folders


def test_digits_come_back_as_they_went_in(tmp_path):
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    test = np.random.default_rng(0).permutation(len(labels))[: digit_folders.TEST_DIGITS]
    expected = sorted((labels[i], i) for i in test)
    source = imagenet.load(
        digit_folders.write(tmp_path), classes=10, valid_of_class=30, size=32, resize=32, in_memory=True
    ).test
    images, read = source.batch(torch.arange(len(source)), None)
    assert read.tolist() == [label for label, _ in expected]
    grey = pixels_of(images)[:, 1].unflatten(2, (8, 4)).unflatten(1, (8, 4)).mean(dim=(2, 4))
    wanted = torch.tensor(np.array([small[i] for _, i in expected]).reshape(-1, 8, 8) * (255 / 16))
    assert (grey - wanted).abs().max() < 8  # a JPEG is not exact
    assert torch.equal(images, source.batch(torch.arange(len(source)), None)[0])


def test_images_are_floats_and_labels_whole_numbers(tmp_path):
    splits = imagenet.load(write_folders(tmp_path), **SMALL)
    for source, count in ((splits.train, 12), (splits.valid, 6), (splits.test, 6)):
        assert len(source) == count
        for rng in (None, torch.Generator().manual_seed(0)):
            images, labels = source.batch(torch.arange(count), rng)
            assert images.shape == (count, 3, 16, 16)
            assert images.dtype == torch.float32
            assert labels.dtype == torch.long
            assert images.is_contiguous()
        assert torch.bincount(labels).tolist() == [count // 3] * 3


def test_files_and_memory_give_the_same(tmp_path):
    write_folders(tmp_path)
    lazy, kept = (imagenet.load(tmp_path, **SMALL, in_memory=m).train for m in (False, True))
    assert isinstance(lazy.images[0], str)
    for seed in (None, 3):
        a, b = (
            source.batch(torch.arange(12).flip(0), None if seed is None else torch.Generator().manual_seed(3))
            for source in (lazy, kept)
        )
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_validation_is_fixed_disjoint_and_the_same_number_of_each_class(tmp_path):
    splits = imagenet.load(write_folders(tmp_path), **SMALL)
    train, valid = ([Path(p).name for p in source.images] for source in (splits.train, splits.valid))
    assert not set(train) & set(valid)
    assert len(set(train) | set(valid)) == 18
    assert torch.bincount(splits.valid.labels).tolist() == [2, 2, 2]
    assert all(
        name.startswith(("n01", "n02", "n10")[label])
        for name, label in zip(valid, splits.valid.labels, strict=True)
    )
    today = ["n01_2", "n01_0", "n02_1", "n02_0", "n10_0", "n10_1"]  # and every day
    assert [name.removesuffix(".JPEG") for name in valid] == today
    assert all("val" in Path(p).parts for p in splits.test.images)


def test_order_is_that_of_names_and_not_of_the_disk(tmp_path, monkeypatch):
    write_folders(tmp_path)
    entries = imagenet._entries
    found = []
    for turn in (1, -1):
        monkeypatch.setattr(
            imagenet,
            "_entries",
            lambda folder, turn=turn: sorted(entries(folder), key=lambda e: e.name)[::turn],
        )
        found.append(imagenet.load(tmp_path, **SMALL))
    for part in ("train", "valid", "test"):
        one, other = (getattr(splits, part) for splits in found)
        assert one.images == other.images
        assert torch.equal(one.labels, other.labels)


def test_both_the_folder_and_its_parent_will_do(tmp_path):
    write_folders(tmp_path / "imagenet")
    inner, outer = (imagenet.load(each, **SMALL) for each in (tmp_path / "imagenet", tmp_path))
    assert inner.valid.images == outer.valid.images


def test_what_is_no_image_is_passed_over(tmp_path):
    write_folders(tmp_path)
    for stray in ("train/n01/notes.txt", "train/n01/._n01_0.JPEG", "train/LICENSE", "val/.DS_Store"):
        (tmp_path / stray).write_bytes(b"no image")
    (tmp_path / "train" / ".cache").mkdir()
    assert len(imagenet.load(tmp_path, **SMALL, in_memory=True).train) == 12


def broken_exif(path):
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 9, 0x0112, 3, 1, 6) + b"\xff" * 20
    smooth(20, 24).save(path, format="JPEG", quality=95, subsampling=0, exif=exif)
    with pytest.warns(UserWarning, match="EXIF"):
        Image.open(path).close()


ODD = {
    "grey": lambda path: smooth(20, 24).convert("L").save(path, format="JPEG", quality=95),
    "CMYK": lambda path: smooth(20, 24).convert("CMYK").save(path, format="JPEG", quality=95),
    "a PNG by its content": lambda path: smooth(20, 24).save(path, format="PNG"),
    "with transparency": lambda path: smooth(20, 24).convert("RGBA").save(path, format="PNG"),
    "with broken EXIF": broken_exif,
}


@pytest.mark.parametrize("save", ODD.values(), ids=ODD.keys())
def test_odd_images_become_red_green_and_blue(tmp_path, save):
    save(write_folders(tmp_path) / "val" / "n01" / "n01_0.JPEG")
    source = imagenet.load(tmp_path, **SMALL).test
    made = pixels_of(source.batch(torch.tensor([0]), None)[0])
    plain = smooth(20, 24)
    if save is ODD["grey"]:
        plain = plain.convert("L").convert("RGB")
    wanted = torch.from_numpy(imagenet.centre(np.asarray(plain), 18, 16).copy()).permute(2, 0, 1)
    assert (made[0] - wanted).abs().mean() < 4


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


SPOILT = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "a web page": lambda path: path.write_text("<html>404</html>\n"),
    "a header alone": lambda path: path.write_bytes(path.read_bytes()[:30]),
}


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_image_is_one_sentence_with_path_and_remedy(tmp_path, spoil, part):
    spoil(path := write_folders(tmp_path) / part / "n02" / "n02_1.JPEG")
    lazy = imagenet.load(tmp_path, **SMALL)
    sources = (lazy.train, lazy.valid) if part == "train" else (lazy.test,)

    def read_all():
        for source in sources:
            source.batch(torch.arange(len(source)), None)

    for read in (read_all, lambda: imagenet.load(tmp_path, **SMALL, in_memory=True)):
        with pytest.raises(
            ValueError, match=re.escape(f"{path} is not a JPEG") + ".*https://image-net"
        ) as caught:
            read()
        assert "\n" not in str(caught.value)


def move_out_of_classes(folder):
    for path in sorted((folder / "val").glob("*/*")):
        path.rename(folder / "val" / path.name)
    for path in (folder / "val").glob("n??"):
        path.rmdir()


def empty_class(folder):
    for path in (folder / "train" / "n02").iterdir():
        path.unlink()


def too_few(folder):
    for i in range(4):
        (folder / "train" / "n02" / f"n02_{i}.JPEG").unlink()


WRONG = {
    "nothing": (lambda folder: folder.rename(folder.with_name("away")), "train is missing"),
    "no train": (lambda folder: (folder / "train").rename(folder / "training"), "train is missing"),
    "no val": (lambda folder: (folder / "val").rename(folder / "valid"), "val is missing"),
    "val in one heap": (move_out_of_classes, "val has no folders of classes"),
    "a class without images": (empty_class, "train/n02 has no images"),
    "a class that is in val alone": (
        lambda folder: (folder / "train" / "n02").rename(folder / "n02"), "train/n02 is missing"
    ),
    "a class that is in train alone": (
        lambda folder: (folder / "val" / "n10").rename(folder / "n10"), "val/n10 is missing"
    ),
    "too few for validation": (too_few, "train/n02 has 2 images where more than the 2"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_folders_are_one_sentence_with_path_and_remedy(tmp_path, spoil, words):
    folder = write_folders(tmp_path / "images")
    spoil(folder)
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        imagenet.load(folder, **SMALL)
    message = str(caught.value)
    assert message.startswith(f"{folder}/{words}".replace("/", os.sep))
    assert "https://image-net.org" in message
    assert "expected" in message
    assert "\n" not in message


def test_another_number_of_classes_is_refused(tmp_path):
    write_folders(tmp_path)
    with pytest.raises(ValueError, match=r"train has 3 classes where 1000 were expected; .*https://"):
        imagenet.load(tmp_path)


# Crops


def test_random_parts_have_the_area_and_aspect_of_the_paper():
    size = 3000  # so large that rounding is nothing
    top, left, height, width = boxes(size, size).T
    area, aspect = height * width / size**2, np.log(width / height) / math.log(4 / 3)
    assert 0.079 < area.min() < 0.09
    assert 0.95 < area.max() <= 1
    assert -1.001 < aspect.min() < -0.98
    assert 0.98 < aspect.max() < 1.001
    # Up to 3/4 of the area every aspect fits, nothing is drawn again, and all four must be uniform ...
    free = area < 0.75
    drawn = np.stack(
        [(area - 0.08) / 0.67, (aspect + 1) / 2, top / (size - height + 1), left / (size - width + 1)]
    )[:, free]
    for values in drawn:
        counts, _ = np.histogram(values, bins=10, range=(0, 1))
        expected = free.sum() / 10
        assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-squared, 9 degrees, 0.1%
    # ... and independent.
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 4 / math.sqrt(free.sum())


def test_random_parts_lie_inside_and_touch_every_edge():
    top, left, height, width = boxes(12, 16).T
    assert (top.min(), left.min()) == (0, 0)
    for offset, edge, whole in ((top, height, 12), (left, width, 16)):
        assert (offset + edge).max() == whole
        assert (offset + edge)[edge < whole].max() == whole  # not only where there is no choice
    assert min(height.min(), width.min()) >= 1


def test_where_nothing_fits_it_is_the_largest_centred_part():
    assert {tuple(box) for box in boxes(10, 1000, n=50)} == {(0, 493, 10, 13)}
    assert {tuple(box) for box in boxes(1000, 10, n=50)} == {(493, 0, 13, 10)}
    # 20 x 21 is within the aspects: all of it
    assert imagenet.random_box([[1.0, 1.0, 0.5, 0.5]] * 10, 20, 21) == (0, 0, 20, 21)


def test_a_try_that_does_not_fit_is_drawn_again():
    misfit, fit = [1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]
    assert imagenet.random_box([*[misfit] * 9, fit], 100, 100) == (0, 0, 28, 28)
    assert imagenet.random_box([misfit] * 10, 100, 100) == (0, 0, 100, 100)


def test_half_of_the_images_are_flipped():
    slope = np.broadcast_to(np.linspace(0, 255, 40, dtype=np.uint8)[None, :, None], (40, 40, 3))
    source = source_of(np.ascontiguousarray(slope))
    n = 1000
    images, _ = source.batch(torch.zeros(n, dtype=torch.long), torch.Generator().manual_seed(0))
    flipped = images[:, 0, 8, 0] > images[:, 0, 8, -1]
    assert abs(int(flipped.sum()) - n / 2) < 4 * math.sqrt(n) / 2


BOXES = [(0, 0, 60, 80), (5, 7, 40, 30), (30, 50, 16, 16), (11, 3, 9, 12), (0, 64, 60, 16)]


@pytest.mark.parametrize("box", BOXES)
def test_a_part_is_what_pillow_crops_and_torch_resizes(box, monkeypatch):
    image = smooth(60, 80)
    monkeypatch.setattr(imagenet, "random_box", lambda *_: box)
    made, _ = source_of(np.asarray(image)).batch(torch.tensor([0]), torch.Generator().manual_seed(1))
    top, left, height, width = box
    pillow = image.crop((left, top, left + width, top + height)).resize((16, 16), Image.Resampling.BILINEAR)
    exact = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).float()
    part = torch.from_numpy(np.array(image)[top : top + height, left : left + width]).permute(2, 0, 1)[None]
    near = F.interpolate(part.float(), (16, 16), mode="bilinear", antialias=True)[0]
    flips = [made[0], made[0].flip(2)]
    assert min((pixels_of(each) - exact).abs().max() for each in flips) < 0.01
    assert min((pixels_of(each) - near).abs().max() for each in flips) < 1.1


def test_making_smaller_does_not_alias():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    made, _ = source_of(stripes, size=16, resize=16).batch(torch.tensor([0]), None)
    assert (pixels_of(made)[0, :, :, 1:-1] - 127.5).abs().max() < 8


@pytest.mark.parametrize(
    ("height", "width", "corner"), [(375, 500, (16, 58)), (500, 375, (58, 16)), (224, 224, (16, 16))]
)
def test_evaluation_takes_the_centre_of_the_shorter_edge_at_256(height, width, corner):
    image = smooth(height, width)
    made, _ = source_of(np.asarray(image), size=224, resize=256).batch(torch.tensor([0]), None)
    # Recomputed from torchvision's reference: the other edge is rounded down.
    whole = (256, 341) if width > height else (341, 256) if height > width else (256, 256)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    near = F.interpolate(pixels, whole, mode="bilinear", antialias=True)[0]
    top, left = corner
    assert (pixels_of(made[0]) - near[:, top : top + 224, left : left + 224]).abs().max() < 1.1


def test_augmentation_is_drawn_from_rng_alone(tmp_path):
    source, indices = imagenet.load(write_folders(tmp_path), **SMALL).train, torch.arange(12)
    state = torch.get_rng_state()
    first, second = (source.batch(indices, torch.Generator().manual_seed(5))[0] for _ in range(2))
    other = source.batch(indices, torch.Generator().manual_seed(6))[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_copies_of_an_image_in_a_batch_are_cropped_differently():
    source = source_of(np.asarray(smooth(40, 40)))
    images, _ = source.batch(torch.zeros(8, dtype=torch.long), torch.Generator().manual_seed(0))
    assert len({tuple(image.flatten().tolist()) for image in images}) == 8


# The network


def published_resnet50():
    """Convolutions of torchvision's resnet50: inputs, outputs, size, stride, padding."""
    yield 3, 64, 7, 2, 3
    channels = 64
    for stage, (planes, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            if block == 0:
                yield channels, 4 * planes, 1, stride, 0  # the shortcut
            yield channels, planes, 1, 1, 0
            yield planes, planes, 3, stride, 1  # v1.5: here, not in the first
            yield planes, 4 * planes, 1, 1, 0
            channels = 4 * planes


def test_resnet50_is_torchvisions_layer_by_layer():
    with torch.device("meta"):
        model = resnet50()
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    found = [
        (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0], m.padding[0])
        for m in model.modules()
        if isinstance(m, torch.nn.Conv2d)
    ]
    assert found == list(published_resnet50())
    assert all(m.bias is None for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    norms = [m.num_features for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert Counter(norms) == Counter(outputs for _, outputs, *_ in published_resnet50())
    assert sum(p.numel() for p in model.parameters()) == 25_557_032


def test_resnet50_starts_as_torchvisions_does():
    torch.manual_seed(0)
    model = resnet50()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            deviation = math.sqrt(2 / (layer.out_channels * layer.kernel_size[0] ** 2))  # fan out
            assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
            assert abs(layer.weight.mean().item()) < 0.05 * deviation
        elif isinstance(layer, torch.nn.BatchNorm2d):
            assert torch.equal(layer.weight, torch.ones_like(layer.weight))  # the last of a block too
            assert not layer.bias.any()
        elif isinstance(layer, torch.nn.Linear):
            bound = 1 / math.sqrt(2048)
            assert layer.weight.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_initialisation_is_that_of_the_seed():
    for seed, same in ((0, True), (1, False)):
        torch.manual_seed(0)
        one = ResNet("basic", (1, 1), (8, 16), stem=8, classes=5)
        torch.manual_seed(seed)
        other = ResNet("basic", (1, 1), (8, 16), stem=8, classes=5)
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == same


def test_resnet50_learns_two_images_of_224(tmp_path):
    made = recipe("paper")
    write_folders(tmp_path, classes=[f"n{i}" for i in range(2)], train=3)
    source = imagenet.load(tmp_path, classes=2, valid_of_class=2).train
    torch.manual_seed(0)
    model = made.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    losses = []
    for step in range(3):
        batch = source.batch(torch.arange(2), torch.Generator().manual_seed(0))
        assert batch[0].shape == (2, 3, 224, 224)
        losses.append(made.loss(model, batch))
        if step < 2:
            optimizer.zero_grad()
            losses[-1].backward()
            assert all(p.grad is not None for p in model.parameters())
            optimizer.step()
    assert losses[0].item() == pytest.approx(math.log(1000), rel=0.2)
    assert losses[2] < losses[1] < losses[0]


# The recipe


def test_imagenet_at_paper_scale_is_the_appendix():
    made = recipe("paper")
    assert made.batch_size == 8 * 32
    assert made.batch_size // made.accumulate == 32  # what a norm sees, as on each of the paper's GPUs
    assert made.steps == 100 * ((1_281_167 - 50_000) // 256)
    assert made.precision == "float32"
    assert made.seeds.confirm == 5
    assert made.model is resnet50
    for grid in made.grids.values():
        assert grid.weight_decay == (1e-4,)
        assert grid.schedule == ("stagewise",)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = made.schedules["stagewise"](optimizer, made.steps)
    epoch = made.steps // 100
    factors = [schedule.factor(epoch * n) for n in (0, 30, 33, 60, 63, 90, 93, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert 0.1 < schedule.factor(epoch * 31) < 1


def test_paper_scale_reads_224_pixels_of_1000_classes(tmp_path):
    write_folders(tmp_path)
    with pytest.raises(ValueError, match="3 classes where 1000"):
        recipe("paper").data(tmp_path)
    source = imagenet.load(tmp_path, classes=3, valid_of_class=2).train  # the same defaults
    assert (source.size, source.resize) == (224, 256)


@pytest.mark.parametrize("scale", ["quick", "mini"])
def test_networks_have_an_output_for_each_class(scale, tmp_path):
    made = recipe(scale)
    if scale == "mini" and not (REAL / "tiny-imagenet-20").is_dir():
        pytest.skip(f"no tiny-imagenet-20 in {REAL}")
    splits = made.data(tmp_path if scale == "quick" else REAL)
    images, _ = splits.valid.batch(torch.arange(2), None)
    assert made.model()(images).shape == (2, int(splits.train.labels.max()) + 1)


def test_the_real_tiny_imagenet():
    if not (REAL / "tiny-imagenet-20").is_dir():
        pytest.skip(f"no tiny-imagenet-20 in {REAL}")
    splits = recipe("mini").data(REAL)
    for source, of_class in ((splits.train, 270), (splits.valid, 30), (splits.test, 50)):
        assert torch.bincount(source.labels).tolist() == [of_class] * 20
        assert {image.shape for image in source.images} == {(64, 64, 3)}
    # Its channels' means are near those of ImageNet, which were taken out.
    images, _ = splits.test.batch(torch.arange(1000), None)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 0.4
    assert images.std(dim=(0, 2, 3)) == pytest.approx([1, 1, 1], abs=0.3)
