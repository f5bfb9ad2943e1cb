"""fastMRI, end-to-end variational network: Section 4.2, figure 1 (c), and appendix C of the paper.

    dualavg study fastmri                                    # quick: simulated phantoms, a tiny network
    dualavg study fastmri --scale mini --data DIR            # chests, a small network, two cores
    dualavg study fastmri --scale paper --data DIR           # knees, 12 cascades, 50 epochs, one or 8 GPUs

DIR holds `multicoil_train` and `multicoil_val` of the knees, from https://fastmri.med.nyu.edu/, or, for mini,
`chest-mri` with an array of 100 magnitude images, from which coils, phase, noise and k-space are simulated.

SSIM of the paper: a curve, no numbers. MDA is slightly above Adam, within a standard error; SGD far below.

                    paper                 mini                  quick
    epochs          50                    50                    11
    steps           217,100               3,350                 1,056
    examples        34,742 slices         67 slices             96 slices
    parameters      29,936,966            65,784                30,869
    batch           8                     1                     1
    schedule        flat, then a tenth    the same              the same
    regularization  none                  none                  none

Baselines on validation, one seed: mini, Adam 0.811 (lr 0.003), SGD+M 0.804 (lr 0.1), without a network
(zero-filled) 0.541; quick, SGD+M 0.853 (lr 0.1), Adam 0.837 (lr 0.01), zero-filled 0.620.

Departures of mini from the rule: only 19 slices are left for validation and 14 for test, of few patients.

Departures from the paper:
- The official test set has no reconstructions; ours is half of the 199 validation volumes, split by patient.
- We read "Offset-1" as frequencies 1 or -1 modulo 4, random in training, else by file name: fastMRI's "magic"
  mask, 104 of 368 lines including 16 in the middle. Channels, poolings and the loss 1 - SSIM are fastMRI's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data import chest_mri, fastmri
from dualavg_bench.data.embedded import SOURCE, phantoms
from dualavg_bench.models.varnet import VarNet
from dualavg_bench.recipe import Grid, Metric, Passage, Picture, Recipe, Scale, Seeds, Source, Splits

Batch = dict[str, Tensor]

CENTRE = {"quick": 2, "mini": 3, "paper": 16}  # low-frequency lines, out of 32, 64 and about 368
EPOCHS, BATCH, SLICES = 50, 8, 34_742  # for training
STEPS_OF_AN_EPOCH = SLICES // BATCH
WINDOW, K1, K2 = 7, 0.01, 0.03  # of SSIM


def quick_data(folder: Path) -> Splits:
    """Return phantoms; write them to `folder` in fastMRI's format first if needed."""
    return fastmri.load(phantoms.write(folder), centre=CENTRE["quick"], keep=True, source=SOURCE)


def reconstruct(model: nn.Module, batch: Batch) -> Tensor:
    """Return the network's images, cropped to the size of the target."""
    return fastmri.centre_crop(model(batch["kspace"], batch["mask"]), *batch["target"].shape[-2:])


def ssim(a: Tensor, b: Tensor, maximum: Tensor) -> Tensor:
    """Return the structural similarity of each image, (n,): uniform windows, sample covariance."""
    mean: Callable[[Tensor], Tensor] = partial(F.avg_pool2d, kernel_size=WINDOW, stride=1)
    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    c1, c2 = ((k * maximum[:, None, None]) ** 2 for k in (K1, K2))
    mean_a, mean_b = mean(a), mean(b)
    covariance = unbiased * (mean(a * b) - mean_a * mean_b)
    variances = unbiased * (mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2)
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return (numerator / ((mean_a**2 + mean_b**2 + c1) * (variances + c2))).mean(dim=(-2, -1))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """One minus SSIM, mean over slices."""
    return 1 - ssim(reconstruct(model, batch), batch["target"], batch["maximum"]).mean()


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the mean loss over slices, and scikit-image's SSIM: mean over slices, then over volumes."""
    from skimage.metrics import structural_similarity

    losses: list[float] = []
    volumes: dict[int, list[float]] = defaultdict(list)
    for batch in batches:
        images, target, maximum = reconstruct(model, batch), batch["target"], batch["maximum"]
        losses += (1 - ssim(images, target, maximum)).tolist()
        slices = zip(batch["volume"].tolist(), target.cpu(), images.cpu(), maximum.tolist(), strict=True)
        for volume, a, b, white in slices:
            volumes[volume] += [structural_similarity(a.numpy(), b.numpy(), data_range=white)]  # type: ignore[no-untyped-call]
    return {"loss": fmean(losses), "ssim": fmean(map(fmean, volumes.values()))}


