"""The published studies as tables in Markdown. Every number comes from the files in this folder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dualavg_bench.analysis import frontier, paper
from dualavg_bench.analysis.formatting import (
    decimals,
    duration,
    interval_decimals,
    p_text,
    signed,
    with_error,
)
from dualavg_bench.analysis.statistics import is_significant, paired_interval
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.results import SecondScore
from dualavg_bench.store.summaries import Comparison, Scores, Summary

FOLDER = Path(__file__).parent / "mini"
NAMES = {
    "mda": "MDA",
    "sgd": "SGD+M",
    "adam": "Adam",
    "da": "dual averaging",
    "da+momentum": "+ momentum",
    "pull.FadingPull": "pull fades with lr",
    "pull.NoPull": "no pull",
    "adamw": "AdamW",
    "adamw+start": "AdamW, decay to the start",
    "adamw+lora": "LoRA (AdamW)",
    "sgd+l2sp": "SGD+M with L2-SP",
    "dadapt-mda": "D-Adapt MDA",
}
TASKS = {
    "cifar10": "images, CIFAR-10",
    "imagenet": "images, 20 classes of Tiny ImageNet",
    "fastmri": "MRI reconstruction, chests",
    "iwslt14": "translation, Tatoeba De-En",
    "wikitext103": "language model, WikiText-2",
    "roberta": "masked language model, Wikipedia and novels",
    "cifar10_ablation": "ablation, CIFAR-10",
}
FINE_TUNED = {
    "finetune_lm": "language model, Wikipedia to novels",
    "finetune_vision": "images, five classes of CIFAR-10 to the others",
}
COMPARED = ("mda", "sgd", "adam")
D = TypeVar("D", Summary, Horizon)


@dataclass(frozen=True)
class Results:
    """The files of a folder."""

    folder: Path = FOLDER

    @property
    def choices(self) -> Path:
        """The file of benchmarks/dadapt_choices.py."""
        return self.folder.parent / "dadapt_choices.json"

    def _read(self, suffix: str) -> dict[str, Summary]:
        return self._checked({name: self.folder / f"{name}{suffix}.json" for name in TASKS}, Summary)

    def _checked(self, files: Mapping[str, Path], kind: type[D]) -> dict[str, D]:
        found = {name: read_document(file, kind) for name, file in files.items() if file.exists()}
        for name, document in found.items():
            if (document.recipe, document.scale) != (name, "mini"):
                found_kind = f"{document.recipe} at {document.scale} scale"
                raise ValueError(f"{files[name].name} is of {found_kind}, not of {name} at mini.")
        return found

    @cached_property
    def studies(self) -> dict[str, Summary]:
        """The studies of the paper's experiments, by recipe."""
        return self._read("")

    @cached_property
    def fine_tuned(self) -> dict[str, Summary]:
        """The studies of the fine-tuning recipes."""
        return self._checked({name: self.folder / f"{name}.json" for name in FINE_TUNED}, Summary)

    @cached_property
    def horizons(self) -> dict[str, Horizon]:
        """The recipes at several run lengths."""
        return self._checked({name: self.folder / f"{name}-horizon.json" for name in TASKS}, Horizon)

    @cached_property
    def untuned(self) -> dict[str, Summary]:
        """The studies of examples/no_tuning/*.py, by recipe."""
        return self._read("-untuned")

    @cached_property
    def pulls(self) -> dict[str, Summary]:
        """The studies of examples/pull_*.py, by recipe."""
        return self._read("-pull")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, or a sentence if no study of it is finished."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if len(lines) > 2 else "Not run yet."


def scores(results: Results, link: Callable[[str], str] = lambda name: f"`{name}`") -> str:
    """Six tasks and three optimizers: test scores, and MDA against the better of the other two."""
    header = ["task", "metric", *(NAMES[name] for name in COMPARED), "MDA against the better other", "n"]
    rows = []
    for recipe, task in TASKS.items():
        summary = results.studies.get(recipe)
        if summary is None or not set(COMPARED) <= set(summary.confirmed):
            continue
        best = _best(summary, COMPARED)
        cells = [score(summary.confirmed, name, bold=name == best) for name in COMPARED]
        rival = _best(summary, COMPARED[1:])
        label = f"{task} ({link(recipe)})"
        n = str(summary.confirmed["mda"].n)
        rows.append([label, metric(summary), *cells, _against(summary, "mda", rival), n])
    return table(header, rows)


