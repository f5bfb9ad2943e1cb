"""WikiText-103, transformer language model: appendices C and D ("Language modeling") of the paper.

    dualavg study wikitext103                                # quick: docstrings as WikiText, a tiny network
    dualavg study wikitext103 --scale mini --data DIR        # WikiText-2, a small network, two cores
    dualavg study wikitext103 --scale paper --data DIR       # WikiText-103, fairseq's transformer_lm, one GPU

DIR holds `wikitext-103`, or `wikitext-2` for mini, with `wiki.{train,valid,test}.tokens`.

Test perplexity of the paper: MDA 31.54 +- 0.11, Adam 33.05 +- 0.16 (20 seeds), SGD 78.5 (literature).

                    paper                 mini                  quick
    epochs          31.7                  20.1                  10.9
    steps           50,000                6,000                 1,100
    examples        201,615 blocks        2,385 blocks          1,619 blocks
    parameters      155,995,648           262,272               22,368
    tokens          103,227,021 words     152,641 pieces        51,814 pieces
    batch           128 blocks of 512     8 blocks of 64        16 blocks of 32
    schedule        tail, inverse root    linear, inverse root  linear
    regularization  dropout, decay        the same              the same

Baselines on validation, one seed, perplexity; a bigram model is interpolated with the unigram one:
    mini            Adam 18.6, SGD+M 20.5; of the same pieces, a unigram model 141, a bigram model 36
    quick           Adam 23.3, SGD+M 25.1; of the same pieces, a unigram model 68, a bigram model 26.5

Where the paper is not clear: the appendix has both 46 epochs and at most 50,000 updates. With 65,536 words
each, 50,000 updates are 31.7 epochs of the 103,227,021 training words. We use 50,000 updates, as fairseq's
example of a language model does. Adam's betas, (0.9, 0.98) at all scales, are those of that example.
Departures: words after the last full block are not scored. Mini is a random part of WikiText-2's lines, as
BPE pieces. With L2 decay 0.01, SGD+M learns nothing, so SGD+M and MDA get 0.0001 at mini and quick.
The tail is nearly flat in the paper's run; linear, of its other language experiments, stands for it.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Optimizer

from dualavg.schedules import ExponentialTail, WarmupInverseSqrt
from dualavg_bench.data import wikitext
from dualavg_bench.data.embedded import SOURCE, docstrings
from dualavg_bench.models.transformer_lm import transformer_lm
from dualavg_bench.recipe import Grid, Metric, Recipe, Scale, Seeds, Splits

WORDS = {"quick": 300, "mini": 400, "paper": 267_735}  # vocabulary; quick and mini: BPE pieces
LENGTH = {"quick": 32, "mini": 64, "paper": 512}  # words per block; a block is an example
DECAY, SMALL_DECAY, DROPOUT = 0.01, 0.0001, 0.1
BETAS = {"betas": (0.9, 0.98)}
FAIRSEQ = {**BETAS, "decoupled_weight_decay": True}  # as fairseq's Adam
UPDATES, WARMUP = 50_000, 4_000
ACCUMULATE = 16
BATCH = 4096 // LENGTH["paper"] * ACCUMULATE  # blocks per update


def quick_data(folder: Path, pieces: Callable[..., Splits]) -> Splits:
    """Return docstrings; write them to `folder` in WikiText's format first if needed."""
    written = docstrings.write(folder)
    return pieces(
        written, name=written.name, train_lines=560, valid_blocks=400, test_blocks=1_000, source=SOURCE
    )


def tail(optimizer: Optimizer, _steps: int) -> ExponentialTail:
    """Return MDA's best schedule of the paper: warm-up, flat, divided by 1.00001 per step from 18,240."""
    return ExponentialTail(optimizer, 18_240, factor=1.00001, warmup_steps=WARMUP)


def inverse_sqrt(optimizer: Optimizer, _steps: int) -> WarmupInverseSqrt:
    """Return Adam's schedule, with the paper's warm-up."""
    return WarmupInverseSqrt(optimizer, WARMUP)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Cross-entropy, mean over words."""
    logits = model(batch[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def evaluate(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, float]:
    """Return the mean loss over words, and the perplexity exp(loss)."""
    loss_sum, count = 0.0, 0
    for batch in batches:
        words = batch[:, 1:].numel()
        loss_sum, count = loss_sum + words * loss(model, batch).item(), count + words
    mean = loss_sum / count
    return {"loss": mean, "perplexity": math.exp(mean) if mean < 700 else math.inf}


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="wikitext103",
        scale=scale,
        metric=Metric("perplexity", higher_is_better=False),
        loss=loss,
        evaluate=evaluate,
        paper="Appendix D, language modeling",
    )
    pieces = partial(wikitext.load_pieces, length=LENGTH[scale], pieces=WORDS[scale])
    network = partial(transformer_lm, WORDS[scale], LENGTH[scale], dropout=DROPOUT)
    decays = (SMALL_DECAY,)  # quick and mini, for SGD+M and MDA
    if scale == "quick":
        return make(
            data=partial(quick_data, pieces=pieces),
            model=partial(network, width=32, layers=1, heads=4),
            batch_size=16,
            steps=1_100,
            evaluations=5,
            eval_batch_size=100,
            grids={
                "mda": Grid((1.0, 3.0, 10.0, 30.0, 100.0), decays, ("linear",)),
                "sgd": Grid((0.1, 0.3, 1.0, 3.0, 10.0), decays, ("linear",)),
                "adam": Grid((0.001, 0.003, 0.01, 0.03, 0.1), (DECAY,), ("linear",), FAIRSEQ),
            },
            about="Docstrings of Python's library and of scikit-learn, as WikiText; a tiny transformer.",
            expected=6.0,
        )
    if scale == "mini":
        schedules = ("linear", "inverse_sqrt")
        return make(
            data=partial(pieces, name="wikitext-2", train_lines=620, valid_blocks=500, test_blocks=3_000),
            model=partial(network, width=96, layers=2, heads=4),
            batch_size=8,
            steps=6_000,
            evaluations=8,
            eval_batch_size=32,
            grids={
                "mda": Grid((1.0, 3.0, 10.0, 30.0), decays, schedules),
                "sgd": Grid((0.1, 0.3, 1.0, 3.0), decays, schedules),
                "adam": Grid((0.001, 0.003, 0.01, 0.03), (DECAY,), schedules, FAIRSEQ),
            },
            seeds=Seeds(tune=1, confirm=8),
            about="A part of WikiText-2, as BPE pieces; a small transformer.",
            expected=140.0,
        )
    return make(
        data=partial(
            wikitext.load, name="wikitext-103", length=512, vocabulary=WORDS["paper"], exact_vocabulary=True
        ),
        model=network,
        batch_size=BATCH,
        accumulate=ACCUMULATE,
        precision="float16",
        steps=UPDATES,
        evaluations=50,
        eval_batch_size=BATCH // ACCUMULATE,
        schedules={"tail": tail, "inverse_sqrt": inverse_sqrt},
        grids={
            "mda": Grid((1.5, 5.0, 15.0, 45.0), (DECAY,), ("tail", "inverse_sqrt")),
            "sgd": Grid((0.1, 0.3, 1.0, 3.0), (DECAY,), ("tail", "inverse_sqrt")),
            "adam": Grid((1e-4, 3e-4, 1e-3, 3e-3), (DECAY,), ("tail", "inverse_sqrt"), FAIRSEQ),
        },
        seeds=Seeds(tune=1, confirm=20),
        about="WikiText-103; fairseq's transformer_lm with six layers, as in the paper's appendix.",
    )
