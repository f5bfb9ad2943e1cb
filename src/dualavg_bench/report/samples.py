"""The samples of optimizers side by side: pictures with their score and difference, and texts."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualavg_bench.store.results import PassageSample, PictureSample, RunResult

BRIGHTEST = 50  # largest factor of a difference: beyond it, only the rounding to 256 greys would show
SSIM_WINDOW = 7  # scikit-image's default; a smaller picture has no SSIM
MASK, BLANK = "[masked]", "_"  # a hidden token in a text, and a token that is only space

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Reconstruction:
    """An optimizer's picture and its difference from the truth, as data URIs."""

    optimizer: str
    picture: str
    ssim: str | None
    difference: str


@dataclass(frozen=True)
class PictureRow:
    """A true picture, as a data URI, and what each optimizer made of it."""

    title: str
    truth: str
    factor: str  # of the brightness of all differences
    reconstructions: list[Reconstruction]


@dataclass(frozen=True)
class PassageRow:
    """A text, the true output, and the output of each optimizer."""

    given: str
    truth: str
    outputs: list[tuple[str, str]]  # by optimizer


@dataclass(frozen=True)
class Gallery:
    """The samples of a study: the same test examples for every optimizer."""

    seeds: list[int]
    pictures: list[PictureRow]
    passages: list[PassageRow]

    @property
    def has_masks(self) -> bool:
        """Whether tokens are hidden in the texts."""
        return any(MASK in passage.given for passage in self.passages)

    @property
    def has_blanks(self) -> bool:
        """Whether one of the predicted tokens is only space."""
        outputs = (output for passage in self.passages for _, output in passage.outputs)
        return self.has_masks and any(BLANK in output.split(" | ") for output in outputs)


def gallery(optimizers: Sequence[str], runs: Sequence[RunResult]) -> Gallery | None:
    """Return the samples of each optimizer's first confirmation run that has any, or None."""
    shown: dict[str, RunResult] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.phase == "confirm" and run.samples:
            shown.setdefault(run.optimizer, run)
    names = [name for name in optimizers if name in shown]
    if not names:
        return None
    pictures = [[s for s in shown[name].samples if isinstance(s, PictureSample)] for name in names]
    passages = [[s for s in shown[name].samples if isinstance(s, PassageSample)] for name in names]
    return Gallery(
        seeds=sorted({shown[name].seed for name in names}),
        pictures=[_picture_row(names, row) for row in zip(*pictures, strict=False)],
        passages=[_passage_row(names, row) for row in zip(*passages, strict=False)],
    )


def _passage_row(names: Sequence[str], samples: Sequence[PassageSample]) -> PassageRow:
    outputs = [(name, sample.made) for name, sample in zip(names, samples, strict=True)]
    return PassageRow(samples[0].given, samples[0].truth, outputs)


def _picture_row(names: Sequence[str], samples: Sequence[PictureSample]) -> PictureRow:
    shape, truth = samples[0].shape, _pixels(samples[0].truth, samples[0].shape)
    pictures = [_pixels(sample.made, shape) for sample in samples]
    differences = [np.abs(pixels.astype(int) - truth) for pixels in pictures]
    factor = _brightness(differences)
    return PictureRow(
        title=samples[0].title,
        truth=_uri(truth),
        factor=f"{factor:g}",
        reconstructions=[
            Reconstruction(
                optimizer=name,
                picture=_uri(pixels),
                ssim=_ssim(truth, pixels),
                difference=_uri(np.clip(factor * difference, 0, 255).round().astype(np.uint8)),
            )
            for name, pixels, difference in zip(names, pictures, differences, strict=True)
        ],
    )


def _brightness(differences: Iterable[NDArray[np.int_]]) -> float:
    """Return one factor for all differences: the 99th percentile of the largest becomes about white."""
    largest = max(float(np.percentile(difference, 99)) for difference in differences)
    return float(f"{min(max(255 / largest, 1), BRIGHTEST):.2g}") if largest else 1.0


def _ssim(truth: Pixels, picture: Pixels) -> str | None:
    """Return the SSIM of the pictures as they are shown, or None if they are too small.

    The recipe's own may differ in the third digit: its values are not rounded to 256 greys, and its white is
    the brightest point of the whole volume.
    """
    from skimage.metrics import structural_similarity

    if min(truth.shape) < SSIM_WINDOW:
        return None
    return f"{structural_similarity(truth, picture, win_size=SSIM_WINDOW, data_range=255):.3f}"  # type: ignore[no-untyped-call]


def _pixels(encoded: str, shape: tuple[int, int]) -> Pixels:
    return np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(shape)


def _uri(pixels: Pixels) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
