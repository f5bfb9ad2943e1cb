"""The page that compares several studies: one table of tasks by optimizers, then each study."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dualavg_bench.analysis import formatting, verdict
from dualavg_bench.analysis.overall import Overall, compare_tasks
from dualavg_bench.report.page import fill_template
from dualavg_bench.report.study_page import StudyView, study_view
from dualavg_bench.report.tables import PairRow, pair_row
from dualavg_bench.store.summaries import Summary


@dataclass(frozen=True)
class Cell:
    """An optimizer in a task."""

    score: str
    rank: str = ""


@dataclass(frozen=True)
class TaskRow:
    """A task in the table of tasks by optimizers."""

    title: str
    metric: str
    cells: list[Cell]
    winner: str


@dataclass(frozen=True)
class PairOverTasks:
    """A pair of optimizers, always in the same order, and its row of each task, None if it was not run."""

    a: str
    b: str
    cells: list[PairRow | None]


def render_comparison(summaries: Sequence[Summary], names: Sequence[str] | None = None) -> str:
    """Return the page of several studies, with Holm's correction over all their pairs.

    Args:
        summaries: of different studies.
        names: to distinguish studies of one recipe and scale, such as their folders; numbers by default.
    """
    if not summaries:
        raise ValueError("There are no studies to compare.")
    names = names or [f"study {i}" for i in range(1, len(summaries) + 1)]
    for (name, summary), (other_name, other) in combinations(zip(names, summaries, strict=True), 2):
        if set(summary.runs) == set(other.runs):
            raise ValueError(f"{name} and {other_name} are the same study, with the same runs: name it once.")
    studies = [study_view(summary, (), f"s{i}") for i, summary in enumerate(summaries)]
    titles = Counter(study.title for study in studies)
    studies = [
        replace(study, title=f"{study.title}, {name}") if titles[study.title] > 1 else study
        for study, name in zip(studies, names, strict=True)
    ]
    overall = compare_tasks({study.title: study.summary for study in studies})
    return fill_template(
        "compare.html.j2",
        title=f"{len(studies)} studies compared" if len(studies) > 1 else "1 study",
        studies=studies,
        overall=overall,
        rows=[_task_row(study, overall, i) for i, study in enumerate(studies)],
        pairs=_pairs(studies, overall),
    )


def _task_row(study: StudyView, overall: Overall, task: int) -> TaskRow:
    summary, places = study.summary, overall.ranks[task]
    digits = verdict.places(summary)
    cells = []
    for name in overall.optimizers:
        test = summary.confirmed.get(name)
        if test is None:
            missing = "no result" if name in study.failed or name in summary.optimizers else "not run"
            cells.append(Cell(missing))
        else:
            cells.append(Cell(formatting.with_error(test, digits), str(places[name])))
    arrow = "\N{UPWARDS ARROW}" if summary.higher_is_better else "\N{DOWNWARDS ARROW}"
    n = max((test.n for test in summary.confirmed.values()), default=0)
    metric = f"{summary.metric}{study.unit} {arrow}, n = {n}"
    metric += ", reduced study" if summary.reduced else ""
    return TaskRow(study.title, metric, cells, overall.winners[task] or "no winner")


def _pairs(studies: Sequence[StudyView], overall: Overall) -> list[PairOverTasks]:
    rows = []
    for (a, b), found in overall.advantages.items():
        cells = [
            None if one is None else pair_row(a, b, one, verdict.places(study.summary))
            for study, one in zip(studies, found, strict=True)
        ]
        if any(cells):
            rows.append(PairOverTasks(a, b, cells))
    return rows
