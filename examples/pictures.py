"""Every kind of picture on one page, each drawn by the command that stands under it.

    python examples/pictures.py                 # trains ten small runs first; then open pictures/index.html
    python examples/pictures.py -o folder --steps 5     # the same from runs that have learnt nothing, quickly

Nothing here knows how a picture is made: the commands are those of the command line, word for word.
"""
import argparse
import html
import shlex
import sys
import time
from pathlib import Path

from tinyattn.cli import main as tinyattn
from viz.page import inline, page, write

RUNS = {  # folder: how it is trained
    "han": "classify --attention han",
    "han-2": "classify --attention han --seed 2",
    "han-3": "classify --attention han --seed 3",
    "none": "classify --attention none",
    "none-2": "classify --attention none --seed 2",
    "rows": "classify --attention structured_self",
    "stories": "qa --watch 1",
    "sense": "sense --attention multi_head",
    "translator": "translate",
    "transformer": "translate --decoder transformer",
}
BOY = '"the boy sees the red house ."'
BANK = '"I arrived at the *bank* after crossing the river ."'
DOCUMENT = '"Send the request to the server. Read the answer from the socket. Then close the connection."'
KINDS = (  # heading, [(command, caption)]
    ("Computation graphs", [
        ("graph attention:additive -o {}.svg", "A mechanism as it runs: fused ops are marked."),
        ("graph attention:additive --expand -o {}.svg", "The same with every fused op opened into its readable twin."),
        ("graph attention:additive --expand --backward -o {}.svg", "With the backward pass, derived from the rules."),
        ("graph attention:raw --expand --backward-only -o {}.svg", "The gradient's own graph, alone."),
        ("graph op:softmax --values --gradients -o {}.svg", "Values and gradients as tinted grids."),
        ("graph GRU --expand -o {}.svg", "A GRU: equal time steps lie on top of each other."),
        ("graph translate --expand --length 40 -o {}.svg", "A whole translator over 40 words, folded to fit a slide."),
        ("graph EncoderLayer --path x output -o {}.svg", "One path through a layer, strong; the rest is pale."),
        ("graph attention:raw --theme print --direction LR -o {}.svg", "For print, from left to right."),
        ("graph attention:raw --theme dark -o {}.svg", "For a dark room."),
        ("graph EncoderLayer -o {}.html", "A page to zoom, to follow paths in, to ask nodes what they hold."),
    ]),
    ("Backpropagation, step by step", [
        ("steps twice -o {}.html", "Each node, its local derivative, what comes in and what is added up; a switch "
         "shows what a wrong order gives."),
        ("steps attention -o {}.html", "An attention head over three words."),
        ("steps gru -o {}.html", "One step of a GRU."),
        ("steps two_layer -o {}.html", "A network of two layers."),
    ]),
    ("Equations", [
        ("equations attention:additive -o {}.html", "Both passes as formulas, made from the graph."),
    ]),
    ("Attention", [
        ("heatmap {translator} " + BOY + " --as map -o {}.svg", "Cross-attention: a row a word that was written."),
        ("heatmap {translator} " + BOY + " --as lines -o {}.svg", "The same as lines."),
        ("heatmap {sense} " + BANK + " -o {}.svg", "Self-attention, a map a head."),
        ("heatmap {transformer} " + BOY + " -o {}.html", "All layers and heads on a page: hover a "
         "word, choose a head."),
        ("heatmap {han} " + DOCUMENT + " --as text -o {}.svg", "A document, its words and sentences tinted by weight."),
        ("heatmap {stories} -n 1 --as hops -o {}.svg", "What each hop looked at in a story."),
        ("penalty {rows} " + DOCUMENT + " -o {}.svg", "The rows A of structured self-attention, and their overlaps."),
        ("panels scaled_dot -o {}.svg", "The four panels: scores, mask, masked scores, weights."),
        ("masks -o {}.svg", "Masks, True = may be attended to."),
        ("positions sinusoid -o {}.svg", "Position codes: sinusoids."),
        ("positions alibi -o {}.svg", "Position biases: ALiBi."),
    ]),
    ("Training", [
        ("curves {han} {han-2} {han-3} {none} {none-2} -o {}.svg", "Loss of several runs; runs that differ in the seed "
         "alone are one mean and band."),
        ("curves {han} --what layers -o {}.svg", "Norm of the gradient by layer."),
        ("frames {stories} -o {}.svg", "What was looked at while it was trained."),
        ("frames {stories} -o {}.html", "The same as a page that moves."),
        ("show {stories} -o {}.html", "All of a run on one page."),
        ("forget -o {}.svg", "How far back a state reaches."),
        ("growth --longest 1024 -o {}.svg", "Time and memory by the length of a sequence: recurrent layers and attention."),
    ]),
    ("Every mechanism", [
        ("gallery raw additive multi_head -o {}", "A page for each mechanism: formula, function, panels, graphs."),
    ]),
)
STYLE = """
section { margin: 2rem 0; } section > h2 { border-bottom: 2px solid var(--blue); }
figure { border: 1px solid var(--line); padding: 0.75rem; break-inside: avoid; }
figure svg { max-width: 100%; height: auto; max-height: 44rem; } figure code { display: block; margin-top: 0.4rem; }
"""


