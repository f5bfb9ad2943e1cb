"""What a recipe's `samples` returns: a few test examples for the report to show."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Picture:
    """Two pictures for the report, both (height, width): the true one and the network's."""

    title: str
    truth: Tensor
    made: Tensor


@dataclass(frozen=True)
class Passage:
    """Three texts for the report: the network's input, the true output and the network's."""

    given: str
    truth: str
    made: str
