"""Dates and numbers in German and English, from babel and num2words, as sentence pairs."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from dualavg_bench.data.embedded import once

VERSION = "embedded-1"  # change it with the data: finished runs keep theirs
NAME = "dates.de-en"
PAIRS = {"train": 4_000, "valid": 200, "test": 200}
FIRST_DAY, DAYS = date(1990, 1, 1), 14_610
NUMBERS = 100


def write(folder: Path) -> Path:
    """Write 4,400 pairs unless they exist. Return their folder."""
    return once(folder / VERSION / NAME, _write)


def _write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    pairs: dict[str, str] = {}  # by German sentence, so that none is repeated
    while len(pairs) < sum(PAIRS.values()):
        day, number = FIRST_DAY + timedelta(days=int(rng.integers(DAYS))), int(rng.integers(NUMBERS))
        german, english = (_sentence(day, number, language) for language in ("de", "en"))
        pairs[german] = english
    remaining = iter(pairs.items())
    for split, count in PAIRS.items():
        part = [next(remaining) for _ in range(count)]
        for language, sentences in zip(("de", "en"), zip(*part, strict=True), strict=True):
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")


def _sentence(day: date, number: int, language: str) -> str:
    """Return a sentence such as "Dienstag, 3. März 1992: elf"."""
    from babel.dates import format_date
    from num2words import num2words  # type: ignore[import-untyped]

    return f"{format_date(day, 'full', locale=language)}: {num2words(number, lang=language)}"