def run(line):
    """One command of the command line; anything but success ends this script."""
    code = tinyattn(shlex.split(line))
    if code != 0:
        sys.exit(f"tinyattn {line}: exit code {code}")


def train(folder, steps):
    """The runs, {name: folder}."""
    places = {}
    for name, how in RUNS.items():
        places[name] = folder / "runs" / name
        if not places[name].is_dir():
            run(f"train {how} --run {places[name]}" + (f" --steps {steps}" if steps else ""))
    return places


def draw(folder, places, steps=None):
    """[(heading, [(command as one would type it, caption, file, seconds)])]: every picture, in the folder."""
    drawn, number = [], 0
    for heading, kinds in KINDS:
        rows = []
        for command, caption in kinds:
            number += 1
            name = f"{number:02}-{command.split()[0]}"
            for run_name, place in places.items():
                command = command.replace(f"{{{run_name}}}", shlex.quote(str(place)))
            line = command.replace("{}", str(folder / name))
            if steps and command.startswith("forget"):
                line += f" --steps {steps}"
            begun = time.perf_counter()
            run(line)
            shown = command.replace("{}", name).replace(f"{folder}/", "")
            path = folder / shlex.split(command)[-1].replace("{}", name)
            rows.append((f"tinyattn {shown}", caption, path, time.perf_counter() - begun))
        drawn.append((heading, rows))
    return drawn


def as_page(folder, drawn):
    """The page: pictures in it, pages that move as links."""
    parts = ["<h1>Every kind of picture</h1><p>Each is drawn by the command under it. Pages that move are links.</p>"]
    for heading, rows in drawn:
        parts.append(f"<section><h2>{html.escape(heading)}</h2>")
        for command, caption, path, _ in rows:
            if path.suffix == ".svg":
                shown = inline(path.read_text(encoding="utf-8"), path.name)
            else:
                to = path / "index.html" if path.is_dir() else path
                shown = f'<a href="{to.relative_to(folder).as_posix()}">Open {html.escape(path.name)}</a>'
            parts.append(f"<figure>{shown}<figcaption>{html.escape(caption)}<code>{html.escape(command)}</code>"
                         "</figcaption></figure>")
        parts.append("</section>")
    return page("Every kind of picture: tinyattn", "\n".join(parts), STYLE)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", default="pictures", help="the folder [pictures]")
    parser.add_argument("--steps", type=int, help="train so few steps, to see that everything works")
    given = parser.parse_args(arguments)
    folder = Path(given.output)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw(folder, train(folder, given.steps), given.steps)
    for _, rows in drawn:
        for command, _, path, seconds in rows:
            print(f"{seconds:6.1f} s  {path.name:24}  {command}")
    print(write(folder / "index.html", as_page(folder, drawn), "pictures"))


if __name__ == "__main__":
    main()
