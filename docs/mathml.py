"""MkDocs hook: formulas become MathML when the page is built, so that a reader's browser fetches nothing."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]\s*</(?P=tag)>',
    re.DOTALL,
)


def on_page_content(html: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex marked as a formula."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found["open"] == "[" else "inline"
        return convert(unescape(found["latex"]).strip(), display=display)

    return _FORMULA.sub(mathml, html)
