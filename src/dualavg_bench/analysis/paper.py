"""What the paper reports, scores and claims, and whether finished studies agree.

A claim compares two optimizers. Our side is the paired difference over the confirmation seeds. It agrees if
its whole 95% interval is where the claim says: above zero, or within the margin that counts as equal. It
disagrees if the whole interval is elsewhere: below zero, or beyond the margin. Otherwise it is undecided.
Holm's correction over all claims that could be tested applies to both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from dualavg_bench.analysis import statistics, verdict
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


# Two optimizers are equal if their scores differ by less: in the metric's unit, or in % of their mean.
MARGINS = {"accuracy": "1", "ssim": "0.005", "bleu": "1", "perplexity": "3%", "training loss": "3%"}


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

    Of a difference only the direction is judged, and `text` states only that. `words` is what the paper says
    of the size.
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

    @property
    def favours_mda(self) -> bool:
        """Whether MDA is claimed to be better than another optimizer, or as good."""
        return self.a == "mda"

    @property
    def margin(self) -> str | None:
        """The margin within which two optimizers are equal, if that is claimed."""
        measured = METRICS[self.recipe][0] if self.split == "test" else "training loss"
        return MARGINS[measured] if self.relation == "equal" else None


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
    Claim(
        "cifar10_ablation", ABLATION, "a growing lambda helps further", "mda", "better", "da+momentum", 4.78
    ),
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

AGREES, UNDECIDED, DISAGREES, UNTESTED, NOT_RUN = "agrees", "undecided", "disagrees", "no test", "not run"


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
    margin: float | None = None  # in the unit of the advantage; None unless "equal" is claimed
    p: float | None = None
    p_holm: float | None = None

    @property
    def verdict(self) -> str:
        """Whether ours agrees with the claim."""
        if not self.n:
            return NOT_RUN
        if self.p_holm is None or self.advantage is None:
            return UNTESTED
        if not statistics.is_significant(self.p_holm):
            return UNDECIDED
        holds = self.advantage > 0 if self.margin is None else abs(self.advantage) < self.margin
        return AGREES if holds else DISAGREES


@dataclass(frozen=True)
class ScoreRow:
    """The paper's score and ours, for one optimizer of one experiment."""

    recipe: str
    optimizer: str
    metric: str
    unit: str
    theirs: Score | None
    ours: OptimizerSummary | None


def judge(studies: Mapping[str, Summary]) -> list[Judgement]:
    """Judge every claim by the studies, by recipe."""
    measured = [_measure(claim, studies.get(claim.recipe)) for claim in CLAIMS]
    corrected = iter(statistics.holm([row.p for row in measured if row.n]))
    return [replace(row, p_holm=next(corrected)) if row.n else row for row in measured]


def _measure(claim: Claim, summary: Summary | None) -> Judgement:
    """Return our side of a claim, before Holm's correction."""
    scores: dict[str, dict[int, float | None]] = {claim.a: {}, claim.b: {}}
    for run in summary.runs.values() if summary else ():
        if run.phase == "confirm" and run.optimizer in scores:
            scores[run.optimizer][run.seed] = run.test if claim.split == "test" else run.train
    seeds = sorted(scores[claim.a].keys() & scores[claim.b].keys())
    if summary is None or not seeds:
        return Judgement(claim)
    sign = summary.sign if claim.split == "test" else -1
    pairs = [(scores[claim.a][seed], scores[claim.b][seed]) for seed in seeds]
    a, b = ([sign * value for value in side if value is not None] for side in zip(*pairs, strict=True))
    if len(a) != len(b) or len(a) != len(seeds):  # diverged before its first training loss
        return Judgement(claim, n=len(seeds))
    low, high, p = statistics.paired_interval(a, b)
    margin = None
    if claim.margin is not None:
        margin = margin_as_number(claim.margin, [*a, *b])
        p = statistics.equivalence_p(a, b, margin)
    return Judgement(claim, len(seeds), fmean(a) - fmean(b), low, high, margin, p)


def margin_as_number(margin: str, scores: Sequence[float]) -> float:
    """Return a margin of `MARGINS` in the unit of the scores.

    >>> margin_as_number("1", [70.0, 72.0])
    1.0
    >>> margin_as_number("3%", [20.0, 30.0])
    0.75
    """
    return float(margin.rstrip("%")) * (abs(fmean(scores)) / 100 if margin.endswith("%") else 1)


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
    return f"Of the paper's {len(judgements)} claims, at {scale} scale: {_counted(judgements)}."


def finding_for_mda(judgements: Sequence[Judgement]) -> str:
    """Return one sentence that counts the verdicts of the claims that speak for MDA."""
    rows = [row for row in judgements if row.claim.favours_mda]
    return f"Of the {len(rows)} which say that MDA is better or as good: {_counted(rows)}."


def _counted(judgements: Sequence[Judgement]) -> str:
    phrases = {  # one, several
        AGREES: ("{} agrees", "{} agree"),
        DISAGREES: ("{} disagrees", "{} disagree"),
        UNDECIDED: ("{} is undecided", "{} are undecided"),
        UNTESTED: ("{} cannot be tested", "{} cannot be tested"),
        NOT_RUN: ("{} was not run", "{} were not run"),
    }
    counts = {name: sum(row.verdict == name for row in judgements) for name in phrases}
    return "; ".join(phrases[name][n > 1].format(n) for name, n in counts.items() if n)
