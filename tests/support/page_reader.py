"""A page of HTML, read: its tags, its text, its tables."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from dualavg_bench.report.page import TEMPLATES


class Reader(HTMLParser):
    """Collects tags, attributes and text; checks that what is opened is closed."""

    VOID = frozenset({"meta", "br", "wbr", "img", "use", "path"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids, self.open, self.text = [], [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for key, value in attrs if key == "id"]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data


class Tables(HTMLParser):
    """The headers of each table that a page shows at once, and the labels of its cells on a narrow screen."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.folded, self.heading = [], False, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "details":
            self.folded = True
        elif self.folded:
            return
        elif tag == "table":
            self.tables.append({"class": dict(attrs).get("class"), "headers": [], "rows": []})
        elif tag == "th":
            self.tables[-1]["headers"].append("")
        elif tag == "tr":
            self.tables[-1]["rows"].append([])
        elif tag == "td":
            self.tables[-1]["rows"][-1].append(dict(attrs).get("data-label"))
        self.heading = tag == "th"

    def handle_endtag(self, tag):
        self.folded = self.folded and tag != "details"

    def handle_data(self, data):
        if self.heading:
            self.tables[-1]["headers"][-1] += data.strip()


def without_own_script(page):
    """The page without the one script that it brings and that its policy allows, which must be there once."""
    script = (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in page
    assert page.count(f"<script>{script}</script>") == 1
    return page.replace(f"<script>{script}</script>", "")


def words(page):
    return re.sub(r"\s+", " ", Reader(page).text)
