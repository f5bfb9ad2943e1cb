"""The samples of runs side by side, for the pages: pictures with their score and difference, and texts.

Apart from `samples.py`, whose text is part of every run's hash: a page may change, and no run is done again.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 50  # times as bright, at most: beyond it, one would look at the rounding to 256 greys
WINDOW = 7  # of SSIM, scikit-image's own; a smaller picture has none
GAP, BLANK = "[masked]", "_"  # a hidden token in a text, and one that is nothing but space
Sample = Mapping[str, Any]


def side_by_side(order: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the samples of each optimizer's first confirmation run that has any, or None.

    A list of pictures, each with its truth and, for each optimizer, what was made of it, its SSIM and the
    difference, as data URIs; a list of passages likewise, as text.
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
    passages = [_passages(row) for row in rows if row[0][1]["kind"] == "passage"]
    pieces = {piece for passage in passages for _, made in passage["made"] for piece in made.split(" | ")}
    gaps = any(GAP in passage["given"] for passage in passages)
    return {
        "seeds": sorted({shown[name]["seed"] for name in names}),
        "pictures": [_pictures(row) for row in rows if row[0][1]["kind"] == "picture"],
        "passages": passages,
        "gaps": gaps,
        "blanks": gaps and BLANK in pieces,
    }


def _pictures(row: list[tuple[str, Sample]]) -> dict[str, Any]:
    first = row[0][1]
    truth = _pixels(first, "truth")
    made = {name: _pixels(sample, "made") for name, sample in row}
    wrong = {name: np.abs(pixels.astype(int) - truth) for name, pixels in made.items()}
    factor = _brighter(wrong.values())
    return {
        "title": first["title"],
        "truth": _uri(truth),
        "factor": f"{factor:g}",
        "made": [
            {
                "name": name,
                "made": _uri(made[name]),
                "score": _ssim(truth, made[name]),
                "difference": _uri(np.clip(factor * wrong[name], 0, 255).round().astype(np.uint8)),
            }
            for name, _ in row
        ],
    }


def _brighter(differences: Any) -> float:
    """How many times as bright to show them all: the 99th percentile of the largest is about white."""
    largest = max(float(np.percentile(difference, 99)) for difference in differences)
    return float(f"{min(max(255 / largest, 1), MOST):.2g}") if largest else 1.0


def _ssim(truth: NDArray[np.uint8], made: NDArray[np.uint8]) -> str | None:
    """The pictures' SSIM as they are shown, or None if they are too small for it.

    From the pixels and not from the run, which does not keep it. The recipe's own may differ in the third
    digit: it is of numbers that were not rounded, and white is the brightest point of the whole volume.
    """
    from skimage.metrics import structural_similarity

    if min(truth.shape) < WINDOW:
        return None
    return f"{structural_similarity(truth, made, win_size=WINDOW, data_range=255):.3f}"  # type: ignore[no-untyped-call]


def _passages(row: list[tuple[str, Sample]]) -> dict[str, Any]:
    first = row[0][1]
    made = [(name, sample["made"]) for name, sample in row]
    return {"given": first["given"], "truth": first["truth"], "made": made}


def _pixels(sample: Sample, what: str) -> NDArray[np.uint8]:
    height, width = sample["shape"]
    return np.frombuffer(base64.b64decode(sample[what]), np.uint8).reshape(height, width)


def _uri(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