def training(results: Results) -> str:
    """Training loss, both networks and the chosen setting of every optimizer."""
    header = ["task", "optimizer", "last network", "best network", "training loss", "lr", "decay", "schedule"]
    rows = []
    for recipe, summary in results.studies.items():
        losses = {name: entry.train for name, entry in summary.optimizers.items() if entry.train}
        for name, entry in summary.optimizers.items():
            last = {key: e.test_last for key, e in summary.optimizers.items() if e.test_last}
            best = {key: e.test_best for key, e in summary.optimizers.items() if e.test_best}
            shown = [
                score(part, name, bold=summary.report == report)
                for part, report in ((last, "last"), (best, "best"))
            ]
            setting = [f"{entry.chosen.lr:g}", f"{entry.chosen.weight_decay:g}", entry.chosen.schedule]
            for i, axis in enumerate(("lr", "weight_decay")):
                setting[i] += " (end of its grid)" * (axis in entry.chosen.edge)
            rows.append([f"`{recipe}`", NAMES[name], *shown, score(losses, name, bold=False), *setting])
    return table(header, rows)


def target(results: Results) -> str:
    """Steps and seconds until validation reaches the worst optimizer's final score."""
    header = ["task", "target (validation)", "optimizer", "steps", "of", "seconds", "runs that reached it"]
    rows = []
    for recipe, summary in results.studies.items():
        steps = {run.steps for run in summary.runs.values()}
        for name, entry in summary.optimizers.items():
            reach, cost = entry.to_target, summary.times.optimizers[name].step_ms
            if reach is None or cost is None or summary.target is None:
                continue
            taken = "not reached" if reach.steps is None else f"{reach.steps:,}"
            seconds = "" if reach.steps is None else f"{reach.steps * cost.median / 1000:.0f}"
            goal = f"{summary.metric} {summary.target:.4g}"
            row = [f"`{recipe}`", goal, NAMES[name], taken, f"{max(steps):,}", seconds]
            rows.append([*row, f"{reach.reached} of {reach.n}"])
    return table(header, rows)


def claims(results: Results) -> str:
    """Every claim of the paper with ours."""
    header = ["experiment", "claim", "the paper", "ours", "95% interval", "n", "p (Holm)", "verdict"]
    rows = []
    for row in paper.judge(results.studies):
        places = interval_decimals([(row.low, row.high)])
        theirs = row.claim.words or {"better": "> 0", "equal": "equal"}[row.claim.relation]
        if row.claim.by is not None:
            theirs = signed(row.claim.by, 2)
        if row.margin is not None:
            percent = row.claim.margin and row.claim.margin.endswith("%")
            theirs += f"; margin {row.claim.margin}" + (f" = {row.margin:.2g}" if percent else "")
        ours, interval = "", ""
        if row.advantage is not None:
            ours = signed(row.advantage, places)
        if row.low is not None and row.high is not None:
            interval = f"{signed(row.low, places)} to {signed(row.high, places)}"
        p = "" if row.p_holm is None else p_text(row.p_holm).removeprefix("= ")
        verdict = f"**{row.verdict}**" if row.verdict == paper.DISAGREES else row.verdict
        n = str(row.n) if row.n else ""
        rows.append([f"`{row.claim.recipe}`", row.claim.text, theirs, ours, interval, n, p, verdict])
    return table(header, rows)


def finding(results: Results) -> str:
    """Two sentences: how many claims agree, and how many of those that speak for MDA."""
    rows = paper.judge(results.studies)
    return f"{paper.finding(rows, 'mini')} {paper.finding_for_mda(rows)}"


