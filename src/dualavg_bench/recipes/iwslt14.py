"""IWSLT'14 German to English, transformer: Section 4.3, figure 3 (left), and appendix C of the paper.

    dualavg study iwslt14                                    # quick: dates and numbers, a tiny network
    dualavg study iwslt14 --scale mini --data DIR            # Tatoeba's sentences, a small network, one core
    dualavg study iwslt14 --scale paper --data DIR           # IWSLT'14, transformer_iwslt_de_en, one GPU

DIR holds `{train,valid,test}.{de,en}`: `iwslt14.tokenized.de-en/tmp`, by fairseq's prepare-iwslt14.sh, or
`tatoeba.de-en`, from https://tatoeba.org/en/downloads, for mini.

Test BLEU of the paper: MDA 34.18 +- 0.11, Adam 34.10 +- 0.13 (20 seeds), SGD 28.45 (taken from others).
Ours, on validation: quick, two seeds, MDA 84, Adam 40, SGD+M 2.5; mini, one, Adam 7.9, MDA and SGD+M 2.5.

Readings: "tokenized case-insensitive" is sacrebleu's lower case, on the words that the files have (else 13a).
Adam's betas, which the appendix does not name, are fairseq's at all scales, (0.9, 0.98).
Departures: two vocabularies of bytes' pairs, as large as fairseq's two dictionaries of one joint BPE. Batches
of an update count alike. The last network is scored, not the best. An epoch of 1,100 batches is our estimate
(985 without padding): 7,535 updates. The tail from 10,000 on never begins, and MDA's two schedules, fixed and
tail, are one: it has eight step sizes with it, where SGD and Adam have four with each of two schedules.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Optimizer

from dualavg.schedules import ExponentialTail, WarmupInverseSqrt
from dualavg_bench.data import translation
from dualavg_bench.data.embedded import SOURCE, dates
from dualavg_bench.data.translation import PAD, Batch, Pairs
from dualavg_bench.models.translator import logits, translate, translator
from dualavg_bench.recipe import Grid, Metric, Passage, Picture, Recipe, Scale, Seeds, Splits

PIECES = {"quick": (600, 600), "mini": (2_000, 2_000), "paper": (8_848, 6_632)}  # German, English
TOKENS = {"quick": 512, "mini": 512, "paper": 4096}  # of a batch, padding included
LONGEST = {"quick": 20, "mini": 30, "paper": 200}  # pieces of a translation; 200 is fairseq's limit
BEAMS, LENGTH_PENALTY, SMOOTHING, DECAY, WARMUP, BETAS = 5, 0.6, 0.1, 1e-4, 4_000, {"betas": (0.9, 0.98)}
FAIRSEQ = {**BETAS, "decoupled_weight_decay": True}  # fairseq's Adam decays as AdamW does
EPOCHS, ACCUMULATE, BATCHES = 55, 8, 1_100  # batches of an epoch, about


def quick_data(folder: Path, load: Callable[..., Splits]) -> Splits:
    """Return dates and numbers, written to `folder` if they are not there yet."""
    return load(dates.write(folder), dates.NAME, valid_pairs=100, source=SOURCE)


def tail(optimizer: Optimizer, _steps: int, start: int = 10_000) -> ExponentialTail:
    """MDA's schedule in the paper: warm-up, flat, divided by 1.0003 at every step from 10,000 on."""
    return ExponentialTail(optimizer, start, factor=1.0003, warmup_steps=WARMUP)


