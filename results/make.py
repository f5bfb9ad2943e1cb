"""Write the tables and figures of README.md and docs from the files in results/mini.

    python results/make.py            # write; `make results` does this
    python results/make.py --check    # change nothing; fail if a page differs from the files
    python results/make.py --page paper.html    # instead, the page of `dualavg reproduce` from the files

A table stands between the lines `<!-- results: NAME -->` and `<!-- end -->`, and nobody edits it by hand.
"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import choices
import figures
import pairs
import tables
import untuned
from tables import Results

from dualavg_bench.reproduction import write_page
from dualavg_bench.store.files import StoreError

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("results", "learning-rate-free", "fine-tuning")),
)
MARKER = "<!-- results: "
BLOCK = re.compile(rf"({MARKER}([\w-]+) -->\n)(?:(?!{MARKER}).)*?(<!-- end -->)", re.DOTALL)
FIGURES = ROOT / "docs" / "img"


def link(name: str) -> str:
    """Return a link from README to a file."""
    return f"[{name}](results/mini/{name}.json)"


BLOCKS: dict[str, Callable[[Results], str]] = {
    "scores": tables.scores,
    "scores-linked": partial(tables.scores, link=link),
    "training": tables.training,
    "target": tables.target,
    "claims": tables.claims,
    "finding": tables.finding,
    "pairs": pairs.pairs,
    "horizon": tables.horizon,
    "pull": tables.pull,
    "costs": tables.costs,
    "untuned": untuned.untuned,
    "untuned-goals": untuned.goals,
    "choices-quick": partial(choices.scores, scale="quick"),
    "choices-mini": partial(choices.scores, scale="mini"),
    "choices-found": choices.found,
    "finetune": tables.forgetting,
    "finetune-figure": tables.frontier_figure,
    "finetune-equal": tables.at_equal_score,
    "finetune-scores": tables.fine_tuning,
}


def filled(text: str, results: Results) -> str:
    """Return a page with its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"There is no table called {match[2]!r}: give one of {', '.join(BLOCKS)}.")
        return f"{match[1]}\n{BLOCKS[match[2]](results)}\n\n{match[3]}"

    text, count = BLOCK.subn(fill, text)
    if count != text.count(MARKER):
        raise ValueError("A table begins and does not end: a line `<!-- end -->` is missing.")
    return text


def outdated(results: Results) -> list[Path]:
    """Return the pages whose tables, and the figures that, differ from the files."""
    pages = [page for page in PAGES if filled(page.read_text(), results) != page.read_text()]
    with TemporaryDirectory() as folder:
        drawn = {FIGURES / path.name: path.read_bytes() for path in figures.draw(results, Path(folder))}
    published = {path: path.read_bytes() for path in FIGURES.glob("results_*.svg")}
    return pages + sorted(
        path
        for path in published.keys() | drawn.keys()
        if path not in published or path not in drawn or _differ(published[path], drawn[path])
    )


def _differ(published: bytes, drawn: bytes) -> bool:
    """Return whether two figures differ, if one version of matplotlib drew both: others draw other bytes."""
    version = re.search(rb"Matplotlib v[\d.]+", published)
    return published != drawn and (version is None or version[0] in drawn)


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="change nothing; fail if a page is outdated")
    one.add_argument("--page", type=Path, help="write the page about the paper's claims to this file")
    arguments = parser.parse_args()
    results = Results()
    try:
        if arguments.page:
            write_page([results.folder / f"{name}.json" for name in results.studies], arguments.page)
        else:
            _run(results, check=arguments.check)
    except (StoreError, ValueError) as error:
        sys.exit(f"results/make.py: {error}")


def _run(results: Results, *, check: bool) -> None:
    if check:
        if pages := outdated(results):
            names = ", ".join(str(page.relative_to(ROOT)) for page in pages)
            sys.exit(f"{names}: not made from results/mini as it is. Run `make results`.")
        return
    for page in PAGES:
        page.write_text(filled(page.read_text(), results))
        print(page.relative_to(ROOT))
    for path in figures.draw(results, FIGURES):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