def samples(model: nn.Module, test: Source) -> list[Picture | Passage]:
    """Return the middle slices of the first two test volumes."""
    assert isinstance(test, fastmri.Slices)  # noqa: S101 - for the type checker
    device = next(model.parameters()).device
    pictures: list[Picture | Passage] = []
    for volume in range(min(2, len(test.volumes))):
        batch = test.batch(torch.tensor([test.middle(volume)]), None)
        images = reconstruct(model, {name: tensor.to(device) for name, tensor in batch.items()})
        pictures.append(Picture(test.volumes[volume].path.stem, batch["target"][0], images[0]))
    return pictures


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    network, schedules = partial(VarNet, centre=CENTRE[scale]), ("flat_drop",)
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="fastmri",
        scale=scale,
        metric=Metric("ssim", higher_is_better=True),
        loss=loss,
        evaluate=evaluate,
        samples=samples,
        grids={
            "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), schedules),
            "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (0.0,), schedules),
            "adam": Grid((0.001, 0.003, 0.01, 0.03, 0.1), (0.0,), schedules),
        },
        paper="Section 4.2, figure 1 (c)",
    )
    if scale == "quick":
        return make(
            data=quick_data,
            model=partial(network, 1, chans=8, pools=2, sens_chans=4, sens_pools=1),
            batch_size=1,
            steps=11 * 96,
            evaluations=4,
            eval_batch_size=18,
            about="Simulated phantoms, 32x32, three coils, in fastMRI's format; a VarNet of one cascade.",
            expected=12.0,
        )
    if scale == "mini":
        return make(
            data=partial(chest_mri.load, centre=CENTRE["mini"], size=64),
            model=partial(network, 2, chans=8, pools=2, sens_chans=4, sens_pools=2),
            batch_size=1,
            steps=50 * 67,
            evaluations=10,
            eval_batch_size=19,
            grids={
                "mda": Grid((0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), (0.0,), schedules),
                "sgd": Grid((0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), schedules),
                "adam": Grid((1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.0,), schedules),
            },
            seeds=Seeds(tune=1, confirm=8),
            about="MR images of chests, 64x64, four simulated coils, 50 epochs; a VarNet of two cascades.",
            expected=120.0,
        )
    return make(
        data=partial(fastmri.load, centre=CENTRE["paper"], slices=SLICES),
        model=network,
        batch_size=BATCH,
        accumulate=BATCH,  # slices differ in size: one at a time, or one on each of 8 GPUs
        steps=EPOCHS * STEPS_OF_AN_EPOCH,
        evaluations=EPOCHS,
        eval_batch_size=1,
        grids={
            "mda": Grid((0.03, 0.1, 0.3, 1.0, 3.0), (0.0,), schedules),
            "sgd": Grid((0.003, 0.01, 0.03, 0.1, 0.3), (0.0,), schedules),
            "adam": Grid((3e-5, 1e-4, 3e-4, 1e-3, 3e-3), (0.0,), schedules),
        },
        seeds=Seeds(tune=1, confirm=5),
        about="fastMRI's knees; a VarNet of 12 cascades, as in the paper's appendix.",
    )
