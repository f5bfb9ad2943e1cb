"""What a trained network makes of a few test examples: as JSON in a result, side by side in the report.

Pictures are kept as bytes, not as a picture format, so that reading them back decodes nothing foreign.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualavg_bench.recipe import Passage, Picture

GAIN = 5  # of the difference between two pictures, which one would not see otherwise


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


def side_by_side(order: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the samples of each optimizer's first confirmation run that has any, or None.

    A list of pictures, each with its truth and, for each optimizer, what was made of it and the difference,
    as data URIs; a list of passages likewise, as text.
    """
    shown: dict[str, Mapping[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        if run["phase"] == "confirm" and run.get("samples"):
            shown.setdefault(run["optimizer"], run)
    names = [name for name in order if name in shown]
    if not names:
        return None
    columns = zip(*(shown[name]["samples"] for name in names), strict=False)  # the same examples for all
    rows = [list(zip(names, column, strict=True)) for column in columns]
    return {
        "seeds": sorted({shown[name]["seed"] for name in names}),
        "gain": GAIN,
        "pictures": [_pictures(row) for row in rows if row[0][1]["kind"] == "picture"],
        "passages": [_passages(row) for row in rows if row[0][1]["kind"] == "passage"],
    }


def _pictures(row: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    first = row[0][1]
    truth = _pixels(first, "truth")
    made = {name: _pixels(sample, "made") for name, sample in row}
    difference = {
        name: np.clip(GAIN * np.abs(pixels.astype(int) - truth), 0, 255).astype(np.uint8)
        for name, pixels in made.items()
    }
    return {
        "title": first["title"],
        "truth": _uri(truth),
        "made": [(name, _uri(made[name]), _uri(difference[name])) for name, _ in row],
    }


def _passages(row: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    first = row[0][1]
    made = [(name, sample["made"]) for name, sample in row]
    return {"given": first["given"], "truth": first["truth"], "made": made}


def _pixels(sample: Mapping[str, Any], what: str) -> NDArray[np.uint8]:
    height, width = sample["shape"]
    return np.frombuffer(base64.b64decode(sample[what]), np.uint8).reshape(height, width)


def _uri(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
