"""Fine-tuning an image classifier without forgetting: pretrained on five classes, fine-tuned on the others.

    dualavg study finetune_vision                            # quick: digits in CIFAR's format
    dualavg study finetune_vision --scale mini --data DIR    # CIFAR-10; two cores

DIR holds `cifar-10-batches-py`, from https://www.cs.toronto.edu/~kriz/cifar.html.

This is no experiment of the paper, so there is no paper scale. Classes 0 to 4 are the old task, 5 to 9 the
new one. One head has ten outputs, and an image is classified among the five classes of its own task: loss and
accuracy ignore the other outputs. The metric is the accuracy on the new classes. The second score is that on
the old ones, which falls as the network forgets; it takes no part in any choice. Batch norm keeps the
statistics of pretraining: those of the new images would replace them whatever the optimizer does.

                    mini                  quick
    pretraining     3,000 steps, AdamW    400 steps, AdamW
    of images       7,995                 391
    steps           800                   200
    epochs          80                    40
    examples        500 images            50 images
    parameters      603,802               19,930
    schedule        warm-up, linear       the same
    regularization  crops, flips, decay   the same

The pretrained network is made once: seed 0, AdamW, lr 0.003, decay 0.05. Every run starts from it, so a seed
changes the order and the augmentation of the images.

Baselines at mini, one seed, validation accuracy, new and old classes. Before: 23.5% and 83.8%; chance: 20%.
    SGD+M           75.2% and 64.9% (lr 0.003), 77.4% and 60.5% (0.01), 70.1% and 49.5% (0.03)
    AdamW           76.9% and 62.8% (lr 0.0003), 77.6% and 62.8% (0.001)
Sizes and lrs were settled with these runs and one of SGD+M at lr 0.1. No other optimizer had been run at mini
then. MDA's lrs are ten times SGD+M's, by the paper's conversion. Strengths were not tried out: they are
chosen as in finetune_lm.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data import cifar
from dualavg_bench.data.embedded import SOURCE, digits
from dualavg_bench.models.preact_resnet import Basic, FixedNorm, Norm, PreActResNet
from dualavg_bench.recipe import Grid, Metric, Recipe, Scale, Seeds, Source, Splits

Batch = tuple[Tensor, Tensor]
Load = Callable[[Path], Splits]

SCALES = ("quick", "mini")
OLD = 5  # classes 0 to 4 are old, 5 to 9 are new
GRIDS = {  # six points each; a strength counts by lr x strength, for SGD+M by that over 1 - momentum
    "mda": Grid((0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.0,), ("linear",)),
    "dadapt-mda": Grid((0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), ("linear",)),
    "sgd": Grid((0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), (0.0,), ("linear",)),
    "sgd+l2sp": Grid((0.003, 0.01, 0.03), (0.02, 0.1), ("linear",)),
    "adamw": Grid((0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003), (0.01,), ("linear",)),
    "adamw+start": Grid((0.0001, 0.0003, 0.001), (6.0, 30.0), ("linear",)),
}


def quick_data(folder: Path) -> Splits:
    """Return scikit-learn's digits; write them to `folder` in CIFAR's format first if needed."""
    return cifar.load(digits.write(folder), one_in=2, source=SOURCE)


def pretraining_data(folder: Path, load: Load) -> Splits:
    """Return the images of the old classes."""
    splits = load(folder)
    return Splits(*(_select(part, new=False) for part in (splits.train, splits.valid, splits.test)))


def fine_tuning_data(folder: Path, load: Load, *, images: int) -> Splits:
    """Return `images` images of the new classes to train on, and all classes to evaluate on."""
    splits = load(folder)
    return Splits(_select(splits.train, new=True, most=images), splits.valid, splits.test)


def _select(source: Source, *, new: bool, most: int | None = None) -> cifar.Images:
    """Return the images of the new or of the old classes, at most so many."""
    assert isinstance(source, cifar.Images)  # noqa: S101 - for the type checker
    chosen = ((source.labels >= OLD) == new).nonzero().flatten()[:most]
    return cifar.Images(source.pixels[chosen], source.labels[chosen], source.padding)


def network(blocks: tuple[int, ...], stem_stride: int, norm: Norm) -> nn.Module:
    """Return a network with ten outputs, that works at a lower resolution, with its channels last."""
    model = PreActResNet(Basic, blocks, width=16, stem_stride=stem_stride, norm=norm)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return the outputs, -inf for the five classes of the other task."""
    images, labels = batch
    is_new = torch.arange(2 * OLD, device=labels.device) >= OLD
    other = is_new[None, :] != (labels >= OLD)[:, None]
    return model(images).float().masked_fill(other, -torch.inf)  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy within the five classes of each image's task, mean over images."""
    return F.cross_entropy(logits(model, batch), batch[1])


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the accuracy of each task that is there, in percent; `loss` is that of the new one, if it is."""
    total = torch.zeros(2, 3, dtype=torch.float64)  # by task: losses, hits, images
    for images, labels in batches:
        outputs = logits(model, (images, labels))
        each = F.cross_entropy(outputs, labels, reduction="none")
        hits = outputs.argmax(dim=1) == labels
        rows = torch.stack([each, hits, torch.ones_like(each)], dim=1).double().cpu()
        total.index_add_(0, (labels < OLD).long().cpu(), rows)
    tasks = {name: total[i] for i, name in enumerate(("new", "old")) if total[i, 2]}
    losses = [(row[0] / row[2]).item() for row in tasks.values()]
    return {
        "loss": losses[0],
        **{f"{name} accuracy": (100 * row[1] / row[2]).item() for name, row in tasks.items()},
    }


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe, scale=scale, loss=loss, evaluate=evaluate, eval_batch_size=500
    )
    pretrain = partial(
        make,
        name="finetune_vision-start",
        metric=Metric("old accuracy", higher_is_better=True, unit="%"),
        grids={"adamw": Grid((0.003,), (0.05,), ("linear",))},
        evaluations=4,
    )
    fine_tune = partial(
        make,
        name="finetune_vision",
        metric=Metric("new accuracy", higher_is_better=True, unit="%"),
        also=Metric("old accuracy", higher_is_better=True, unit="%"),
        grids=GRIDS,
    )
    if scale == "quick":
        model = partial(network, (1, 1), 4)  # a digit has 8x8 pixels, each drawn as 4x4
        return fine_tune(
            data=partial(fine_tuning_data, load=quick_data, images=50),
            model=partial(model, norm=FixedNorm),
            start=pretrain(
                data=partial(pretraining_data, load=quick_data),
                model=partial(model, norm=nn.BatchNorm2d),
                batch_size=25,
                steps=400,
            ),
            batch_size=10,
            steps=200,
            evaluations=4,
            about="A tiny PreAct ResNet, pretrained on the digits 0 to 4, fine-tuned on 50 images of 5 to 9.",
            expected=3.0,
        )
    images, model = partial(cifar.load, batches=2, one_in=5), partial(network, (1, 1, 1, 2), 2)
    return fine_tune(
        data=partial(fine_tuning_data, load=images, images=500),
        model=partial(model, norm=FixedNorm),
        start=pretrain(
            data=partial(pretraining_data, load=images),
            model=partial(model, norm=nn.BatchNorm2d),
            batch_size=100,
            steps=3_000,
        ),
        batch_size=50,
        steps=800,
        evaluations=4,
        seeds=Seeds(tune=6, confirm=8),
        about="A small ResNet, pretrained on five classes of CIFAR-10, fine-tuned on 500 images of others.",
        expected=30.0,
    )
