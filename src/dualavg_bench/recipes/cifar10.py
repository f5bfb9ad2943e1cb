"""CIFAR-10, pre-activation ResNet: Section 4.1, figure 1 (a), and appendix C of the paper.

    dualavg study cifar10                                    # quick: digits in CIFAR's format, a tiny network
    dualavg study cifar10 --scale mini --data DIR            # CIFAR-10, a small network, two cores
    dualavg study cifar10 --scale paper --data DIR           # PreAct ResNet-152, 300 epochs, one GPU

DIR holds `cifar-10-batches-py`, from https://www.cs.toronto.edu/~kriz/cifar.html.

Test accuracy of the paper: MDA 95.58% (last row of its ablation), SGD+M 0.36 points less.

                    paper                 mini                  quick
    epochs          300                   100                   100
    steps           105,300               4,500                 1,000
    examples        45,000                4,500                 150
    parameters      58,148,938            603,802               19,930
    schedule        stage-wise, ramps     the same              the same
    regularization  crops, flips, decay   the same              the same

Baselines on validation, one seed: mini, SGD+M 69.9% (lr 0.1, decay 1e-3), Adam 66.8% (lr 0.003, decay 1e-4);
quick, SGD+M 88.8% (lr 0.3), Adam 87.7% (lr 0.01). Guessing one class: 10%.

Departures of mini from the rule: the grid has decay 1e-4 and 1e-3, not 0 and 1e-4. In 4,500 steps 1e-4 is too
weak: SGD+M at lr 0.1 has 66.2% with it. Only training batches 1 and 2 are read, so that any copy of the data
set gives the same images.

Departures from the paper:
- A tenth of the training images is used for validation, because the paper names no validation set. An epoch
  is therefore 351 steps of 128 images, not 391.
- The random crops pad by 4 pixels, as is usual. The paper gives no number.
- Each 10-fold drop, at epochs 150 and 225, is linear over 5 epochs, for every optimizer. Appendix C gives the
  drops for all of them, Section 2 a line over "a few epochs" for MDA.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data import cifar
from dualavg_bench.data.embedded import SOURCE, digits
from dualavg_bench.models.preact_resnet import Basic, PreActResNet, preact_resnet152
from dualavg_bench.recipe import Grid, Metric, Recipe, Scale, Seeds, Splits

Batch = tuple[Tensor, Tensor]

DECAY = 1e-4
DECAYS_MINI = (DECAY, 10 * DECAY)  # see above
EPOCHS, BATCH = 300, 128
IMAGES = (50_000, 10_000)  # CIFAR-10, training and test
STEPS_OF_AN_EPOCH = IMAGES[0] * 9 // 10 // BATCH


def quick_data(folder: Path) -> Splits:
    """Return scikit-learn's digits; write them to `folder` in CIFAR's format first if needed."""
    return cifar.load(digits.write(folder), one_in=2, part=150, source=SOURCE)


def small_network(blocks: tuple[int, ...], stem_stride: int) -> nn.Module:
    """Return a network that works at a lower resolution, with its channels last: both for speed."""
    network = PreActResNet(Basic, blocks, width=16, stem_stride=stem_stride)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy, mean over images."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return mean loss and accuracy in percent."""
    total = torch.zeros(3, dtype=torch.float64)
    for images, labels in batches:
        logits = model(images).float()
        loss_sum = F.cross_entropy(logits, labels, reduction="sum")
        correct = (logits.argmax(dim=1) == labels).sum()
        total += torch.stack([loss_sum, correct, torch.full_like(loss_sum, len(labels))]).double().cpu()
    losses, hits, count = total.tolist()
    return {"loss": losses / count, "accuracy": 100 * hits / count}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="cifar10",
        scale=scale,
        metric=Metric("accuracy", higher_is_better=True, unit="%"),
        loss=loss,
        evaluate=evaluate,
        paper="Section 4.1, figure 1 (a)",
    )
    if scale == "quick":
        return make(
            data=quick_data,
            model=partial(small_network, (1, 1), 4),  # a digit has 8x8 pixels, each drawn as 4x4
            batch_size=15,
            steps=1000,
            evaluations=5,
            eval_batch_size=250,
            grids={
                "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (DECAY,), ("stagewise",)),
                "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (DECAY,), ("stagewise",)),
                "adam": Grid((0.001, 0.003, 0.01, 0.03, 0.1), (DECAY,), ("stagewise",)),
            },
            about="150 handwritten digits in CIFAR's format, flipped and shifted; a tiny PreAct ResNet.",
            expected=6.0,
        )
    if scale == "mini":
        return make(
            data=partial(cifar.load, batches=2, one_in=4, part=4500),
            model=partial(small_network, (1, 1, 1, 2), 2),
            batch_size=100,
            steps=4500,
            evaluations=10,
            eval_batch_size=500,
            grids={
                "mda": Grid((0.3, 1.0, 3.0, 10.0), DECAYS_MINI, ("stagewise",)),
                "sgd": Grid((0.03, 0.1, 0.3, 1.0), DECAYS_MINI, ("stagewise",)),
                "adam": Grid((0.0003, 0.001, 0.003, 0.01), DECAYS_MINI, ("stagewise",)),
            },
            seeds=Seeds(tune=1, confirm=8),
            about="4,500 images of CIFAR-10, 100 epochs; a small pre-activation ResNet, half the resolution.",
            expected=200.0,
        )
    return make(
        data=partial(cifar.load, images=IMAGES),
        model=preact_resnet152,
        batch_size=BATCH,
        steps=EPOCHS * STEPS_OF_AN_EPOCH,
        evaluations=EPOCHS,
        eval_batch_size=500,
        grids={
            "mda": Grid((0.25, 0.8, 2.5, 8.0, 25.0), (DECAY,), ("stagewise",)),
            "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (DECAY,), ("stagewise",)),
            "adam": Grid((3e-5, 1e-4, 3e-4, 1e-3, 3e-3), (DECAY,), ("stagewise",)),
        },
        seeds=Seeds(tune=1, confirm=10),
        about="CIFAR-10; PreAct ResNet-152, 300 epochs, as in the paper's appendix.",
    )
