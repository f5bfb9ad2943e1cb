"""The pages as a reader sees them: in headless Chromium, on a phone and on a screen, light and dark."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, chromium
from support.made_up_horizon import horizon
from support.synthetic_runs import another, study, summarize

from dualavg_bench.report import horizon_page, paper_page, study_page
from dualavg_bench.report.compare_page import render_comparison

NAMES = ("study", "long names", "comparison", "horizon", "reproduction")
WIDTHS = (400, 800, 1200)
AXE = os.environ.get("AXE_JS", "")  # the path of axe.min.js, of the npm package axe-core


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page, of made-up studies; one has long names, one a diverged run."""
    runs = study(confirm_diverges={("adam", 1003)})
    summary = summarize(runs, about="A made-up task.", paper="Section 4.1")
    long = {"an_optimizer.with_quite.a_long.DottedName": (0.1, 0.3, 1.0), "sgd": (0.1, 0.3, 1.0)}
    metric = "mean_absolute_error_of_the_reconstructed_volumes"
    named = summarize(study(lrs=long, metric=metric, unit="per mille", higher_is_better=False))
    texts = {
        "study": study_page.render(summary, runs),
        "long names": study_page.render(named),
        "comparison": render_comparison([summary, another(summarize(study(1, scale="mini")))]),
        "horizon": horizon_page.render(horizon()),
        "reproduction": paper_page.render("quick", {"cifar10": (summary, ())}, {}, {"fastmri": "It failed."}),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_seen_on_a_phone_without_scrolling(name, browser, pages) -> None:
    browser.open(pages[name], 400, 800)
    top, bottom = browser.run(
        "const box = document.querySelector('.verdict').getBoundingClientRect(); return [box.top, box.bottom]"
    )
    assert 0 < top < bottom < 800
    first = browser.run("return document.querySelector('.verdict').firstElementChild.className")
    assert first == "headline"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_has_to_be_scrolled_sideways_and_the_console_is_silent(name, width, browser, pages) -> None:
    browser.errors()
    browser.open(pages[name], width)
    if name != "comparison":  # its folded parts are those of a study
        browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.errors() == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["study", "comparison", "horizon", "reproduction"])
def test_figures_have_text_of_12_pixels_and_captions_of_one_line(name, width, browser, pages) -> None:
    browser.open(pages[name], width)
    sizes = browser.run(
        "return [...document.querySelectorAll('figure svg')].filter(svg => svg.checkVisibility())"
        ".flatMap(svg => [...svg.querySelectorAll('text')]"
        ".map(text => parseFloat(getComputedStyle(text).fontSize) * svg.getScreenCTM().a))"
    )
    assert 12 <= min(sizes) <= max(sizes) < 13
    lines = browser.run(
        "return [...document.querySelectorAll('figcaption > span')].filter(text => text.checkVisibility())"
        ".map(text => text.getBoundingClientRect().height / parseFloat(getComputedStyle(text).lineHeight))"
    )
    assert lines
    assert max(lines) < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_on_one_grid(name, browser, pages) -> None:
    """Verdict, tables and rows of figures begin and end at the same two lines."""
    browser.open(pages[name], 1200)
    edges = browser.run(
        "return [...document.querySelectorAll('.verdict, section > .scroll, .figures, .legend')]"
        ".filter(part => part.checkVisibility()).map(part => part.getBoundingClientRect())"
        ".map(box => [Math.round(box.left), Math.round(box.right)])"
    )
    assert len(edges) > 2
    assert len({tuple(edge) for edge in edges}) == 1


def test_the_page_is_complete_without_its_script(browser, pages) -> None:
    browser.open(pages["study"], 800)
    with_script = browser.run("return document.querySelector('main').innerText.replaceAll('\\ncopy', '')")
    browser.open(pages["study"], 800, script=False)
    without = browser.run("return document.querySelector('main').innerText")
    assert with_script.replace("\nlog axis", "").split() == without.split()
    offered = "return [...document.querySelectorAll('button')].filter(b => !b.disabled && !b.hidden).length"
    assert browser.run(offered) == 0  # what would do nothing is not offered


def test_an_optimizer_can_be_hidden_in_all_figures_and_shown_again(browser, pages) -> None:
    browser.open(pages["study"], 800)
    count = "return [...document.querySelectorAll('svg .o2')].filter(p => p.getClientRects().length).length"
    shown = browser.run(count)
    assert shown > 6
    click = "document.querySelector('button.key[data-look=\"2\"]').click()"
    browser.run(click)
    assert browser.run(count) == 0
    pressed = "return [...document.querySelectorAll('button.key[data-look=\"2\"]')].map(b => b.ariaPressed)"
    assert browser.run(pressed) == ["false", "false"]  # of both legends
    assert browser.run(count.replace(".o2", ".o0")) > 3
    browser.run(click)
    assert browser.run(count) == shown


def test_the_axis_of_a_figure_can_be_switched(browser, pages) -> None:
    browser.open(pages["study"], 800)
    state = (
        "const figure = document.querySelector('button.switch').closest('figure');"
        "return [...figure.querySelectorAll('.plot')].filter(p => !p.hidden).map(p => p.dataset.scale)"
    )
    assert browser.run(state) == ["linear"]
    browser.run("document.querySelector('button.switch').click()")
    assert browser.run(state) == ["log"]
    assert browser.run("return document.querySelector('button.switch').textContent") == "linear axis"
    browser.run("document.querySelector('button.switch').click()")
    assert browser.run(state) == ["linear"]


def test_values_are_shown_under_the_pointer(browser, pages) -> None:
    browser.open(pages["study"], 800)
    assert browser.run("return document.querySelector('.tip').hidden")
    browser.hover("svg[data-values]", 0.6, 0.3)
    lines = browser.run(
        "return [...document.querySelectorAll('.tip:not([hidden]) div')].map(line => line.textContent)"
    )
    assert lines[0].startswith("step ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["mda", "sgd", "adam"]
    assert " ± " in lines[1]
    browser.hover("h1", 0.5, 0.5)
    assert browser.run("return document.querySelector('.tip').hidden")


def test_no_other_script_can_run(browser, pages, tmp_path) -> None:
    evil = tmp_path / "evil.html"
    text = pages["study"].read_text()
    evil.write_text(text.replace("</main>", "<script>document.title = 'evil'</script></main>"))
    browser.open(evil, 800)
    assert browser.run("return document.title") != "evil"
    assert any("Content Security Policy" in error for error in browser.errors())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_text_has_enough_contrast(name, dark, browser, pages) -> None:
    if not Path(AXE).is_file():
        pytest.skip(
            "there is no axe-core: npm install axe-core, and set AXE_JS to the path of its axe.min.js"
        )
    browser.open(pages[name], 800, dark=dark)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    if name != "comparison":
        browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    browser.run(Path(AXE).read_text())
    found = browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "const parts = {exclude: ['figure svg', '.runs']};"  # thousands of elements without text to read
        "axe.run(parts, {runOnly: ['wcag2a', 'wcag2aa']}).then(result => done(result.violations.map("
        "each => each.id + ': ' + each.nodes.map(node => node.html.slice(0, 200)).join(' | '))))"
    )
    assert found == []