def pull(results: Results) -> str:
    """MDA with its pull as it is, fading, and without: test score, training loss, paired differences."""
    header = ["task", "optimizer", "test", "training loss", "lr", "against MDA (95% interval)", "n"]
    rows = []
    for recipe, study in results.pulls.items():
        base = results.studies[recipe]
        entries = [(base, "mda"), *((study, name) for name in study.optimizers), (base, "sgd")]
        mda = by_seed(base, "mda")
        for summary, name in entries:
            entry = summary.optimizers[name]
            if entry.test is None or entry.train is None:
                continue
            places = decimals(e.test.se for e in base.optimizers.values() if e.test)
            loss_places = decimals(e.train.se for e in base.optimizers.values() if e.train)
            difference = "" if name == "mda" else paired(by_seed(summary, name), mda, summary.sign)
            test, loss = with_error(entry.test, places), with_error(entry.train, loss_places)
            lr, n = f"{entry.chosen.lr:g}", str(entry.test.n)
            rows.append([f"`{recipe}`, {metric(base)}", NAMES[name], test, loss, lr, difference, n])
    return table(header, rows)


def fine_tuning(results: Results) -> str:
    """Both test scores of every optimizer at its chosen setting."""
    header = ["task", "optimizer", "new (test)", "old (test)", "lr", "decay or strength", "n"]
    rows = []
    for recipe, summary in results.fine_tuned.items():
        both = frontier.both_scores(summary)
        places = [decimals(pair[k].se for pair in both.values()) for k in (0, 1)]
        for name, pair in both.items():
            scores = [with_error(part, digits) for part, digits in zip(pair, places, strict=True)]
            chosen = summary.optimizers[name].chosen
            setting = [f"{chosen.lr:g}", f"{chosen.weight_decay:g}"]
            rows.append([f"`{recipe}`, {metric(summary)}", NAMES[name], *scores, *setting, str(pair[0].n)])
    return table(header, rows)


def at_equal_score(results: Results) -> str:
    """The old score of every optimizer at equal new scores, and the difference from the best."""
    header = ["task", "at", "optimizer", "old score (95% interval)", "from the best (95% interval)", "seeds"]
    rows = []
    for recipe, summary in results.fine_tuned.items():
        for level in frontier.at_equal_score(summary):
            places = interval_decimals(each.interval or (None, None) for each in level.estimates)
            at = f"{summary.metric} {level.metric:.{places}f}"
            for each in level.estimates:
                cells = ["not reached", ""]
                if each.value is not None:
                    cells[0] = _with_interval(f"{each.value:.{places}f}", each.interval, places)
                if each.difference is not None:
                    difference = signed(each.difference, places)
                    cells[1] = _with_interval(difference, each.difference_interval, places, sign="+")
                rows.append([f"`{recipe}`", at, NAMES[each.optimizer], *cells, str(level.seeds)])
    return table(header, rows)


def _with_interval(value: str, interval: tuple[float, float] | None, places: int, sign: str = "") -> str:
    if interval is None:
        return value
    low, high = (f"{end:{sign}.{places}f}".replace("-", "\N{MINUS SIGN}") for end in interval)
    return f"{value} ({low} to {high})"


def forgetting(results: Results) -> str:
    """One sentence per task: the old score at an equal new score, from best to worst."""
    sentences = []
    for recipe, summary in results.fine_tuned.items():
        levels, also = frontier.at_equal_score(summary), summary.also
        begin = frontier.start(summary)
        if not levels or also is None or begin is None:
            continue
        level, task = levels[0], FINE_TUNED[recipe]
        places = interval_decimals(each.interval or (None, None) for each in level.estimates)
        unit = "%" if also.unit == "%" else f" {also.unit}"
        kept = "; ".join(
            f"{NAMES[each.optimizer]} {each.value:.{places}f}"
            for each in level.estimates
            if each.value is not None
        )
        sentences.append(
            f"{task[0].upper()}{task[1:]}: at {summary.metric} {level.metric:.{places}f}{unit}, "
            f"{also.name} (before: {begin[1]:.{places}f}) is {kept} (n = {level.seeds}; {_better(also)})."
        )
    return " ".join(sentences) or "Not run yet."


def _better(also: SecondScore) -> str:
    return "higher is better" if also.higher_is_better else "lower is better"


def frontier_figure(results: Results) -> str:
    """The figure, if there is one."""
    alt = "Old score against new score: a dot for each setting, a line for each optimizer, the start marked."
    return f"![{alt}](img/results_finetune.svg)" if results.fine_tuned else "Not run yet."


