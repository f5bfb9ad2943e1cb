"""ImageNet, ResNet-50: Section 4.1, figure 1 (b), and appendix C of the paper.

    dualavg study imagenet                                   # quick: digits as ImageNet, a tiny network
    dualavg study imagenet --scale mini --data DIR           # 20 classes of Tiny ImageNet, a small network
    dualavg study imagenet --scale paper --data DIR          # ILSVRC 2012, ResNet-50, 100 epochs, GPUs

DIR holds `imagenet`, or `tiny-imagenet-20` for mini, with `train/<class>/*.JPEG` and `val/<class>/*.JPEG`.
ILSVRC 2012 is at https://image-net.org/download-images.php, and Tiny ImageNet, of which any 20 classes will
do, at http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation images of both come in one folder and
must be sorted into class folders.

Test accuracy (top-1) of the paper: a curve, no numbers. MDA and SGD+M agree within the standard errors; Adam
is far behind.

                    paper                 mini                  quick
    epochs          100                   100                   32.7
    steps           480,900               6,000                 1,023
    examples        1,231,167             3,000                 500
    parameters      25,557,032            312,036               21,914
    schedule        stage-wise, ramps     the same              the same
    regularization  crops, flips, decay   the same              the same

Baselines on validation, one seed: mini, SGD+M 48.7% (lr 0.1, decay 1e-3), Adam 47.6% (lr 0.001, decay 1e-3),
guessing one class 5%; quick, Adam 91.6% (lr 0.01), SGD+M 89.8% (lr 0.1), guessing one class 10%.

Departures of mini from the rule: the grid has decay 1e-4 and 1e-3, not 0 and 1e-4, as that of CIFAR-10, where
1e-4 was too weak; 1e-4 was not tried here. Of the 6,000 images half are for validation; even so the standard
error of an accuracy is 0.9 points.

Departures from the paper:
- The official validation images are the test set, as in the paper. For validation, 50 training images of each
  class are used (150 at mini, 100 at quick). An epoch is therefore 4,809 steps of 256 images, not 5,004.
- Each 10-fold drop is linear over 3 epochs. The paper says "a few".
- A step is split into parts of 32 images, as on the paper's 8 GPUs. Batch norm sees 32 images, but updates
  its running statistics 8 times per step.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from dualavg.schedules import StageWise
from dualavg_bench.data import imagenet
from dualavg_bench.data.embedded import SOURCE, digit_folders
from dualavg_bench.models.resnet import ResNet, resnet50
from dualavg_bench.recipe import Grid, Metric, Recipe, Scale, Seeds, Splits
from dualavg_bench.recipes.cifar10 import evaluate, loss

DECAY = 1e-4
DECAYS_MINI = (DECAY, 10 * DECAY)  # see above
EPOCHS, GPUS, BATCH_OF_GPU = 100, 8, 32
BATCH = GPUS * BATCH_OF_GPU
CLASSES, VALID_OF_CLASS = 1000, 50
IMAGES = (1_281_167, 50_000)  # ILSVRC 2012, `train` and `val`
STEPS_OF_AN_EPOCH = (IMAGES[0] - CLASSES * VALID_OF_CLASS) // BATCH


def quick_data(folder: Path) -> Splits:
    """Return scikit-learn's digits; write them to `folder` in ImageNet's format first if needed."""
    written = digit_folders.write(folder)
    return imagenet.load(
        written, classes=10, valid_of_class=100, size=32, resize=36, in_memory=True, source=SOURCE
    )


def small_network(widths: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of one block per width, with its channels last, for speed."""
    network = ResNet("basic", [1] * len(widths), widths, stem=widths[0], classes=classes)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def stagewise(optimizer: Optimizer, steps: int) -> StageWise:
    """Return a schedule that drops 10-fold at epochs 30, 60 and 90 of 100, linearly over 3 epochs."""
    return StageWise(optimizer, [steps * n // EPOCHS for n in (30, 60, 90)], ramp=max(1, 3 * steps // EPOCHS))


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="imagenet",
        scale=scale,
        metric=Metric("accuracy", higher_is_better=True, unit="%"),
        loss=loss,
        evaluate=evaluate,
        schedules={"stagewise": stagewise},
        paper="Section 4.1, figure 1 (b)",
    )
    if scale == "quick":
        return make(
            data=quick_data,
            model=partial(small_network, (16, 32), 10),
            batch_size=16,
            steps=1023,
            evaluations=5,
            eval_batch_size=250,
            grids={
                "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (DECAY,), ("stagewise",)),
                "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (DECAY,), ("stagewise",)),
                "adam": Grid((0.001, 0.003, 0.01, 0.03, 0.1), (DECAY,), ("stagewise",)),
            },
            about="500 handwritten digits in ImageNet's folders, cropped and flipped; a tiny ResNet.",
            expected=10.0,
        )
    if scale == "mini":
        return make(
            data=partial(
                imagenet.load,
                name="tiny-imagenet-20",
                classes=20,
                valid_of_class=150,
                size=48,
                resize=55,
                in_memory=True,
                source=imagenet.TINY,
            ),
            model=partial(small_network, (16, 32, 64, 128), 20),
            batch_size=50,
            steps=6000,
            evaluations=10,
            eval_batch_size=200,
            grids={
                "mda": Grid((0.3, 1.0, 3.0, 10.0), DECAYS_MINI, ("stagewise",)),
                "sgd": Grid((0.03, 0.1, 0.3, 1.0), DECAYS_MINI, ("stagewise",)),
                "adam": Grid((0.0003, 0.001, 0.003, 0.01), DECAYS_MINI, ("stagewise",)),
            },
            seeds=Seeds(tune=1, confirm=8),
            about="20 classes of Tiny ImageNet, 150 images each, crops of 48 pixels; a small ResNet.",
            expected=150.0,
        )
    return make(
        data=partial(imagenet.load, images=IMAGES),
        model=resnet50,
        batch_size=BATCH,
        accumulate=GPUS,
        steps=EPOCHS * STEPS_OF_AN_EPOCH,
        evaluations=EPOCHS,
        eval_batch_size=BATCH,
        grids={
            "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (DECAY,), ("stagewise",)),
            "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (DECAY,), ("stagewise",)),
            "adam": Grid((1e-4, 3e-4, 1e-3, 3e-3, 1e-2), (DECAY,), ("stagewise",)),
        },
        seeds=Seeds(tune=1, confirm=5),
        about="ILSVRC 2012; ResNet-50, 100 epochs, as in the paper's appendix.",
    )
