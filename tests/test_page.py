"""Pages hold everything they show, ask nothing of a network, and show text as it is."""
import json
import re

import pytest

from tinyattn.errors import InputError
from viz.page import embedded, inline, math, page, write

SVG = ('<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
       '<defs><clipPath id="c"><rect width="9" height="9"/></clipPath><path id="p" d="M0 0"/></defs>'
       '<g clip-path="url(#c)"><use xlink:href="#p"/><use href="#p"/><a href="#elsewhere"/></g></svg>')


def test_ids_of_two_pictures_differ_and_what_points_to_them_follows():
    one, two = inline(SVG, 1), inline(SVG, 2)
    assert not set(re.findall(r'\sid="(.*?)"', one)) & set(re.findall(r'\sid="(.*?)"', two))
    clip, path = re.findall(r'\sid="(.*?)"', one)
    assert f"url(#{clip})" in one and f'xlink:href="#{path}"' in one and f' href="#{path}"' in one
    assert 'href="#elsewhere"' in one and one.startswith("<svg")
    assert inline(SVG) == inline(SVG) != inline(SVG.replace("M0 0", "M1 1"))


def test_numbers_for_a_script_are_read_back_whatever_they_hold(tmp_path, opened):
    data = {"tokens": ["</script>", "<!-- <script>", "日本語 😀", '"', "\\", "\u2028"], "n": [0.5, -1]}
    path = write(tmp_path / "page.html", page("<t> & co", embedded("data", data) + '<p id="out"></p>', script="""
const data = JSON.parse(document.getElementById("data").textContent);
document.getElementById("out").textContent = JSON.stringify(data); // </script> <!--
"""), "test")
    shown = opened(path)
    assert json.loads(shown.inner_text("#out")) == data and shown.title() == "<t> & co"


def test_a_page_may_not_ask_a_network(tmp_path, chromium):
    path = write(tmp_path / "page.html", page("t", '<img src="http://127.0.0.1:9/x.png">'), "test")
    shown, said = chromium.new_page(), []
    shown.on("console", lambda line: said.append(line.text))
    shown.goto(path.as_uri())
    shown.wait_for_timeout(100)
    shown.close()
    assert any("Content Security Policy" in line for line in said), said


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="^who: cannot write .*missing"):
        write(tmp_path / "missing" / "page.html", "text", "who")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match="^who: cannot write"):
        write(tmp_path / "folder.html", "text", "who")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.html"]


def test_formulas_are_set_without_a_script():
    pytest.importorskip("latex2mathml")
    assert "<msup><mi>e</mi><mi>x</mi></msup>" in math("e^{x}").replace("<mrow>", "").replace("</mrow>", "")
    assert 'display="block"' in math("x", block=True)
