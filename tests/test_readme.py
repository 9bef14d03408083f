"""The README's Python snippets run, and its commands name what exists."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("i", range(len(SNIPPETS)))
def test_snippet_runs(i, tmp_path):
    done = subprocess.run([sys.executable, "-c", SNIPPETS[i]], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_there_are_snippets_and_both_commands():
    assert SNIPPETS
    assert len(re.findall(r"^    python3 -m venv .*", README, re.MULTILINE)) == 2


def test_links_and_pictures_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_commands_and_options_exist():
    from click.testing import CliRunner

    from tinyattn.cli import root
    for command in sorted(set(re.findall(r"(?:^    |bin/)tinyattn ([a-z]+)", README, re.MULTILINE))):
        shown = CliRunner().invoke(root, [command, "--help"])
        assert shown.exit_code == 0, command
        for line in re.findall(rf"tinyattn {command}\b[^\n`]*", README):
            system = re.match(rf"tinyattn {command} +([a-z]+)", line)
            which = [system[1]] if system and command in ("train", "compare") else []
            text = CliRunner().invoke(root, [command, *which, "--help"]).output
            for option in re.findall(r"--[a-z-]+", line):
                assert option in text, f"{command} {' '.join(which)} {option}"


def test_the_readers_own_mechanism_passes_its_checks(tmp_path, capfd):
    from tinyattn.cli import main
    source, = (s for s in SNIPPETS if "@variant" in s)
    (tmp_path / "my.py").write_text(source, encoding="utf-8")
    assert main(["check", f"{tmp_path / 'my.py'}:near"]) == 0
    assert "all 7 checks passed" in capfd.readouterr().out
    assert main(["explain", f"{tmp_path / 'my.py'}:near"]) == 0
    assert main(["train", "translate", "--attention", f"{tmp_path / 'my.py'}:near", "--steps", "2", "--hidden", "4",
                 "--embed", "4", "--run", str(tmp_path / "run")]) == 0
