"""Fine-tuning a language model without forgetting: pretrained on Wikipedia, fine-tuned on novels.

    dualavg study finetune_lm                                # quick: docstrings of two packages
    dualavg study finetune_lm --scale mini --data DIR        # Wikipedia, then novels; two cores

DIR holds `books-wiki` with `{train,valid,test}.txt`, one paragraph per line: all of Wikipedia's first, then
all of the novels'. `data/two_kinds.py` says how the line between them is found.

This is no experiment of the paper, so there is no paper scale. MDA pulls to where training started. Here
that is a network that knows something. The metric is the loss on the new kind of text. The second score is
the loss on the old kind, which rises as the network forgets; it takes no part in any choice.

                    mini                  quick
    pretraining     6,000 steps, AdamW    600 steps, AdamW
    of tokens       1,654,016             482,624
    steps           800                   300
    epochs          10.3                  5
    examples        620 blocks of 64      483 blocks of 32
    parameters      319,872               22,368
    schedule        warm-up, linear       the same
    regularization  dropout, decay        the same

The pretrained network is made once: seed 0, AdamW, lr 0.003, decay 0.01. Every run starts from it, so a seed
changes the order of the data and dropout (with LoRA, also the adapters' first values).

Baselines at mini, one seed, loss on validation in nats, new and old text. Before: 4.301 and 3.690.
    SGD+M           3.838 and 4.003 (lr 0.03), 3.833 and 4.273 (0.1), 3.949 and 4.718 (0.3)
    AdamW           3.811 and 4.186 (lr 0.001), 3.884 and 4.686 (0.003)
Sizes and lrs were settled with these runs. No other optimizer had been run at mini then. MDA's lrs are ten
times SGD+M's, by the paper's conversion; LoRA's ten times AdamW's. Strengths were not tried out: they are
such that the pull over a whole run, the sum of lr x strength (for SGD+M over 1 - momentum), is about 0.9 and
4 at the middle lr.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dualavg_bench.data import two_kinds
from dualavg_bench.data.embedded import SOURCE, docstrings
from dualavg_bench.models.lora import with_lora
from dualavg_bench.models.transformer_lm import transformer_lm
from dualavg_bench.recipe import Grid, Metric, Recipe, Scale, Seeds, Splits

Batch = tuple[Tensor, Tensor]
Load = Callable[[Path], two_kinds.Text]

SCALES = ("quick", "mini")
PIECES = {"quick": 300, "mini": 1_000}  # vocabulary
LENGTH = {"quick": 32, "mini": 64}  # pieces per block
SKLEARN = re.compile(r"array|shape|n_\w+|fit|coef|default=")  # in most docstrings of the new package
LORA = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
RANK = 8
GRIDS = {  # six points each; a strength counts by lr x strength, for SGD+M by that over 1 - momentum
    "mda": Grid((0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), ("linear",)),
    "dadapt-mda": Grid((0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), ("linear",)),
    "sgd": Grid((0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.0,), ("linear",)),
    "sgd+l2sp": Grid((0.03, 0.1, 0.3), (0.002, 0.01), ("linear",)),
    "adamw": Grid((0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01), (0.01,), ("linear",)),
    "adamw+start": Grid((0.0003, 0.001, 0.003), (2.0, 10.0), ("linear",)),
    "adamw+lora": Grid((0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), (0.0,), ("linear",)),
}


def quick_text(folder: Path, load: Callable[..., two_kinds.Text]) -> two_kinds.Text:
    """Return docstrings; write them to `folder` as plain text first if needed."""
    return load(docstrings.write_plain(folder), mark=SKLEARN, source=SOURCE)


def pretraining_data(folder: Path, load: Load) -> Splits:
    """Return the old kind of text."""
    return load(folder).pretraining()


def fine_tuning_data(folder: Path, load: Load) -> Splits:
    """Return the new kind to train on, and both to evaluate on."""
    return load(folder).fine_tuning()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy in nats, mean over pieces."""
    return losses(model, batch[0]).mean()


def losses(model: nn.Module, blocks: Tensor) -> Tensor:
    """Return the mean cross-entropy of each block, (n,)."""
    logits = model(blocks[:, :-1]).logits
    each = F.cross_entropy(logits.flatten(0, 1).float(), blocks[:, 1:].flatten(), reduction="none")
    return each.view(len(blocks), -1).mean(dim=1)


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the mean loss of each kind that is there; `loss` is that of the new kind, if it is."""
    sums, counts = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
    for blocks, is_old in batches:
        kind = is_old.long().cpu()
        sums.index_add_(0, kind, losses(model, blocks).double().cpu())
        counts += torch.bincount(kind, minlength=2)
    means = {
        f"{name} loss": (sums[i] / counts[i]).item() for i, name in enumerate(("new", "old")) if counts[i]
    }
    return {"loss": next(iter(means.values())), **means}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    load = partial(two_kinds.load, name="books-wiki", length=LENGTH[scale], pieces=PIECES[scale])
    network = partial(transformer_lm, PIECES[scale], LENGTH[scale], heads=4)
    make: Callable[..., Recipe] = partial(
        Recipe, scale=scale, loss=loss, evaluate=evaluate, eval_batch_size=50
    )
    pretrain = partial(
        make,
        name="finetune_lm-start",
        metric=Metric("old loss", higher_is_better=False, unit="nats"),
        grids={"adamw": Grid((0.003,), (0.01,), ("linear",))},
        batch_size=16,
        evaluations=4,
    )
    fine_tune = partial(
        make,
        name="finetune_lm",
        metric=Metric("new loss", higher_is_better=False, unit="nats"),
        also=Metric("old loss", higher_is_better=False, unit="nats"),
        grids=GRIDS,
        adapt={"adamw+lora": partial(with_lora, layers=LORA, rank=RANK)},
        batch_size=8,
    )
    if scale == "quick":
        text = partial(
            quick_text,
            load=partial(load, old_lines=None, new_lines=150, blocks={"valid": 100, "test": 200}),
        )
        model = partial(network, width=32, layers=1)
        return fine_tune(
            data=partial(fine_tuning_data, load=text),
            model=model,
            start=pretrain(data=partial(pretraining_data, load=text), model=model, steps=600),
            steps=300,
            evaluations=3,
            about="A tiny transformer, pretrained on docstrings of Python's library, then scikit-learn's.",
            expected=3.0,
        )
    text = partial(load, old_lines=8_000, new_lines=250, blocks={"valid": 300, "test": 800})
    model = partial(network, width=96, layers=2)
    return fine_tune(
        data=partial(fine_tuning_data, load=text),
        model=model,
        start=pretrain(data=partial(pretraining_data, load=text), model=model, steps=6_000),
        steps=800,
        evaluations=4,
        seeds=Seeds(tune=6, confirm=8),
        about="A small transformer, pretrained on a part of Wikipedia, fine-tuned on some pages of novels.",
        expected=25.0,
    )
