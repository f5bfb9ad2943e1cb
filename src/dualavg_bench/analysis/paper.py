"""What the paper reports, row by row and claim by claim, and whether finished studies say the same.

Pure functions of summaries and runs. A claim compares two optimizers; ours is the paired difference over the
confirmation seeds, with Holm's correction over all claims that could be tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dualavg_bench.analysis import statistics, verdict

RECIPES = ("cifar10", "imagenet", "fastmri", "cifar10_ablation", "iwslt14", "roberta", "wikitext103")


METRICS = {  # and units, also of what was not run
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
    """A number of the paper, and its standard error, with the digits that the paper prints."""

    recipe: str
    optimizer: str
    printed: str
    se: str = ""
    note: str = ""

    @property
    def value(self) -> float:
        """The number."""
        return float(self.printed)


@dataclass(frozen=True)
class Claim:
    """The paper says that `a` is better than `b`, or that they are alike; `by` how much, where it says so.

    Only this direction is judged, and `says` says no more. What the paper adds of how far is in `words`.
    """

    recipe: str
    where: str
    says: str
    a: str
    relation: Literal["better", "alike"]
    b: str
    by: float | None = None
    words: str = ""
    split: Literal["test", "train"] = "test"  # the metric on test, or the training loss


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
    Claim("imagenet", IMAGENET, "MDA and SGD+M are alike", "mda", "alike", "sgd", words="within errors"),
    Claim("imagenet", IMAGENET, "Adam is worse than MDA", "mda", "better", "adam", words=FAR),
    Claim("imagenet", IMAGENET, "Adam is worse than SGD+M", "sgd", "better", "adam", words=FAR),
    Claim("fastmri", MRI, "MDA and Adam are alike", "mda", "alike", "adam", words="within errors"),
    Claim("fastmri", MRI, "SGD is worse than MDA", "mda", "better", "sgd", words=BADLY),
    Claim("fastmri", MRI, "SGD is worse than Adam", "adam", "better", "sgd", words=BADLY),
    Claim("cifar10_ablation", ABLATION, "momentum helps dual averaging", "da+momentum", "better", "da", 3.71),
    Claim("cifar10_ablation", ABLATION, "so does a growing lambda", "mda", "better", "da+momentum", 4.78),
    Claim("iwslt14", NMT, "MDA is better than Adam", "mda", "better", "adam", 0.08, "by 0.20 in its text"),
    Claim("iwslt14", NMT, "SGD is worse than MDA", "mda", "better", "sgd", 5.73),
    Claim("iwslt14", NMT, "SGD is worse than Adam", "adam", "better", "sgd", 5.65),
    Claim("iwslt14", NMT, f"MDA and Adam are alike {TRAIN}", "mda", "alike", "adam", split="train"),
    Claim("roberta", MLM, "Adam is better than MDA", "adam", "better", "mda", 0.35, "by a small gap"),
    Claim("roberta", MLM, "SGD is worse than MDA", "mda", "better", "sgd", words=FAILS),
    Claim("roberta", MLM, "SGD is worse than Adam", "adam", "better", "sgd", words=FAILS),
    Claim("roberta", MLM, f"MDA and Adam are alike {TRAIN}", "mda", "alike", "adam", split="train"),
    Claim("wikitext103", LM, "MDA is better than Adam", "mda", "better", "adam", 1.51),
    Claim("wikitext103", LM, "SGD is worse than MDA", "mda", "better", "sgd", 46.96),
    Claim("wikitext103", LM, "SGD is worse than Adam", "adam", "better", "sgd", 45.45),
    Claim("wikitext103", LM, f"MDA is worse than Adam {TRAIN}", "adam", "better", "mda", split="train"),
)

AGREES, NOISE, DISAGREES, UNTESTED, NOT_RUN = "agrees", "within noise", "disagrees", "no test", "not run"
NOT_APART = (
    "not told apart"  # where likeness is claimed: no evidence against it, which is not evidence for it
)


def judge(studies: Mapping[str, Sequence[statistics.Run]]) -> list[dict[str, Any]]:
    """Return every claim with our difference, its interval, n, Holm's p, and the verdict.

    `advantage` is how much better the claim's `a` did than its `b`, whichever way the score runs.

    Args:
        studies: the runs of each recipe that was studied.
    """
    rows = [{**asdict(claim), **_measured(claim, studies.get(claim.recipe, ()))} for claim in CLAIMS]
    tested = [row for row in rows if row["n"]]
    for row, p in zip(tested, statistics.holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    for row in rows:
        row["verdict"] = _verdict(row)
    return rows


def _measured(claim: Claim, runs: Sequence[statistics.Run]) -> dict[str, Any]:
    """Our side of a claim."""
    confirmed = [run for run in runs if run["phase"] == "confirm" and run["optimizer"] in (claim.a, claim.b)]
    if {run["optimizer"] for run in confirmed} != {claim.a, claim.b}:
        return {"advantage": None, "low": None, "high": None, "p": None, "p_holm": None, "n": 0}
    pair = statistics.compare(confirmed, claim.split)[0]
    upwards = claim.split == "test" and confirmed[0]["higher_is_better"]
    sign = (1 if upwards else -1) * (1 if pair["a"] == claim.a else -1)
    tested = pair["low"] is not None
    low, high = sorted((sign * pair["low"], sign * pair["high"])) if tested else (None, None)
    return {
        "advantage": sign * pair["difference"],
        "low": low,
        "high": high,
        "p": pair["p"],
        "p_holm": None,
        "n": pair["n"],
    }


def _verdict(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return NOT_RUN
    if row["p_holm"] is None:
        return UNTESTED
    told = verdict.distinguishable(row)
    if row["relation"] == "alike":
        return DISAGREES if told else NOT_APART
    if not told:
        return NOISE
    return AGREES if row["advantage"] > 0 else DISAGREES


def table(summaries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return theirs and ours for every optimizer of every experiment, studied or not."""
    rows = []
    for recipe in RECIPES:
        summary = summaries.get(recipe)
        theirs = {score.optimizer: score for score in SCORES if score.recipe == recipe}
        claimed = [name for claim in CLAIMS if claim.recipe == recipe for name in (claim.a, claim.b)]
        metric, unit = METRICS[recipe]
        for name in dict.fromkeys([*(verdict.rank(summary) if summary else ()), *theirs, *claimed]):
            entry = summary["optimizers"].get(name) if summary else None
            rows.append(
                {
                    "recipe": recipe,
                    "optimizer": name,
                    "metric": metric,
                    "unit": unit,
                    "theirs": theirs.get(name),
                    "ours": entry["test"] if entry else None,
                    "chosen": entry["chosen"] if entry else None,
                }
            )
    return rows


def finding(rows: Sequence[Mapping[str, Any]], scale: str) -> str:
    """Return one sentence: how many claims agree, are within noise, or not."""
    words = {  # one, several
        AGREES: ("agrees", "agree"),
        NOT_APART: ("that claims likeness is not told apart", "that claim likeness are not told apart"),
        NOISE: ("is within noise", "are within noise"),
        DISAGREES: ("disagrees", "disagree"),
        UNTESTED: ("admits no test", "admit no test"),
        NOT_RUN: ("was not run", "were not run"),
    }
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in words}
    said = ", ".join(f"{n} {words[verdict][n > 1]}" for verdict, n in counts.items() if n)
    return f"Of the paper's {len(rows)} claims, at {scale} scale: {said}."
