"""What a trained network makes of a few test examples, as a result keeps it; `gallery.py` shows it.

Pictures are kept as bytes, not as a picture format, so that reading them back decodes nothing foreign.
"""

import base64
from typing import Any

import torch

from dualavg_bench.recipe import Passage, Picture


def to_json(sample: Picture | Passage) -> dict[str, Any]:
    """Return a sample as a result keeps it; a picture's brightest point of truth is white."""
    if isinstance(sample, Passage):
        return {"kind": "passage", "given": sample.given, "truth": sample.truth, "made": sample.made}
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
    shape = list(sample.truth.shape)
    return {"kind": "picture", "title": sample.title, "shape": shape, "truth": truth, "made": made}