def inverse_sqrt(optimizer: Optimizer, _steps: int) -> WarmupInverseSqrt:
    """Adam's schedule, with the paper's warm-up."""
    return WarmupInverseSqrt(optimizer, WARMUP)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy with smoothed labels, mean over the pieces of all sentences."""
    made = logits(model, batch["source"], batch["target"])
    return F.cross_entropy(
        made.flatten(0, 1).float(), batch["target"].flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )


def evaluate(model: nn.Module, batches: Iterable[Batch], *, longest: int, tokenize: str) -> dict[str, float]:
    """Return the loss, nats a piece without smoothing, and the BLEU of what a beam search finds."""
    from sacrebleu.metrics.bleu import BLEU

    summed, count, made, wanted = 0.0, 0, list[str](), list[str]()
    for batch in batches:
        scores, target = logits(model, batch["source"], batch["target"]).float(), batch["target"]
        summed += F.cross_entropy(scores.mT, target, ignore_index=PAD, reduction="sum").item()
        count += int(target.ne(PAD).sum())
        made += hypotheses(model, batch, longest)
        wanted += batch["wanted"]
    score = BLEU(lowercase=True, tokenize=tokenize, force=True).corpus_score(made, [wanted]).score
    return {"loss": summed / count, "bleu": score}


def hypotheses(model: nn.Module, batch: Batch, longest: int) -> list[str]:
    """Return the network's translations."""
    found = translate(model, batch["source"], longest=longest, beams=BEAMS, length_penalty=LENGTH_PENALTY)
    return batch["vocabulary"].decode(found)


def samples(model: nn.Module, test: Pairs, *, longest: int) -> list[Picture | Passage]:
    """Return the first four test sentences, if there are, and what the network makes of them."""
    batch = test.pick(range(min(4, len(test.given))))
    batch["source"] = batch["source"].to(next(model.parameters()).device)
    made = hypotheses(model, batch, longest)
    return [Passage(*three) for three in zip(batch["given"], batch["wanted"], made, strict=True)]


def recipe(scale: Scale = "quick") -> Recipe:
    """Return the experiment."""
    make: Callable[..., Recipe] = partial(
        Recipe,
        name="iwslt14",
        scale=scale,
        metric=Metric("bleu", higher_is_better=True),
        loss=loss,
        evaluate=partial(evaluate, longest=LONGEST[scale], tokenize="none" if scale == "paper" else "13a"),
        samples=partial(samples, longest=LONGEST[scale]),
        eval_batch_size=1,
        paper="Section 4.3, figure 3 (left)",
    )
    network = partial(translator, *PIECES[scale])
    load = partial(translation.load, pieces=PIECES[scale], tokens=TOKENS[scale])
    adam = (0.0003, 0.001, 0.003, 0.01, 0.03) if scale == "mini" else (0.001, 0.003, 0.01, 0.03, 0.1)
    grids = {
        "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (0.0,), ("linear",)),
        "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (0.0,), ("linear",)),
        "adam": Grid(adam, (0.0,), ("linear",), BETAS),
    }
    small = partial(make, batch_size=1, evaluations=4, grids=grids)
    if scale == "quick":
        return small(
            data=partial(quick_data, load=load),
            model=partial(network, width=64, hidden=128, layers=1, dropout=0.0),
            steps=180,
            about="Dates and numbers, from German to English; a tiny transformer.",
            expected=5.0,
        )
    if scale == "mini":
        return small(
            data=partial(load, name="tatoeba.de-en", valid_pairs=200, test_pairs=400),
            model=partial(network, width=128, hidden=256, layers=2, dropout=0.1),
            steps=800,
            about="Tatoeba's sentences, from German to English; a small transformer.",
            expected=100.0,
        )
    return make(
        data=partial(load, name="iwslt14.tokenized.de-en/tmp", pairs=(160_239, 7_283, 6_750)),
        model=network,
        batch_size=ACCUMULATE,
        accumulate=ACCUMULATE,
        precision="float16",
        steps=EPOCHS * (BATCHES // ACCUMULATE),
        evaluations=EPOCHS,
        schedules={"tail": tail, "fixed": partial(tail, start=10**9), "inverse_sqrt": inverse_sqrt},
        grids={
            "mda": Grid((0.015, 0.05, 0.15, 0.5, 1.5, 5.0, 15.0, 45.0), (DECAY,), ("tail",)),
            "sgd": Grid((0.1, 0.3, 1.0, 3.0), (DECAY,), ("fixed", "inverse_sqrt")),
            "adam": Grid((1e-4, 3e-4, 1e-3, 3e-3), (DECAY,), ("fixed", "inverse_sqrt"), FAIRSEQ),
        },
        seeds=Seeds(tune=1, confirm=20),
        about="IWSLT'14; fairseq's transformer_iwslt_de_en, norms first, as the paper's appendix has it.",
    )
