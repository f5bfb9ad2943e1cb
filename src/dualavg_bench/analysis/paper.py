"""What the paper reports, scores and claims, and whether finished studies agree.

A claim compares two optimizers. Our side is the paired difference over the confirmation seeds, with Holm's
correction over all claims that could be tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dualavg_bench.analysis import statistics, verdict
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import OptimizerSummary, Summary

RECIPES = ("cifar10", "imagenet", "fastmri", "cifar10_ablation", "iwslt14", "roberta", "wikitext103")
METRICS = {  # and units, for experiments that were not run
    "cifar10": ("accuracy", "%"),
    "imagenet": ("accuracy", "%"),
    "fastmri": ("ssim", ""),
    "cifar10_ablation": ("accuracy", "%"),
    "iwslt14": ("bleu", ""),
    "roberta": ("perplexity", ""),
    "wikitext103": ("perplexity", ""),
}


@dataclass(frozen=True)
class Score:
    """A score and its standard error, with the digits that the paper prints."""

    recipe: str
    optimizer: str
    printed: str
    se: str = ""
    note: str = ""

    @property
    def value(self) -> float:
        """The score as a number."""
        return float(self.printed)


@dataclass(frozen=True)
class Claim:
    """The paper says that `a` is better than `b`, or that they are equal; `by` how much, if it says so.

    Only the direction is judged, and `text` states only that. `words` is what the paper says of the size.
    """

    recipe: str
    where: str
    text: str
    a: str
    relation: Literal["better", "equal"]
    b: str
    by: float | None = None
    words: str = ""
    split: Literal["test", "train"] = "test"  # the metric on the test split, or the training loss


SCORES = (
    Score("cifar10", "mda", "95.58", note="the ablation's last row"),
    Score("cifar10", "sgd", "95.22", note="MDA's less the 0.36 points that the text gives"),
    Score("fastmri", "mda", "0.48844", note="of one slice, figure 2"),
    Score("fastmri", "adam", "0.48744", note="of one slice, figure 2"),
    Score("fastmri", "sgd", "0.48361", note="of one slice, figure 2"),
    Score("cifar10_ablation", "da", "87.09"),
    Score("cifar10_ablation", "da+momentum", "90.80"),
    Score("cifar10_ablation", "mda", "95.58"),
    Score("iwslt14", "mda", "34.18", "0.11"),
    Score("iwslt14", "adam", "34.10", "0.13"),
    Score("iwslt14", "sgd", "28.45", note="taken from another paper"),
    Score("roberta", "mda", "5.3", note="on validation, one seed"),
    Score("roberta", "adam", "4.95", note="on validation, one seed"),
    Score("wikitext103", "mda", "31.54", "0.11"),
    Score("wikitext103", "adam", "33.05", "0.16"),
    Score("wikitext103", "sgd", "78.5", note="taken from another paper"),
)

CIFAR, IMAGENET, MRI = "Section 4.1, figure 1 (a)", "Section 4.1, figure 1 (b)", "Section 4.2, figure 1 (c)"
ABLATION, NMT = "Section 4.5, figure 1 (d)", "Section 4.3, figure 3 (left)"
MLM, LM = "Section 4.4, figure 3 (right)", "Appendix D, language modeling"
FAR, BADLY, FAILS = "it trails far behind", "particularly badly", "it fails"
TRAIN = "in training loss"
CLAIMS = (
    Claim("cifar10", CIFAR, "MDA is better than SGD+M", "mda", "better", "sgd", 0.36, "slightly"),
    Claim("imagenet", IMAGENET, "MDA and SGD+M are equal", "mda", "equal", "sgd", words="within errors"),
    Claim("imagenet", IMAGENET, "Adam is worse than MDA", "mda", "better", "adam", words=FAR),
    Claim("imagenet", IMAGENET, "Adam is worse than SGD+M", "sgd", "better", "adam", words=FAR),
    Claim("fastmri", MRI, "MDA and Adam are equal", "mda", "equal", "adam", words="within errors"),
    Claim("fastmri", MRI, "SGD is worse than MDA", "mda", "better", "sgd", words=BADLY),
    Claim("fastmri", MRI, "SGD is worse than Adam", "adam", "better", "sgd", words=BADLY),
    Claim("cifar10_ablation", ABLATION, "momentum helps dual averaging", "da+momentum", "better", "da", 3.71),
    Claim("cifar10_ablation", ABLATION, "so does a growing lambda", "mda", "better", "da+momentum", 4.78),
    Claim("iwslt14", NMT, "MDA is better than Adam", "mda", "better", "adam", 0.08, "by 0.20 in its text"),
    Claim("iwslt14", NMT, "SGD is worse than MDA", "mda", "better", "sgd", 5.73),
    Claim("iwslt14", NMT, "SGD is worse than Adam", "adam", "better", "sgd", 5.65),
    Claim("iwslt14", NMT, f"MDA and Adam are equal {TRAIN}", "mda", "equal", "adam", split="train"),
    Claim("roberta", MLM, "Adam is better than MDA", "adam", "better", "mda", 0.35, "by a small gap"),
    Claim("roberta", MLM, "SGD is worse than MDA", "mda", "better", "sgd", words=FAILS),
    Claim("roberta", MLM, "SGD is worse than Adam", "adam", "better", "sgd", words=FAILS),
    Claim("roberta", MLM, f"MDA and Adam are equal {TRAIN}", "mda", "equal", "adam", split="train"),
    Claim("wikitext103", LM, "MDA is better than Adam", "mda", "better", "adam", 1.51),
    Claim("wikitext103", LM, "SGD is worse than MDA", "mda", "better", "sgd", 46.96),
    Claim("wikitext103", LM, "SGD is worse than Adam", "adam", "better", "sgd", 45.45),
    Claim("wikitext103", LM, f"MDA is worse than Adam {TRAIN}", "adam", "better", "mda", split="train"),
)

AGREES, NOISE, DISAGREES, UNTESTED, NOT_RUN = "agrees", "within noise", "disagrees", "no test", "not run"
NO_DIFFERENCE = "no difference found"  # where "equal" is claimed: not evidence for it


@dataclass(frozen=True)
class Judgement:
    """A claim and our side of it.

    `advantage` is how much better the claim's `a` did than its `b`, in either direction of the metric.
    """

    claim: Claim
    n: int = 0  # seeds; 0 if it was not run
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def verdict(self) -> str:
        """Whether ours agrees with the claim."""
        if not self.n:
            return NOT_RUN
        if self.p_holm is None:
            return UNTESTED
        significant = statistics.is_significant(self.p_holm)
        if self.claim.relation == "equal":
            return DISAGREES if significant else NO_DIFFERENCE
        if not significant:
            return NOISE
        return AGREES if self.advantage is not None and self.advantage > 0 else DISAGREES


@dataclass(frozen=True)
class ScoreRow:
    """The paper's score and ours, for one optimizer of one experiment."""

    recipe: str
    optimizer: str
    metric: str
    unit: str
    theirs: Score | None
    ours: OptimizerSummary | None


