"""RoBERTa, masked language modeling: Section 4.4, figure 3 (right), and appendix C of the paper.

    dualavg study roberta                                    # quick: docstrings, a tiny network
    dualavg study roberta --scale mini --data DIR            # some Wikipedia and novels, a small network
    dualavg study roberta --scale paper --data DIR           # RoBERTa base, 20,000 updates, eight GPUs

DIR holds `books-wiki` with `{train,valid,test}.txt`, one paragraph a line: BookCorpus and Wikipedia.

Validation perplexity of the paper: Adam 4.95, MDA 5.3 (one seed); SGD fails.
Ours, on validation: quick, two seeds, Adam 88, SGD+M 95, MDA 96; mini, one, Adam 465, MDA 475, SGD+M 488.
The quick network was chosen by Adam's and MDA's validation scores, tuning seed 0, against a unigram model's:
with short examples, one layer and no dropout, there are steps enough to learn from what stands beside a gap.

Readings: examples are packed from whole lines, and only a line longer than an example is cut. Adam's decay of
0.01 is SGD's too. The learning rate reaches zero with the last update. The appendix has both 16 sentences of
512 tokens and 4,096 tokens at most; 16 is fairseq's, and it fits the paper's epoch of about 4,000 steps. It
names neither float16 nor Adam's betas: both are fairseq's, the betas (0.9, 0.98) at all scales.
Departures: the BPE is learnt from the training text, it is not GPT-2's; `<s>` and `</s>` are never hidden.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Optimizer

from dualavg.schedules import WarmupLinearDecay
from dualavg_bench.data import plain_text
from dualavg_bench.data.embedded import SOURCE, docstrings
from dualavg_bench.models.masked_lm import MaskedLM
from dualavg_bench.recipe import Grid, Metric, Passage, Picture, Recipe, Scale, Seeds, Source, Splits

TOKENS = {"quick": 400, "mini": 2_000, "paper": 50_265}  # of the vocabulary; RoBERTa's own number
LENGTH = {"quick": 16, "mini": 64, "paper": 512}  # most tokens of an example
DECAY, DROPOUT, UPDATES, BETAS = 0.01, 0.1, 20_000, {"betas": (0.9, 0.98)}
GPUS, SENTENCES, FREQUENCY = 8, 16, 16  # examples of a backward pass, and backward passes of a GPU an update


def quick_data(folder: Path, load: Callable[..., Splits]) -> Splits:
    """Return docstrings, written to `folder` as plain text if they are not there yet."""
    limits = {"one_in": 2, "valid_examples": 600, "test_examples": 1200}
    return load(docstrings.write_plain(folder), **limits, source=SOURCE)


def polynomial(optimizer: Optimizer, steps: int) -> WarmupLinearDecay:
    """fairseq's polynomial decay, of power 1, after a warm-up over half of the run: 10,000 of 20,000."""
    return WarmupLinearDecay(optimizer, steps // 2, steps)


def loss(model: nn.Module, batch: plain_text.Batch) -> Tensor:
    """Cross-entropy, mean over hidden tokens."""
    tokens, places, truth = batch
    return F.cross_entropy(model(tokens, places).float(), truth)


def evaluate(model: nn.Module, batches: Iterable[plain_text.Batch]) -> dict[str, float]:
    """Return the loss, mean over the hidden tokens of all batches, and the perplexity, its exponential."""
    summed, count = 0.0, 0
    for batch in batches:
        hidden = len(batch[2])
        summed, count = summed + hidden * loss(model, batch).item(), count + hidden
    mean = summed / count
    return {"loss": mean, "perplexity": math.exp(mean) if mean < 700 else math.inf}


def samples(model: nn.Module, test: Source) -> list[Picture | Passage]:
    """Return three examples: their text, with what was hidden left open; those tokens; the network's."""
    assert isinstance(test, plain_text.Masked)  # noqa: S101 - for the type checker
    device = next(model.parameters()).device
    shown: list[Picture | Passage] = []
    for i in (len(test) // 4, len(test) // 2, 3 * len(test) // 4):
        tokens, places, truth = test.batch(torch.tensor([i]), None)
        places, order = places.sort()
        made = model(tokens.to(device), places.to(device)).argmax(dim=1).cpu()
        pair = (truth[order], made)
        words = (" | ".join(test.text(t[None]).strip() or "_" for t in each) for each in pair)  # _ is a space
        shown.append(Passage(test.with_gaps(i, places), *words))
    return shown


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="roberta",
        scale=scale,
        metric=Metric("perplexity", higher_is_better=False),
        loss=loss,
        evaluate=evaluate,
        samples=samples,
        schedules={"polynomial": polynomial},
        paper="Section 4.4, figure 3 (right)",
    )
    data = partial(plain_text.load, name="books-wiki", length=LENGTH[scale], vocabulary=TOKENS[scale])
    network = partial(MaskedLM, TOKENS[scale], LENGTH[scale], dropout=DROPOUT, attention_dropout=DROPOUT)
    schedules = ("polynomial",)
    if scale == "quick":
        return make(
            data=partial(quick_data, load=data),
            model=partial(network, width=48, layers=1, heads=4, dropout=0.0, attention_dropout=0.0),
            batch_size=32,
            steps=700,
            evaluations=5,
            eval_batch_size=100,
            grids={
                "mda": Grid((0.15, 0.5, 1.5, 5.0, 15.0), (0.0,), schedules),
                "sgd": Grid((0.015, 0.05, 0.15, 0.5, 1.5), (0.0,), schedules),
                "adam": Grid((0.001, 0.003, 0.01, 0.03, 0.1), (0.0,), schedules, BETAS),
            },
            about="Docstrings of Python's library and of scikit-learn; a tiny RoBERTa.",
            expected=5.0,
        )
    if scale == "mini":
        return make(
            data=partial(data, one_in=4, valid_examples=300, test_examples=1200),
            model=partial(network, width=96, layers=2, heads=4),
            batch_size=16,
            steps=1200,
            evaluations=6,
            eval_batch_size=50,
            grids={
                "mda": Grid((0.15, 0.5, 1.5, 5.0, 15.0), (0.0,), schedules),
                "sgd": Grid((0.015, 0.05, 0.15, 0.5, 1.5), (0.0,), schedules),
                "adam": Grid((0.0003, 0.001, 0.003, 0.01, 0.03), (0.0,), schedules, BETAS),
            },
            about="Some of Wikipedia and some old novels; a small RoBERTa.",
            expected=80.0,
        )
    adam = {**BETAS, "eps": 1e-6, "decoupled_weight_decay": True}  # fairseq's decays as AdamW
    return make(
        data=partial(data, least_bytes=10**9),  # BookCorpus and Wikipedia are about 16 times as much
        model=network,
        batch_size=GPUS * SENTENCES * FREQUENCY,
        accumulate=GPUS * FREQUENCY,
        precision="float16",
        steps=UPDATES,
        evaluations=20,
        eval_batch_size=64,
        grids={
            "mda": Grid((0.5, 1.5, 5.0, 15.0, 50.0), (0.0,), schedules),
            "sgd": Grid((0.05, 0.15, 0.5, 1.5, 5.0), (DECAY,), schedules),
            "adam": Grid((5e-5, 1.5e-4, 5e-4, 1.5e-3, 5e-3), (DECAY,), schedules, adam),
        },
        seeds=Seeds(tune=1, confirm=1),
        about="BookCorpus and Wikipedia; RoBERTa base, 20,000 updates, as the paper's appendix has it.",
    )
