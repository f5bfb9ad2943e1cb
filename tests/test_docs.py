"""Every python block of the README and of the documentation runs, page by page, from top to bottom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec")  # lightning's import
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # lightning
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    for found in blocks:
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found[1], str(page), "exec"), namespace)
    capsys.readouterr()
    opened = re.findall(r"^\s*(?:```|~~~)\s*\{?\s*\.?py(?:thon3?)?\b", text, re.MULTILINE | re.IGNORECASE)
    assert len(blocks) == len(opened), "Python that is indented or fenced otherwise was passed over"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_in_the_project_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


def test_the_conformance_page_names_every_property_and_only_those() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text()
    defined = re.findall(
        r"^def (test_\w+)", (ROOT / "tests" / "optim" / "test_conformance.py").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`(test_\w+)`", page)) == set(defined)