def judge(studies: Mapping[str, Sequence[RunResult]]) -> list[Judgement]:
    """Judge every claim.

    Args:
        studies: the runs of each recipe that was studied.
    """
    measured = [_measure(claim, studies.get(claim.recipe, ())) for claim in CLAIMS]
    corrected = iter(statistics.holm([row.p for row in measured if row.n]))
    return [replace(row, p_holm=next(corrected)) if row.n else row for row in measured]


def _measure(claim: Claim, runs: Sequence[RunResult]) -> Judgement:
    """Return our side of a claim, before Holm's correction."""
    confirmed = [run for run in runs if run.phase == "confirm" and run.optimizer in (claim.a, claim.b)]
    if {run.optimizer for run in confirmed} != {claim.a, claim.b}:
        return Judgement(claim)
    if claim.split == "train" and not all(run.train.step for run in confirmed):
        return Judgement(claim, n=len({run.seed for run in confirmed}))  # diverged before its first loss
    (pair,) = statistics.compare(confirmed, claim.split)
    higher_is_better = claim.split == "test" and confirmed[0].higher_is_better
    sign = (1 if higher_is_better else -1) * (1 if pair.a == claim.a else -1)
    low, high = pair.low, pair.high
    if low is not None and high is not None:
        low, high = sorted((sign * low, sign * high))
    return Judgement(claim, pair.n, sign * pair.difference, low, high, pair.p)


def table(summaries: Mapping[str, Summary]) -> list[ScoreRow]:
    """Return the paper's scores and ours for every optimizer of every experiment, studied or not."""
    rows = []
    for recipe in RECIPES:
        summary = summaries.get(recipe)
        theirs = {score.optimizer: score for score in SCORES if score.recipe == recipe}
        claimed = [name for claim in CLAIMS if claim.recipe == recipe for name in (claim.a, claim.b)]
        for name in dict.fromkeys([*(verdict.rank(summary) if summary else ()), *theirs, *claimed]):
            ours = summary.optimizers.get(name) if summary else None
            rows.append(ScoreRow(recipe, name, *METRICS[recipe], theirs.get(name), ours))
    return rows


def finding(judgements: Sequence[Judgement], scale: str) -> str:
    """Return one sentence that counts the verdicts."""
    phrases = {  # one, several
        AGREES: ("{} agrees", "{} agree"),
        NO_DIFFERENCE: (
            "{} claim of 'equal': no difference found",
            "{} claims of 'equal': no difference found",
        ),
        NOISE: ("{} is within noise", "{} are within noise"),
        DISAGREES: ("{} disagrees", "{} disagree"),
        UNTESTED: ("{} cannot be tested", "{} cannot be tested"),
        NOT_RUN: ("{} was not run", "{} were not run"),
    }
    counts = {name: sum(row.verdict == name for row in judgements) for name in phrases}
    listed = "; ".join(phrases[name][n > 1].format(n) for name, n in counts.items() if n)
    return f"Of the paper's {len(judgements)} claims, at {scale} scale: {listed}."
