"""ImageNet's network and recipe."""

import math
from collections import Counter

import pytest
import torch
from support.real_data import REAL, needs
from support.small_images import write_folders

from dualavg_bench.data import imagenet
from dualavg_bench.models.resnet import ResNet, resnet50
from dualavg_bench.recipes import imagenet as experiment

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_resnet50_is_initialised_as_torchvisions():
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


def test_initialisation_depends_on_the_seed_alone():
    for seed, same in ((0, True), (1, False)):
        torch.manual_seed(0)
        one = ResNet("basic", (1, 1), (8, 16), stem=8, classes=5)
        torch.manual_seed(seed)
        other = ResNet("basic", (1, 1), (8, 16), stem=8, classes=5)
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == same


@pytest.mark.slow
def test_resnet50_learns_two_images_of_224(tmp_path):
    recipe = experiment.recipe("paper")
    write_folders(tmp_path, classes=[f"n{i}" for i in range(2)], train=3)
    source = imagenet.load(tmp_path, classes=2, valid_of_class=2).train
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    losses = []
    for step in range(3):
        batch = source.batch(torch.arange(2), torch.Generator().manual_seed(0))
        assert batch[0].shape == (2, 3, 224, 224)
        losses.append(recipe.loss(model, batch))
        if step < 2:
            optimizer.zero_grad()
            losses[-1].backward()
            assert all(p.grad is not None for p in model.parameters())
            optimizer.step()
    assert losses[0].item() == pytest.approx(math.log(1000), rel=0.2)
    assert losses[2] < losses[1] < losses[0]


# The recipe


def test_imagenet_at_paper_scale_is_the_appendix():
    recipe = experiment.recipe("paper")
    assert recipe.batch_size == 8 * 32
    assert (
        recipe.batch_size // recipe.accumulate == 32
    )  # images per batch norm, as on each of the paper's GPUs
    assert recipe.steps == 100 * ((1_281_167 - 50_000) // 256)
    assert recipe.precision == "float32"
    assert recipe.seeds.confirm == 5
    assert recipe.model is resnet50
    for grid in recipe.grids.values():
        assert grid.weight_decay == (1e-4,)
        assert grid.schedule == ("stagewise",)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = recipe.schedules["stagewise"](optimizer, recipe.steps)
    epoch = recipe.steps // 100
    factors = [schedule.factor(epoch * n) for n in (0, 30, 33, 60, 63, 90, 93, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert 0.1 < schedule.factor(epoch * 31) < 1


def test_paper_scale_reads_224_pixels_of_1000_classes(tmp_path):
    write_folders(tmp_path)
    with pytest.raises(ValueError, match=r"train has 3 classes, expected 1,000; .*https://"):
        experiment.recipe("paper").data(tmp_path)
    source = imagenet.load(tmp_path, classes=3, valid_of_class=2).train  # the same defaults
    assert (source.size, source.resize) == (224, 256)


def has_an_output_for_each_class(recipe, splits):
    images, _ = splits.valid.batch(torch.arange(2), None)
    return recipe.model()(images).shape == (2, int(splits.train.labels.max()) + 1)


def test_the_quick_network_has_an_output_for_each_class(embedded):
    recipe = experiment.recipe("quick")
    assert has_an_output_for_each_class(recipe, recipe.data(embedded))


@needs("tiny-imagenet-20")
def test_the_real_tiny_imagenet():
    recipe = experiment.recipe("mini")
    splits = recipe.data(REAL)
    assert has_an_output_for_each_class(recipe, splits)
    for source, of_class in ((splits.train, 150), (splits.valid, 150), (splits.test, 50)):
        assert torch.bincount(source.labels).tolist() == [of_class] * 20
        assert {image.shape for image in source.images} == {(64, 64, 3)}
    # Normalized with ImageNet's mean and standard deviation, which are similar.
    images, _ = splits.test.batch(torch.arange(1000), None)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 0.4
    assert images.std(dim=(0, 2, 3)) == pytest.approx([1, 1, 1], abs=0.3)
