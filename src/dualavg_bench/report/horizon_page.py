"""The page of a horizon: score, training loss and gap against run length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualavg_bench.analysis import formatting, standings
from dualavg_bench.analysis.horizon import places, verdict
from dualavg_bench.report import drawing, horizon_figures
from dualavg_bench.report.page import Drawn, all_drawn, fill_template
from dualavg_bench.report.tables import DASH
from dualavg_bench.store.horizons import Horizon, Length
from dualavg_bench.store.summaries import Scores


@dataclass(frozen=True)
class Cell:
    """A score in a table, with its n."""

    text: str = DASH
    best: bool = False
    remark: str = ""


@dataclass(frozen=True)
class LengthRow:
    """A run length in the tables of scores: one cell per optimizer."""

    steps: str
    epochs: str
    own: bool  # whether it is the recipe's own length
    link: str | None  # to its study's page
    test: list[Cell]
    train: list[Cell]


@dataclass(frozen=True)
class GapRow:
    """An optimizer at one length against the best other one."""

    steps: str
    name: str
    rival: str
    n: int
    advantage: str
    interval: str
    p: str
    relation: str
    css_class: str


@dataclass(frozen=True)
class ChosenRow:
    """The setting of an optimizer at one length."""

    steps: str
    name: str
    setting: str
    edge: str


@dataclass(frozen=True)
class HorizonView:
    """All that the template prints: text, formatted but not escaped."""

    horizon: Horizon
    title: str
    verdict: list[str]
    unit: str
    direction: str
    optimizers: list[str]
    colors: dict[str, int]
    lengths: list[LengthRow]
    gaps: list[GapRow]
    pairs: int
    chosen: list[ChosenRow]
    missing: str
    has_epochs: bool
    figures: dict[str, Drawn]


def render(horizon: Horizon, links: Mapping[int, str] | None = None) -> str:
    """Return the page.

    Args:
        horizon: of at least one length.
        links: to the page of each length's study, relative to this one.
    """
    names = standings.optimizers(horizon)
    found = standings.standings(horizon)
    view = HorizonView(
        horizon=horizon,
        title=f"{horizon.recipe} ({horizon.scale}): how long is long enough?",
        verdict=verdict(horizon),
        unit=f" ({horizon.unit})" if horizon.unit else "",
        direction="higher is better" if horizon.higher_is_better else "lower is better",
        optimizers=names,
        colors=drawing.looks(names),
        lengths=[_length_row(horizon, length, names, links or {}) for length in horizon.lengths],
        gaps=_gap_rows(found, places(horizon)),
        pairs=sum(len(length.comparisons) for length in horizon.lengths),
        chosen=_chosen_rows(horizon, names),
        missing=" and ".join(f"{steps:,}" for steps in horizon.missing),
        has_epochs=any(length.epochs is not None for length in horizon.lengths),
        figures=_figures(horizon, bool(found)),
    )
    return fill_template("horizon.html.j2", title=view.title, view=view)


def _length_row(
    horizon: Horizon, length: Length, names: Sequence[str], links: Mapping[int, str]
) -> LengthRow:
    leaders = standings.leaders(length, horizon.sign)
    tests = {name: entry.test for name, entry in length.optimizers.items()}
    trains = {name: entry.train for name, entry in length.optimizers.items()}
    losses = [entry.train for each in horizon.lengths for entry in each.optimizers.values() if entry.train]
    digits, loss_digits = places(horizon), formatting.decimals(loss.se for loss in losses)
    return LengthRow(
        steps=f"{length.steps:,}",
        epochs=DASH if length.epochs is None else f"{length.epochs:.3g}",
        own=length.steps == horizon.own_steps,
        link=links.get(length.steps),
        test=[_cell(tests.get(name), digits, best=name in leaders) for name in names],
        train=[_cell(trains.get(name), loss_digits) for name in names],
    )


def _cell(scores: Scores | None, digits: int, *, best: bool = False) -> Cell:
    if scores is None:
        return Cell("no result")
    remark = f"{scores.diverged} diverged" if scores.diverged else ""
    text = f"{formatting.with_error(scores, digits)} ({scores.n})"
    return Cell(text, best and scores.diverged < scores.n, remark)


def _gap_rows(found: Sequence[standings.Standing], digits: int) -> list[GapRow]:
    rows = []
    for one in found:
        interval = "no test possible"
        if one.low is not None and one.high is not None:
            interval = f"{formatting.signed(one.low, digits)} to {formatting.signed(one.high, digits)}"
        rows.append(
            GapRow(
                steps=f"{one.steps:,}",
                name=one.optimizer,
                rival=one.rival,
                n=one.n,
                advantage=formatting.signed(one.advantage, digits),
                interval=interval,
                p=DASH if one.p_holm is None else formatting.p_text(one.p_holm).removeprefix("= "),
                relation="can be chance" if one.relation == "within noise" else one.relation,
                css_class="" if one.relation in ("ahead", "behind") else "faint",
            )
        )
    return rows


def _chosen_rows(horizon: Horizon, names: Sequence[str]) -> list[ChosenRow]:
    rows = []
    for name in names:
        for length in horizon.lengths:
            if name in length.optimizers:
                chosen = length.optimizers[name].chosen
                edge = ", ".join(axis.replace("_", " ") for axis in chosen.edge)
                rows.append(ChosenRow(f"{length.steps:,}", name, str(chosen.point), edge))
    return rows


def _figures(horizon: Horizon, compared: bool) -> dict[str, Drawn]:
    found = {"scores": horizon_figures.scores(horizon), "loss": horizon_figures.training_loss(horizon)}
    if compared:
        found["gaps"] = horizon_figures.gaps(horizon)
    return all_drawn(found)
