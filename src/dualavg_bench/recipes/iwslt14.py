"""IWSLT'14 German to English, transformer: Section 4.3, figure 3 (left), and appendix C of the paper.

    dualavg study iwslt14                                    # quick: dates and numbers, a tiny network
    dualavg study iwslt14 --scale mini --data DIR            # Tatoeba, a small network, one core
    dualavg study iwslt14 --scale paper --data DIR           # IWSLT'14, transformer_iwslt_de_en, one GPU

DIR holds `{train,valid,test}.{de,en}` in `iwslt14.tokenized.de-en/tmp`, written by fairseq's
prepare-iwslt14.sh, or, for mini, in `tatoeba.de-en`, from https://tatoeba.org/en/downloads.

Test BLEU of the paper: MDA 34.18 +- 0.11, Adam 34.10 +- 0.13 (20 seeds), SGD 28.45 (from the literature).

                    paper                 mini                  quick
    epochs          54.8                  19                    22
    steps           7,535                 3,819                 1,034
    examples        1,100 batches         201 batches           47 batches
    parameters      39,471,104            361,728               86,016
    pairs           160,239               7,500                 150
    batch           8 x 4,096 tokens      512 tokens            48 tokens
    schedule        flat, inverse root    the same              inverse root
    regularization  dropout 0.3, decay    dropout 0.1, decay    dropout 0.1, decay

Baselines on validation, one seed, BLEU: mini, Adam 20.1, SGD+M 20.7; quick, Adam 93.9, SGD+M 94.9.
Labels are smoothed at all scales. Schedules have a warm-up; "root" is the square root of the step.

Where the paper is not clear: "tokenized case-insensitive" is sacrebleu's lowercase BLEU on the words as they
are in the files (quick and mini: 13a). Adam's betas are fairseq's at all scales, (0.9, 0.98).
Departures: two byte-level vocabularies, as large as fairseq's two dictionaries of one joint BPE. All batches
of an update have equal weight. An epoch has about 1,100 batches, so a run has 7,535 updates and never reaches
the tail: MDA tunes 8 lrs on it, SGD and Adam 4 on each of two. As in the paper, the network with the best
validation score decides. Mini has less dropout: with 0.3 its small network has 16.3, with 0.1 19.8 (Adam).
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

PIECES = {"quick": (400, 400), "mini": (1_000, 1_000), "paper": (8_848, 6_632)}  # German, English
TOKENS = {"quick": 48, "mini": 512, "paper": 4096}  # per batch, with padding
LONGEST = {"quick": 20, "mini": 20, "paper": 200}  # limit of pieces in a translation; 200 is fairseq's
BEAMS, LENGTH_PENALTY, SMOOTHING, DECAY, WARMUP, BETAS = 5, 0.6, 0.1, 1e-4, 4_000, {"betas": (0.9, 0.98)}
FAIRSEQ = {**BETAS, "decoupled_weight_decay": True}  # as fairseq's Adam
EPOCHS, ACCUMULATE, BATCHES = 55, 8, 1_100  # about 1,100 batches per epoch


def quick_data(folder: Path, load: Callable[..., Splits]) -> Splits:
    """Return dates and numbers; write them to `folder` first if needed."""
    return load(dates.write(folder), dates.NAME, train_pairs=150, source=SOURCE)


def tail(optimizer: Optimizer, _steps: int, start: int = 10_000) -> ExponentialTail:
    """Return MDA's schedule of the paper: warm-up, flat, divided by 1.0003 at every step from 10,000."""
    return ExponentialTail(optimizer, start, factor=1.0003, warmup_steps=WARMUP)


