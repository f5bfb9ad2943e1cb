"""What an experiment is. These are the names that a recipe file needs."""

from dualavg_bench.recipe.data import Batch, FromDataset, Source, Splits
from dualavg_bench.recipe.recipe import Recipe
from dualavg_bench.recipe.samples import Passage, Picture
from dualavg_bench.recipe.settings import Grid, Metric, Point, Precision, Report, Seeds
from dualavg_bench.recipe.user_code import RecipeError
from dualavg_bench.scales import Scale

__all__ = [
    "Batch",
    "FromDataset",
    "Grid",
    "Metric",
    "Passage",
    "Picture",
    "Point",
    "Precision",
    "Recipe",
    "RecipeError",
    "Report",
    "Scale",
    "Seeds",
    "Source",
    "Splits",
]
