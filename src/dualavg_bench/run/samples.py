"""The samples of a recipe as a result keeps them; `report/samples.py` shows them.

Pictures are kept as plain pixels, so that reading a result decodes no picture format.
"""

import base64

import torch

from dualavg_bench.recipe import Passage, Picture
from dualavg_bench.store.results import PassageSample, PictureSample


def encode(sample: Picture | Passage) -> PictureSample | PassageSample:
    """Return a sample as a result keeps it; white is the brightest point of a picture's truth."""
    if isinstance(sample, Passage):
        return PassageSample(given=sample.given, truth=sample.truth, made=sample.made)
    if sample.truth.ndim != 2 or sample.truth.shape != sample.made.shape:
        raise ValueError(
            f"The picture {sample.title!r} has the shapes {tuple(sample.truth.shape)} (truth) and "
            f"{tuple(sample.made.shape)} (made), where two equal ones (height, width) were expected."
        )
    white = sample.truth.max().clamp(min=1e-30)
    pixels = [
        (255 * (part / white).clamp(0, 1)).nan_to_num().round().to("cpu", torch.uint8).numpy()
        for part in (sample.truth, sample.made)
    ]
    truth, made = (base64.b64encode(part.tobytes()).decode() for part in pixels)
    height, width = sample.truth.shape
    return PictureSample(title=sample.title, shape=(height, width), truth=truth, made=made)
