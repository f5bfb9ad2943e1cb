"""The page "the paper's tables and figures, theirs and ours": made from the studies of its experiments."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dualavg_bench.analysis import paper, statistics, verdict
from dualavg_bench.analysis.formatting import decimals, interval_decimals, p_text, signed, with_error
from dualavg_bench.report import drawing, figures
from dualavg_bench.report import samples as gallery
from dualavg_bench.report.study_page import page

Study = tuple[Mapping[str, Any], Sequence[statistics.Run]]  # a summary and its runs
DASH = "\N{EN DASH}"
MARKS = {paper.AGREES: "", paper.DISAGREES: "alarming"}
CAUTIONS = {
    "quick": "Quick scale: toy data and toy networks of the same kinds as the paper's, a check that it all "
    "runs. Whether a claim holds here says nothing about the paper's own experiments.",
    "mini": "Mini scale: small real data and small networks, short runs on a CPU. The same kinds of tasks as "
    "the paper's, not the same tasks: only directions can be compared.",
    "paper": "Paper scale: the paper's data, networks and settings.",
}


def render(
    scale: str, studies: Mapping[str, Study], links: Mapping[str, str], missing: Mapping[str, str]
) -> str:
    """Return the page.

    Args:
        scale: of all studies.
        studies: by recipe.
        links: where each study's own page is, seen from this one, if it has one.
        missing: why a recipe has no study, in a sentence.
    """
    claims = paper.judge({recipe: runs for recipe, (_, runs) in studies.items()})
    scores = paper.table({recipe: summary for recipe, (summary, _) in studies.items()})
    return page(
        "reproduction.html.j2",
        dash=DASH,
        title="The paper's tables and figures, theirs and ours",
        caution=CAUTIONS[scale],
        finding=paper.finding(claims, scale),
        missing=missing,
        claims=[_claim(row) for row in claims],
        scores=[_score(row, studies) for row in scores],
        studies=[
            _study(*studies[recipe], links.get(recipe)) for recipe in paper.RECIPES if recipe in studies
        ],
    )


def _claim(row: Mapping[str, Any]) -> dict[str, Any]:
    places = interval_decimals([row])
    claimed = "alike" if row["relation"] == "alike" else "better"
    tested = row["low"] is not None
    return {
        **{key: row[key] for key in ("recipe", "where", "says", "words", "verdict")},
        "theirs": claimed if row["by"] is None else signed(row["by"], 2),
        "ours": f"{signed(row['advantage'], places)} ({row['n']})" if row["n"] else DASH,
        "interval": f"{signed(row['low'], places)} to {signed(row['high'], places)}" if tested else DASH,
        "p": DASH if row["p_holm"] is None else p_text(row["p_holm"]).removeprefix("= "),
        "mark": MARKS.get(row["verdict"], "faint"),
    }


def _score(row: Mapping[str, Any], studies: Mapping[str, Study]) -> dict[str, Any]:
    theirs, ours, chosen = row["theirs"], row["ours"], row["chosen"]
    unit = f" ({row['unit']})" if row["unit"] else ""
    printed = DASH
    if theirs:
        printed = theirs.printed + (f" ± {theirs.se}" if theirs.se else "")
    measured, setting = "not run", DASH
    if ours:
        entries = studies[row["recipe"]][0]["optimizers"].values()
        places = decimals(entry["test"]["se"] for entry in entries if entry["test"])
        measured = f"{with_error(ours, places)} ({ours['n']})"
        measured += f", {ours['diverged']} diverged" if ours["diverged"] else ""
    if chosen:
        setting = f"lr {chosen['lr']:g}, weight decay {chosen['weight_decay']:g}, {chosen['schedule']}"
        setting += ", on the edge of its grid" if chosen["edge"] else ""
    return {
        "experiment": f"{row['recipe']}, {row['metric']}{unit}",
        "optimizer": row["optimizer"],
        "theirs": printed,
        "note": theirs.note if theirs else "",
        "ours": measured,
        "chosen": setting,
    }


def _study(summary: Mapping[str, Any], runs: Sequence[statistics.Run], link: str | None) -> dict[str, Any]:
    recipe, metric, end = summary["recipe"], summary["metric"], figures.worst_end(summary)
    marks = (
        f"Step-size sensitivity on validation. At the {end}, a cross: diverged; a hollow caret: beyond it."
    )
    drawn = [
        (figures.training_curves(summary, runs, f"{recipe}-train"), "Training loss at the chosen settings."),
        (figures.validation_curves(summary, runs, f"{recipe}-valid"), f"Validation {metric}."),
        (figures.sensitivity(summary, f"{recipe}-lr"), marks),
    ]
    if summary["comparisons"]:  # a fourth: the last of three would stand beside an empty half
        pairs = f"Paired differences in test {metric}: mean and 95% interval. Filled: told from noise, with "
        pairs += "Holm's correction for this study's pairs alone."
        drawn.append((figures.differences(summary, f"{recipe}-differences"), pairs))
    return {
        "title": f"{recipe}: {summary['paper']}" if summary["paper"] else recipe,
        "verdict": summary["verdict"],
        "link": link,
        "figures": [(Markup(made), caption) for made, caption in drawn],  # noqa: S704, matplotlib escaped it
        "samples": gallery.side_by_side(verdict.rank(summary), runs),
        "colors": drawing.looks(summary["optimizers"]),
    }
