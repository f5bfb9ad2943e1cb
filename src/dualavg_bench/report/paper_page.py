"""The page that compares the paper with the studies of its experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualavg_bench.analysis import paper, verdict
from dualavg_bench.analysis.formatting import decimals, p_text, signed, with_error
from dualavg_bench.analysis.verdict import Verdict
from dualavg_bench.report import copyable, drawing, figures
from dualavg_bench.report.page import Drawn, drawn, fill_template
from dualavg_bench.report.samples import Gallery, gallery
from dualavg_bench.report.study_page import CopyRow
from dualavg_bench.report.tables import DASH
from dualavg_bench.scales import Scale
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary

Study = tuple[Summary, Sequence[RunResult]]
CSS_CLASSES = {paper.AGREES: "", paper.DISAGREES: "alarming"}
MINIATURE = (
    "a miniature that keeps the paper's regime (many epochs over few data, the form of the schedule, "
    "regularization) and shrinks data and network. Directions can be compared with the paper's, sizes cannot."
)
CAUTIONS: dict[Scale, str] = {
    "quick": "Quick scale: a fair picture of the method on small tasks, with data that are made on the spot. "
    f"Each is {MINIATURE}",
    "mini": f"Mini scale: real data, small networks, on a CPU. Each task is {MINIATURE}",
    "paper": "Paper scale: the paper's data, networks and settings.",
}


@dataclass(frozen=True)
class ClaimRow:
    """A claim in the table: theirs, ours and the verdict."""

    claim: paper.Claim
    theirs: str
    ours: str
    interval: str
    margin: str
    p: str
    verdict: str
    css_class: str


@dataclass(frozen=True)
class ScoreRow:
    """An optimizer in the table of scores."""

    experiment: str
    optimizer: str
    theirs: str
    note: str
    ours: str
    chosen: str


@dataclass(frozen=True)
class StudySection:
    """A study on the page: its verdict, figures and samples."""

    title: str
    verdict: Verdict
    link: str | None
    order: list[str]  # of the optimizers, best first
    imports: str
    copies: list[CopyRow]
    copy_warning: str
    figures: list[tuple[Drawn, str]]  # with captions
    samples: Gallery | None
    colors: dict[str, int]
    decides: str  # which network's test score decides


def render(
    scale: Scale, studies: Mapping[str, Study], links: Mapping[str, str], missing: Mapping[str, str]
) -> str:
    """Return the page.

    Args:
        scale: of all studies.
        studies: by recipe.
        links: to each study's own page, relative to this one.
        missing: why a recipe has no study, in a sentence.

    A study without runs has no samples; all else is in its summary.
    """
    summaries = {recipe: summary for recipe, (summary, _) in studies.items()}
    judgements, scores = paper.judge(summaries), paper.table(summaries)
    return fill_template(
        "reproduction.html.j2",
        dash=DASH,
        title="The paper's tables and figures, theirs and ours",
        caution=CAUTIONS[scale],
        finding=paper.finding(judgements, scale),
        finding_for_mda=paper.finding_for_mda(judgements),
        missing=missing,
        margins=_margins(),
        claims=[_claim_row(each, summaries) for each in judgements if each.n],
        not_run=[each.claim for each in judgements if not each.n],
        scores=[_score_row(row, studies) for row in scores if row.ours],
        scores_not_run=[_score_row(row, studies) for row in scores if not row.ours],
        studies=[
            _section(*studies[recipe], links.get(recipe)) for recipe in paper.RECIPES if recipe in studies
        ],
    )


def _claim_row(ours: paper.Judgement, summaries: Mapping[str, Summary]) -> ClaimRow:
    places = _places(ours.claim, summaries[ours.claim.recipe])
    interval = DASH
    if ours.low is not None and ours.high is not None:
        interval = f"{signed(ours.low, places)} to {signed(ours.high, places)}"
    return ClaimRow(
        claim=ours.claim,
        theirs=_claimed(ours.claim),
        ours=DASH if ours.advantage is None else f"{signed(ours.advantage, places)} ({ours.n})",
        interval=interval,
        margin=_margin(ours, places),
        p=DASH if ours.p_holm is None else p_text(ours.p_holm).removeprefix("= "),
        verdict=ours.verdict,
        css_class=CSS_CLASSES.get(ours.verdict, "faint"),
    )


def _claimed(claim: paper.Claim) -> str:
    """Return the difference that the paper claims: a number, or what it has to be."""
    if claim.by is not None:
        return signed(claim.by, 2)
    return "> 0" if claim.relation == "better" else "equal"


def _places(claim: paper.Claim, summary: Summary) -> int:
    """Return the decimals of a study's scores, or of its training losses."""
    if claim.split == "test":
        return verdict.places(summary)
    return decimals(entry.train.se for entry in summary.optimizers.values() if entry.train)


def _margin(ours: paper.Judgement, places: int) -> str:
    """Return the margin of a claim of "equal", in the unit of the advantage where it is known, or nothing."""
    declared = ours.claim.margin
    if declared is None:
        return ""
    if ours.margin is None or not declared.endswith("%"):
        return f"±{declared}"
    return f"±{ours.margin:.{places}f} ({declared})"


def _margins() -> str:
    """Return all margins in words."""
    units = {"accuracy": " point", "bleu": " point"}
    return ", ".join(f"{name} {margin}{units.get(name, '')}" for name, margin in paper.MARGINS.items())


def _score_row(row: paper.ScoreRow, studies: Mapping[str, Study]) -> ScoreRow:
    printed, measured, setting = DASH, "not run", DASH
    if row.theirs:
        printed = row.theirs.printed + (f" ± {row.theirs.se}" if row.theirs.se else "")
    if row.ours and row.ours.test:
        summary, test = studies[row.recipe][0], row.ours.test
        places = verdict.places(summary)
        measured = f"{with_error(test, places)} ({test.n})"
        measured += f", {test.diverged} diverged" if test.diverged else ""
    if row.ours:
        setting = str(row.ours.chosen.point)
        setting += "; smallest or largest tried" if row.ours.chosen.edge else ""
    unit = f" ({row.unit})" if row.unit else ""
    return ScoreRow(
        experiment=f"{row.recipe}, {row.metric}{unit}",
        optimizer=row.optimizer,
        theirs=printed,
        note=row.theirs.note if row.theirs else "",
        ours=measured,
        chosen=setting,
    )


def _section(summary: Summary, runs: Sequence[RunResult], link: str | None) -> StudySection:
    recipe, metric = summary.recipe, summary.metric
    order = verdict.rank(summary)
    found: dict[str, str | Sequence[figures.Plot]] = {
        f"Validation {metric}": figures.validation_curves(summary, f"{recipe}-valid"),
        "Training loss": figures.training_curves(summary, f"{recipe}-train"),
        "Validation by step size; ring: chosen": figures.sensitivity(summary, f"{recipe}-lr"),
    }
    if summary.comparisons:
        found[f"Better in test {metric}"] = figures.differences(summary, f"{recipe}-differences")
    return StudySection(
        title=f"{recipe}: {summary.paper}" if summary.paper else recipe,
        verdict=verdict.verdict(summary),
        link=link,
        order=order,
        imports=copyable.imports(summary),
        copies=[CopyRow(name, copyable.lines(summary, name)) for name in order],
        copy_warning=copyable.warning(summary),
        figures=[(drawn(figure), caption) for caption, figure in found.items()],
        samples=gallery(order, runs),
        colors=drawing.looks(summary.optimizers),
        decides=summary.report,
    )
