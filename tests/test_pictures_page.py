"""The page of every picture kind: all of its commands run, and no picture command is missing from it."""
import contextlib
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tinyattn.cli import COMMANDS

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "examples" / "pictures.py"))
PICTURES = {name for name in COMMANDS
            if name not in ("train", "compare", "evaluate", "predict", "list", "explain", "check", "exercise", "bench",
                            "warmup", "doctor", "ptx")}


def test_every_command_that_draws_is_there():
    drawn = {command.split()[0] for _, kinds in SCRIPT["KINDS"] for command, _ in kinds}
    assert drawn == PICTURES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("matplotlib")
    where = tmp_path_factory.mktemp("pictures")
    with contextlib.chdir(where):  # the folder's name is relative, as by default
        SCRIPT["main"](["--steps", "3"])
    return where / "pictures"


def test_all_pictures_are_drawn(folder):
    for number, command in enumerate((c for _, kinds in SCRIPT["KINDS"] for c, _ in kinds), 1):
        found = [p for p in folder.iterdir() if p.name.startswith(f"{number:02}-{command.split()[0]}")]
        assert len(found) == 1, command
        if found[0].suffix == ".svg":
            assert len(list(ET.parse(found[0]).iter())) > 20, command


def test_the_page_holds_them_all_with_their_commands(folder, opened):
    page = opened(folder / "index.html")
    total = sum(len(kinds) for _, kinds in SCRIPT["KINDS"])
    assert page.locator("figure").count() == total
    assert page.locator("figure svg:visible").count() >= page.locator("figure:has(> svg)").count() > total / 2
    for link in page.locator("figure a[href]").all():
        if not link.get_attribute("href").startswith("#"):
            assert (folder / link.get_attribute("href")).is_file(), link.get_attribute("href")
    text = page.inner_text("body")
    assert text.count("tinyattn ") >= total and str(folder) not in text
    ids = re.findall(r'\sid="([^"]+)"', (folder / "index.html").read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
