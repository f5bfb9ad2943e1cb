"""Draw the learning-rate schedules, those of the paper at its settings: python docs/figures/schedules.py.

Every curve comes from a real optimizer and scheduler, step by step. The panel below the lr is MDA's averaging
weight, c_k = min(1, c peak_lr / lr_k) with c = 0.1.
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from torch.optim.lr_scheduler import LRScheduler

from dualavg.schedules import (
    ExponentialTail,
    FlatThenDrop,
    StageWise,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinearDecay,
    WarmupStableDecay,
)

IMAGES = Path(__file__).parent.parent / "img"
INK, MUTED, LR, WEIGHT = "#1f2328", "#6e7781", "#0550ae", "#bc4c00"
STYLE = Path(__file__).with_name("dualavg.mplstyle")

Make = Callable[[torch.optim.Optimizer], LRScheduler]


def lrs_of(make: Make, steps: int) -> list[float]:
    """Return the lr of each of `steps` steps, as a fraction of the base lr."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    lrs = []
    for _ in range(steps):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return lrs


def averaging_weights(lrs: list[float], c: float = 0.1) -> list[float]:
    """Return c_k = min(1, c peak_lr / lr_k). The peak is the largest lr so far."""
    peak, weights = 0.0, []
    for lr in lrs:
        peak = max(peak, lr)
        weights.append(min(1.0, c * peak / lr) if lr > 0 else 1.0)
    return weights


def draw(
    name: str,
    title: str,
    make: Make,
    steps: int,
    *,
    marks: dict[int, str],
    unit: str = "step",
    coupled: bool = True,
    zoom: tuple[int, int] | None = None,
) -> None:
    """Write docs/img/schedule_<name>.svg: the lr and, if `coupled`, the averaging weight below it."""
    lrs = lrs_of(make, steps + 1)  # the end of the last step is drawn too
    drawstyle = "steps-post" if steps < 1000 else "default"  # finer stairs are not visible
    figure = plt.figure(figsize=(6.4, 3.2 if coupled else 2.5), layout="constrained")
    panels = figure.subplots(1 + coupled, sharex=True, squeeze=False, height_ratios=(2.6, 1)[: 1 + coupled])[
        :, 0
    ]
    above = panels[0]
    above.set_title(title, loc="left", color=INK, fontsize=10)
    above.plot(lrs, color=LR, linewidth=1.8, drawstyle=drawstyle)
    above.set_ylabel("lr / base lr")
    above.set_ylim(-0.05, 1.15)
    for at, text in marks.items():
        mark(above, at, lrs[at], text, left=at > 0.9 * steps)
    if coupled:
        panels[1].plot(averaging_weights(lrs), color=WEIGHT, linewidth=1.1, drawstyle=drawstyle)
        panels[1].set_ylabel("weight $c_k$")
        panels[1].set_ylim(-0.08, 1.15)
        panels[1].set_yticks([0.1, 1.0])
    for panel in panels:
        panel.grid(axis="y")
        panel.set_axisbelow(True)
    panels[-1].set_xlabel(unit)
    panels[-1].set_xlim(0, steps)
    panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    if zoom is not None:
        inset(above, lrs, *zoom)
    figure.align_ylabels()
    figure.savefig(IMAGES / f"schedule_{name}.svg", metadata={"Date": None})
    plt.close(figure)


def mark(axes: Axes, at: int, lr: float, text: str, *, left: bool) -> None:
    """Put a dot on the curve and a label beside it."""
    axes.plot([at], [lr], "o", color=LR, markersize=4, clip_on=False)
    offset, side = ((-26, -2), "right") if left else ((7, 5), "left")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.annotate(
        text, (at, lr), offset, textcoords="offset points", ha=side, color=MUTED, fontsize=8, bbox=paper
    )


def inset(axes: Axes, lrs: list[float], first: int, last: int) -> None:
    """Enlarge steps `first` to `last` in the empty corner at the lower left."""
    part = axes.inset_axes((0.1, 0.2, 0.3, 0.56))
    steps = range(first, last + 1)
    part.plot(steps, lrs[first : last + 1], "o-", color=LR, linewidth=1, markersize=3)
    part.tick_params(labelsize=7)
    part.set_ylim(-0.1, 1.15)
    part.set_yticks([0.1, 1.0])
    part.set_xticks([at for at in steps if at % 5 == 0])
    part.set_title("the first drop", loc="left", color=MUTED, fontsize=8, pad=3)


def main() -> None:
    """Draw all schedules."""
    IMAGES.mkdir(exist_ok=True)
    mpl.use("svg")
    with plt.style.context(STYLE):
        draw(
            "stage_wise",
            "StageWise(milestones=[150, 225], ramp=5): CIFAR-10",
            lambda opt: StageWise(opt, [150, 225], ramp=5),
            300,
            unit="epoch",
            marks={150: "milestone 150", 155: "155: 10 times lower", 230: "230: 100 times lower"},
            zoom=(147, 158),
        )
        draw(
            "warmup_linear_decay",
            "WarmupLinearDecay(10_000, 20_000): RoBERTa",
            lambda opt: WarmupLinearDecay(opt, 10_000, 20_000),
            20_000,
            marks={9_999: "end of warm-up", 20_000: "zero when 20,000 steps are done"},
        )
        draw(
            "warmup_cosine",
            "WarmupCosine(1000, 20_000)",
            lambda opt: WarmupCosine(opt, 1000, 20_000),
            20_000,
            marks={999: "end of warm-up", 10_500: "half"},
        )
        draw(
            "warmup_stable_decay",
            "WarmupStableDecay(1000, 4000, 20_000)",
            lambda opt: WarmupStableDecay(opt, 1000, 4000, 20_000),
            20_000,
            marks={999: "end of warm-up", 16_000: "decay", 20_000: "zero when 20,000 steps are done"},
        )
        draw(
            "warmup_inverse_sqrt",
            "WarmupInverseSqrt(4000): the Adam baseline of IWSLT'14",
            lambda opt: WarmupInverseSqrt(opt, 4000),
            20_000,
            marks={3_999: "end of warm-up", 15_999: "half"},
            coupled=False,
        )
        draw(
            "exponential_tail",
            "ExponentialTail(warmup_steps=4000): IWSLT'14",
            lambda opt: ExponentialTail(opt, warmup_steps=4000),
            20_000,
            marks={3_999: "end of warm-up", 10_000: "from here on divided by 1.0003 at every step"},
        )
        draw(
            "flat_then_drop",
            "FlatThenDrop(40): fastMRI",
            lambda opt: FlatThenDrop(opt, 40),
            50,
            unit="epoch",
            marks={40: "10 times lower"},
        )


if __name__ == "__main__":
    main()