def flat(optimizer: Optimizer, steps: int) -> ExponentialTail:
    """Return warm-up over a tenth of the run, then flat, as the paper's runs end before the tail."""
    return ExponentialTail(optimizer, steps, factor=1.0003, warmup_steps=steps // 10)


def inverse_sqrt(optimizer: Optimizer, _steps: int) -> WarmupInverseSqrt:
    """Return Adam's schedule, with the paper's warm-up."""
    return WarmupInverseSqrt(optimizer, WARMUP)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy with label smoothing, mean over the pieces of all sentences."""
    scores = logits(model, batch["source"], batch["target"])
    return F.cross_entropy(
        scores.flatten(0, 1).float(), batch["target"].flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )


def evaluate(model: nn.Module, batches: Iterable[Batch], *, longest: int, tokenize: str) -> dict[str, float]:
    """Return the loss per piece, without smoothing, and the BLEU of the translations."""
    from sacrebleu.metrics.bleu import BLEU

    loss_sum, count, translations, references = 0.0, 0, list[str](), list[str]()
    for batch in batches:
        scores, target = logits(model, batch["source"], batch["target"]).float(), batch["target"]
        loss_sum += F.cross_entropy(scores.mT, target, ignore_index=PAD, reduction="sum").item()
        count += int(target.ne(PAD).sum())
        translations += hypotheses(model, batch, longest)
        references += batch["wanted"]
    bleu = BLEU(lowercase=True, tokenize=tokenize, force=True).corpus_score(translations, [references])
    return {"loss": loss_sum / count, "bleu": bleu.score}


def hypotheses(model: nn.Module, batch: Batch, longest: int) -> list[str]:
    """Return the network's translations."""
    rows = translate(model, batch["source"], longest=longest, beams=BEAMS, length_penalty=LENGTH_PENALTY)
    return batch["vocabulary"].decode(rows)


def samples(model: nn.Module, test: Pairs, *, longest: int) -> list[Picture | Passage]:
    """Return the first four test sentences and the network's translations."""
    batch = test.pick(range(min(4, len(test.given))))
    batch["source"] = batch["source"].to(next(model.parameters()).device)
    translations = hypotheses(model, batch, longest)
    return [Passage(*texts) for texts in zip(batch["given"], batch["wanted"], translations, strict=True)]


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
        report="best",
        batch_size=1,
        batch_note=f"{TOKENS[scale] * (ACCUMULATE if scale == 'paper' else 1):,} tokens",
        paper="Section 4.3, figure 3 (left)",
    )
    network = partial(translator, *PIECES[scale])
    load = partial(translation.load, pieces=PIECES[scale], tokens=TOKENS[scale])
    if scale == "quick":
        schedules: tuple[str, ...] = ("inverse_sqrt",)
        return make(
            data=partial(quick_data, load=load),
            model=partial(network, width=48, hidden=96, layers=1, dropout=0.1),
            steps=22 * 47,
            evaluations=4,
            eval_batch_size=50,
            grids={
                "mda": Grid((0.1, 0.3, 1.0, 3.0, 10.0), (DECAY,), schedules),
                "sgd": Grid((0.01, 0.03, 0.1, 0.3, 1.0), (DECAY,), schedules),
                "adam": Grid((0.0003, 0.001, 0.003, 0.01, 0.03), (DECAY,), schedules, FAIRSEQ),
            },
            about="Dates and numbers, from German to English; a tiny transformer.",
            expected=10.0,
        )
    if scale == "mini":
        schedules = ("fixed", "inverse_sqrt")
        return make(
            data=partial(load, name="tatoeba.de-en", most_words=7, train_pairs=7_500, valid_pairs=800),
            model=partial(network, width=64, hidden=256, layers=2, dropout=0.1),
            steps=19 * 201,
            schedules={"fixed": flat},
            evaluations=8,
            eval_batch_size=8,
            grids={
                "mda": Grid((1.0, 3.0, 10.0, 30.0), (DECAY,), schedules),
                "sgd": Grid((0.1, 0.3, 1.0, 3.0), (DECAY,), schedules),
                "adam": Grid((0.0003, 0.001, 0.003, 0.01), (DECAY,), schedules, FAIRSEQ),
            },
            seeds=Seeds(tune=1, confirm=8),
            about="Short sentences of Tatoeba, from German to English; a small transformer.",
            expected=130.0,
        )
    return make(
        data=partial(load, name="iwslt14.tokenized.de-en/tmp", pairs=(160_239, 7_283, 6_750)),
        model=network,
        batch_size=ACCUMULATE,
        accumulate=ACCUMULATE,
        precision="float16",
        steps=EPOCHS * (BATCHES // ACCUMULATE),
        evaluations=EPOCHS,
        eval_batch_size=1,
        schedules={"tail": tail, "fixed": partial(tail, start=10**9), "inverse_sqrt": inverse_sqrt},
        grids={
            "mda": Grid((0.015, 0.05, 0.15, 0.5, 1.5, 5.0, 15.0, 45.0), (DECAY,), ("tail",)),
            "sgd": Grid((0.1, 0.3, 1.0, 3.0), (DECAY,), ("fixed", "inverse_sqrt")),
            "adam": Grid((1e-4, 3e-4, 1e-3, 3e-3), (DECAY,), ("fixed", "inverse_sqrt"), FAIRSEQ),
        },
        seeds=Seeds(tune=1, confirm=20),
        about="IWSLT'14; fairseq's transformer_iwslt_de_en with pre-norm, as in the paper's appendix.",
    )
