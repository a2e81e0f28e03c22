"""The page around the data: foreign text is never markup, and nothing but the page's own scripts may run."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.report import html
from pipeline.terminal.streams import printable

HOSTILE = "</script><script>alert(1)</script><!-- </td> \x1b[2J \u2028 \u202e \udcff & \x00"


def page(text: str) -> dict[str, Any]:
    return {"title": text, "made": "now", "version": "0", "runs": [], "comparison": [{"rows": [[text]]}]}


def data_of(written: str) -> str:
    return written.split('<script type="application/json" id="data">')[1].split("</script>")[0]


def shell() -> str:
    """The page without what differs from page to page."""
    written = html.page_html(page("x"))
    return written.replace(data_of(written), "")


def test_no_text_of_others_is_markup() -> None:
    written = html.page_html(page(HOSTILE))
    data = data_of(written)
    assert written.replace(data, "") == shell()
    assert not re.search("[<>&\u2028\u2029\x00-\x1f]", data)
    assert json.loads(data)["title"] == printable(HOSTILE)


@pytest.mark.properties
@given(st.text(st.characters(), max_size=50))
def test_every_text_comes_back_as_it_may_be_shown(text: str) -> None:
    data = html._data(page(text))
    assert not re.search("[<>&\u2028\u2029]", data)
    assert json.loads(data)["comparison"][0]["rows"] == [[printable(text)]]


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else() -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', shell())
    assert found is not None
    policy = dict(part.strip().split(" ", 1) for part in found[1].split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", shell(), flags=re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", shell(), flags=re.DOTALL)
    assert len(scripts) == 2
    for name, parts in (("script-src", scripts), ("style-src", styles)):
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        assert policy.pop(name).split() == [f"'sha256-{one}'" for one in hashes]
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_charts_come_with_their_licence_and_without_a_way_out() -> None:
    assert "MIT License" in (html.ASSETS / "plotly-LICENSE.txt").read_text()
    ours = "".join(path.read_text() for path in (*html.FRAME, *html.OF_RUNS))
    assert "showSendToCloud: false" in ours
    assert 'plotlyServerURL: ""' in ours
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|https?:", ours)
