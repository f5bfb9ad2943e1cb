"""The report: one HTML page that needs no network and no script, made from a summary and its runs.

Everything that a recipe or a run brings along passes through jinja2's escaping; only the figures, whose text
matplotlib has escaped, are put in as they are. The page's policy forbids scripts besides.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dualavg_bench.analysis import formatting, statistics, verdict
from dualavg_bench.report import drawing, figures
from dualavg_bench.report import samples as gallery

Summary = Mapping[str, Any]
Write = Callable[[Path, str], Any]
DASH = "\N{EN DASH}"
NO_SCORE = {"test": "no result", "valid": DASH, "n": 0, "diverged": 0, "best": False, "told": DASH}


def write_report(
    summary: Summary,
    runs: Sequence[statistics.Run],
    path: Path,
    write: Write | None = None,
    command: str | None = None,
) -> Path:
    """Write the page of one study; `write(path, text)` does it, where given, else a plain write."""
    return _write(render(summary, runs, command), path, write)


def compare_report(
    summaries: Sequence[Summary], path: Path, write: Write | None = None, names: Sequence[str] | None = None
) -> Path:
    """Write the page of several studies side by side."""
    return _write(render_comparison(summaries, names), path, write)


def render(summary: Summary, runs: Sequence[statistics.Run] = (), command: str | None = None) -> str:
    """The page of one study.

    Args:
        summary: what `stats.summarize` made, or what was read back from summary.json.
        runs: the study's results, for the curves; a page without them has all but the curves.
        command: how it was started, if other than the summary lets one guess.
    """
    study = _study(summary, runs, "s0", command)
    return page("report.html.j2", title=study["title"], studies=[study], overview=None)


def render_comparison(summaries: Sequence[Summary], names: Sequence[str] | None = None) -> str:
    """The page of several studies: scores side by side, and Holm's correction over all their pairs.

    Args:
        summaries: of different studies; one that came twice would be corrected for twice.
        names: what to call studies of one recipe and scale apart, such as their folders; else a number.
    """
    if not summaries:
        raise ValueError("There are no studies to compare.")
    names = names or [f"study {i}" for i in range(1, len(summaries) + 1)]
    for (one, a), (other, b) in combinations(zip(names, summaries, strict=True), 2):
        if set(a["runs"]) == set(b["runs"]):
            raise ValueError(f"{one} and {other} are the same study, run for run: name it once.")
    studies = [_study(summary, (), f"s{i}", None) for i, summary in enumerate(summaries)]
    titles = Counter(study["title"] for study in studies)
    for study, name in zip(studies, names, strict=True):
        study["title"] += f", {name}" if titles[study["title"]] > 1 else ""
    pairs = [(i, pair) for i, summary in enumerate(summaries) for pair in summary["comparisons"]]
    corrected = statistics.holm([pair["p"] for _, pair in pairs])
    rows = []
    for (i, pair), p in zip(pairs, corrected, strict=True):
        rows.append({"study": studies[i]["title"], **_pair(summaries[i], {**pair, "p_holm": p})})
    scores = [
        {
            "name": name,
            "cells": [next((row for row in s["scores"] if row["name"] == name), None) for s in studies],
        }
        for name in sorted({name for summary in summaries for name in summary["optimizers"]})
    ]
    overview = {"scores": scores, "pairs": rows}
    return page(
        "report.html.j2",
        title=f"{len(studies)} studies compared" if len(studies) > 1 else "1 study",
        studies=studies,
        overview=overview,
    )


def page(template: str, **values: Any) -> str:
    """Fill a template; every string in it is escaped."""
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    palette = list(enumerate(drawing.PALETTE.items()))
    return environment.get_template(template).render(palette=palette, reach=figures.REACH, **values) + "\n"


def _write(html: str, path: Path, write: Write | None) -> Path:
    if write is None:
        Path(path).write_text(html, encoding="utf-8")
    else:
        write(Path(path), html)
    return Path(path)


def _study(
    summary: Summary, runs: Sequence[statistics.Run], prefix: str, command: str | None
) -> dict[str, Any]:
    """All that the template prints of a study, as text already formatted but not escaped."""
    entries = summary["optimizers"]
    order = verdict.rank(summary)
    places = formatting.decimals(entry["test"]["se"] for entry in entries.values() if entry["test"])
    return {
        "prefix": prefix,
        "summary": summary,
        "title": f"{summary['recipe']} ({summary['scale']})",
        "unit": f" ({summary['unit']})" if summary["unit"] else "",
        "direction": "higher is better" if summary["higher_is_better"] else "lower is better",
        "order": order,
        "worst_end": figures.worst_end(summary),
        "colors": drawing.looks(verdict.without_result(summary)) | drawing.looks(entries),
        "scores": [*(_score_row(summary, name, places) for name in order), *_failed_rows(summary)],
        "packages": summary.get("packages", {}),  # older summaries have none
        "pairs": [_pair(summary, pair) for pair in summary["comparisons"]],
        "chosen": [_chosen_row(summary, name) for name in order],
        "warnings": verdict.edges(summary),
        "unequal": verdict.unequal(summary),
        "failed": verdict.without_result(summary),
        "failures": [{**failure, "setting": _setting(failure)} for failure in summary.get("failures", ())],
        "lost": _divergences(summary),
        "counts": {
            phase: sum(run["phase"] == phase for run in summary["runs"].values())
            for phase in ("tune", "confirm")
        },
        "seeds": {
            phase: sorted({run["seed"] for run in summary["runs"].values() if run["phase"] == phase})
            for phase in ("tune", "confirm")
        },
        "steps": sorted({run["steps"] for run in summary["runs"].values()}),
        "minutes": formatting.duration(summary["times"]["seconds"]),
        "figures": _figures(summary, runs, prefix),
        "shared": _shared(summary),
        "gpu": any(machine.get("gpu") for machine in summary["machines"]),
        "samples": gallery.side_by_side(order, runs),
        "command": command or summary.get("command") or _command(summary),
        "install": _install(summary),
    }


def _score_row(summary: Summary, name: str, places: int) -> dict[str, Any]:
    test, valid = summary["optimizers"][name]["test"], summary["optimizers"][name]["valid_final"]
    if test is None:
        failed = name in verdict.without_result(summary)
        return {"name": name, **NO_SCORE, "test": "no result" if failed else "not confirmed"}
    leaders = verdict.leaders(summary)
    return {
        "name": name,
        "test": formatting.with_error(test, places),
        "valid": formatting.with_error(valid, places),
        "n": test["n"],
        "diverged": test["diverged"],
        "best": name in leaders and test["diverged"] < test["n"],
        "told": _told(summary, name, leaders),
    }


def _failed_rows(summary: Summary) -> list[dict[str, Any]]:
    """Rows of optimizers that did not even come to a choice, because a tuning run failed."""
    failed = verdict.without_result(summary)
    return [{"name": name, **NO_SCORE} for name in failed if name not in summary["optimizers"]]


def _told(summary: Summary, name: str, leaders: Sequence[str]) -> str:
    """Whether an optimizer is told from the best one."""
    if name in leaders:
        return DASH if len(leaders) == 1 else "tied for best"
    pairs = summary["comparisons"]
    against = next((pair for pair in pairs if (pair["a"], pair["b"]) == (leaders[0], name)), None)
    if against is None:
        return DASH
    p = "no test"
    if against["p_holm"] is not None:
        p = f"p {formatting.p_text(against['p_holm'])}".replace(
            " = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
        )
    return f"{'yes' if verdict.distinguishable(against) else 'no'} ({p})"


def _pair(summary: Summary, pair: Mapping[str, Any]) -> dict[str, Any]:
    places = formatting.interval_decimals(summary["comparisons"])
    tested = pair["low"] is not None
    interval = [formatting.signed(pair[end], places) for end in ("low", "high")] if tested else None
    return {
        "a": pair["a"],
        "b": pair["b"],
        "metric": summary["metric"],
        "difference": formatting.signed(pair["difference"], places),
        "interval": f"{interval[0]} to {interval[1]}" if interval else "no test possible",
        "p": formatting.p_text(pair["p_holm"]).removeprefix("= ") if pair["p_holm"] is not None else DASH,
        "n": pair["n"],
        "firm": verdict.distinguishable(pair),
    }


def _chosen_row(summary: Summary, name: str) -> dict[str, Any]:
    entry = summary["optimizers"][name]
    chosen, grid = entry["chosen"], entry["grid"]
    points = summary["sensitivity"][name]
    places = formatting.decimals(other["chosen"]["valid"]["se"] for other in summary["optimizers"].values())
    values = {key: sorted({point[key] for point in points}) for key in statistics.POINT}
    return {
        "name": name,
        "lr": f"{chosen['lr']:g}",
        "weight_decay": f"{chosen['weight_decay']:g}",
        "schedule": chosen["schedule"],
        "lrs": ", ".join(f"{value:g}" for value in values["lr"]),
        "decays": ", ".join(f"{value:g}" for value in values["weight_decay"]),
        "schedules": ", ".join(values["schedule"]),
        "valid": formatting.with_error(chosen["valid"], places),
        "n": chosen["valid"]["n"],
        "tried": _tried(grid),
        "edge": chosen["edge"],
    }


def _tried(grid: Mapping[str, Any]) -> str:
    """How many points and runs a grid had, and how many of these were not in it at first."""
    said = [formatting.counted(grid["points"], "point"), formatting.counted(grid["runs"], "run")]
    if grid["diverged"]:
        said.append(f"{grid['diverged']} diverged")
    if grid["extended"]:
        said.append(f"{formatting.counted(grid['extended'], 'point')} added because a best lay on an edge")
    return ", ".join(said)


def _setting(run: Mapping[str, Any]) -> str:
    return f"lr {run['lr']:g}, weight decay {run['weight_decay']:g}, {run['schedule']}"


def _shared(summary: Summary) -> str:
    """How many runs shared the machine, as far as is known."""
    workers = summary["times"].get("workers")
    if workers is None:  # older summaries do not say
        return "other runs may have shared it"
    return "one run at a time" if workers == 1 else f"with {workers} workers at once"


def _divergences(summary: Summary) -> list[dict[str, Any]]:
    """One row for each setting and reason, its seeds together."""
    rows: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
    for run in summary["runs"].values():
        if run["status"] == "diverged":
            key = (
                run["phase"] == "tune",
                run["optimizer"],
                *(run[k] for k in statistics.POINT),
                run["why"] or "",
            )
            rows.setdefault(key, []).append((run["seed"], run["diverged_at"]))
    return [
        {
            "phase": "tuning" if tune else "confirmation",
            "name": name,
            "setting": f"lr {lr:g}, weight decay {decay:g}, {schedule}",
            "when": "diverged at " + ", ".join(f"step {step} (seed {seed})" for seed, step in sorted(seeds)),
            "why": why,
        }
        for (tune, name, lr, decay, schedule, why), seeds in sorted(rows.items())
    ]


def _figures(summary: Summary, runs: Sequence[statistics.Run], prefix: str) -> dict[str, Markup]:
    drawn: dict[str, str] = {}
    if any(run["phase"] == "confirm" for run in runs):
        drawn["train"] = figures.training_curves(summary, runs, f"{prefix}-train")
        drawn["valid"] = figures.validation_curves(summary, runs, f"{prefix}-valid")
    if summary["comparisons"]:
        drawn["differences"] = figures.differences(summary, f"{prefix}-differences")
    drawn["sensitivity"] = figures.sensitivity(summary, f"{prefix}-sensitivity")
    drawn["budget"] = figures.budget(summary, f"{prefix}-budget")
    drawn["time"] = figures.step_time(summary, f"{prefix}-time")
    if any(entry["peak_mb"] for entry in summary["times"]["optimizers"].values()):
        drawn["memory"] = figures.memory(summary, f"{prefix}-memory")
    return {name: Markup(drawing) for name, drawing in drawn.items()}  # noqa: S704, matplotlib escaped it


def _command(summary: Summary) -> str:
    study = shlex.join(["dualavg", "study", summary["recipe"], "--scale", summary["scale"]])
    data = "" if summary["scale"] == "quick" else " --data DIR"
    return f"{study} \\\n    --optimizers {shlex.quote(','.join(summary['optimizers']))}{data}"


def _install(summary: Summary) -> str | None:
    """Command for the versions, where all machines had the same; dualavg itself is installed from a clone."""
    versions = {(machine.get("torch"), machine.get("dualavg")) for machine in summary["machines"]}
    if len(versions) != 1 or None in (found := versions.pop()):
        return None
    pins = {"torch": found[0]}
    for name, known in summary.get("packages", {}).items():
        if len(known) == 1 and name not in ("torch", "dualavg"):
            pins[name] = known[0]
    # Without what follows a plus: whichever build is at hand.
    packages = [f"{name}=={str(v).partition('+')[0]}" for name, v in pins.items()]
    return f"{shlex.join(['pip', 'install', *packages, '.[bench]'])}  # in a clone of dualavg {found[1]}"