def horizon(results: Results) -> str:
    """Test score and training loss at every run length."""
    columns = [f"{NAMES[name]}: {part}" for part in ("test", "training loss") for name in COMPARED]
    rows = []
    for recipe, found in results.horizons.items():
        for length in found.lengths:
            trained = {name: e.train for name, e in length.optimizers.items() if e.train}
            cells = [
                score(part, name, bold=False) for part in (length.confirmed, trained) for name in COMPARED
            ]
            epochs = "" if length.epochs is None else f"{length.epochs:.3g}"
            n = str(max((scores.n for scores in length.confirmed.values()), default=0))
            rows.append([f"`{recipe}`, {metric(found)}", f"{length.steps:,}", epochs, *cells, n])
    return table(["task", "steps", "epochs", *columns, "n"], rows)


def costs(results: Results) -> str:
    """Runs, seeds and computing time of every study."""
    header = ["study", "runs", "grid points each", "tuning seeds", "n", "time of a run", "computing time"]
    rows = []
    kinds = {
        "": results.studies | results.fine_tuned,
        "-pull": results.pulls,
        "-untuned": results.untuned,
    }
    named = [(f"{name}{kind}", each) for kind, studies in kinds.items() for name, each in studies.items()]
    for name, summary in named:
        first = next(iter(summary.optimizers.values()))
        seconds = summary.times.seconds
        row = [f"`{name}.json`", str(len(summary.runs)), str(first.grid.points), str(first.chosen.valid.n)]
        row += [str(first.test.n if first.test else 0), duration(seconds / len(summary.runs))]
        rows.append([*row, duration(seconds)])
    return table(header, rows)


def _best(summary: Summary, names: Sequence[str]) -> str:
    return max(names, key=lambda name: summary.sign * summary.confirmed[name].mean)


def metric(summary: Summary | Horizon) -> str:
    """Return the metric with its unit and an arrow to where it is better."""
    arrow = "\N{UPWARDS ARROW}" if summary.higher_is_better else "\N{DOWNWARDS ARROW}"
    return f"{summary.metric}{', ' + summary.unit if summary.unit else ''} {arrow}"


def score(part: Mapping[str, Scores], name: str, *, bold: bool) -> str:
    """Return mean and standard error of an optimizer, with the digits that fit all of them."""
    if name not in part:
        return ""
    text = with_error(part[name], decimals(each.se for each in part.values()))
    text += f" ({part[name].diverged} diverged)" if part[name].diverged else ""
    return f"**{text}**" if bold else text


def _against(summary: Summary, name: str, rival: str) -> str:
    """Return by how much `name` is ahead of a rival: positive is better, whatever the metric."""
    pair = next(pair for pair in summary.comparisons if {pair.a, pair.b} == {name, rival})
    return f"{NAMES[rival]}: {_difference(pair, summary.sign * (1 if pair.a == name else -1))}"


def _difference(pair: Comparison, sign: int) -> str:
    if pair.low is None or pair.high is None or pair.p_holm is None:
        return f"{sign * pair.difference:+.3g}, no test"
    low, high = sorted((sign * pair.low, sign * pair.high))
    places = interval_decimals([(low, high)])
    word = "within noise"
    if is_significant(pair.p_holm):
        word = "ahead" if sign * pair.difference > 0 else "behind"
    value = signed(sign * pair.difference, places)
    return f"{value} ({signed(low, places)} to {signed(high, places)}), **{word}**"


def by_seed(summary: Summary, name: str) -> dict[int, float]:
    """Return the test scores of an optimizer's confirmation runs."""
    runs = summary.runs.values()
    return {run.seed: run.test for run in runs if run.optimizer == name and run.test is not None}


def paired(ours: dict[int, float], theirs: dict[int, float], sign: int) -> str:
    """Return the mean difference over common seeds with its 95% interval: positive is better."""
    seeds = sorted(ours.keys() & theirs.keys())
    a, b = [sign * ours[seed] for seed in seeds], [sign * theirs[seed] for seed in seeds]
    low, high, _ = paired_interval(a, b)
    places = interval_decimals([(low, high)])
    mean = sum(x - y for x, y in zip(a, b, strict=True)) / len(seeds)
    if low is None or high is None:
        return signed(mean, places)
    return f"{signed(mean, places)} ({signed(low, places)} to {signed(high, places)})"
