"""A recipe at several run lengths: the schema of `horizon.json`. Page and figures need no other file."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dualavg_bench.recipe.settings import Report
from dualavg_bench.scales import Scale
from dualavg_bench.store.documents import Document, Model, Setting
from dualavg_bench.store.results import Machine
from dualavg_bench.store.summaries import Comparison, NumericAxis, Scores, check_pairs


class ChosenSetting(Setting):
    """The best point of a grid by validation, and the axes on which it is at an end of the grid."""

    edge: list[NumericAxis]
    seeds: PositiveInt  # of tuning, that the choice is the mean of


class OptimizerAtLength(Model):
    """An optimizer at one run length: its chosen setting, and the scores of that setting on fresh seeds.

    Without a confirmation, `test` and `train` are None.
    """

    chosen: ChosenSetting
    test: Scores | None  # of the network that decides, the last or the best one
    train: Scores | None  # training loss at the end, of the runs that have one


class Length(Model):
    """All optimizers at one run length: the essence of a study's summary."""

    steps: PositiveInt
    epochs: PositiveFloat | None
    summary: str  # file names of the study's summary and page, in the folder of the horizon
    page: str
    optimizers: dict[str, OptimizerAtLength]
    comparisons: list[Comparison]  # Holm's p over the pairs of this length alone
    failed: dict[str, str]  # optimizers without a result because a run failed, and why

    @property
    def confirmed(self) -> dict[str, Scores]:
        """The test scores of the optimizers that have any."""
        return {name: entry.test for name, entry in self.optimizers.items() if entry.test is not None}

    @model_validator(mode="after")
    def _check_pairs(self) -> "Length":
        check_pairs(self.comparisons, self.confirmed)
        return self


class Horizon(Document):
    """A recipe that was tuned and confirmed at several run lengths, from short to long."""

    NAME: ClassVar[str] = "horizon of a recipe"
    REMEDY: ClassVar[str] = "run its command again to write it anew"

    recipe: str
    scale: Scale
    metric: str
    higher_is_better: bool
    unit: str
    report: Report
    test_examples: PositiveInt
    about: str
    paper: str
    command: Annotated[str, Field(pattern="^dualavg horizon .")]
    own_steps: PositiveInt  # of the recipe
    planned: list[PositiveInt]  # the lengths that the command names
    lengths: Annotated[list[Length], Field(min_length=1)]  # those that have finished
    machines: list[Machine]
    verdict: list[str]  # sentences

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1."""
        return 1 if self.higher_is_better else -1

    @property
    def missing(self) -> list[int]:
        """The lengths that have not finished."""
        finished = {length.steps for length in self.lengths}
        return [steps for steps in self.planned if steps not in finished]

    @model_validator(mode="after")
    def _check_order(self) -> "Horizon":
        for name, steps in (("planned", self.planned), ("lengths", [each.steps for each in self.lengths])):
            if steps != sorted(set(steps)):
                raise ValueError(f"{name} are not in order, or one is there twice: {steps}")
        if unplanned := {length.steps for length in self.lengths} - set(self.planned):
            raise ValueError(f"lengths has {min(unplanned)} steps, planned has not")
        return self
