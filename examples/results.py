"""The page RESULTS.md, made from what runs left behind: their metrics.json, and the comparison.json of `compare`.

    python examples/results.py                                          # results/*.json -> RESULTS.md
    python examples/results.py add NAME RUN "tinyattn train ..."        # take a run, or a comparison, into results/

Nothing on that page is typed by hand but the words between the tables. A test holds that page and files agree.
"""
import json
import sys
from pathlib import Path

from tinyattn import systems
from tinyattn.tables import layout, markdown, where

HERE = Path(__file__).parent
KEPT, PAGE = HERE / "results", HERE / "RESULTS.md"
PAPER = [0.0, 8.3, 40.3, 2.8, 13.1, 7.6, 17.3, 10.0, 13.2, 15.1, 0.9, 0.2, 0.4, 1.7, 0.0, 1.3, 51.0, 11.1, 82.8, 0.0]
SECTIONS = {  # what stands before each part of the page
    "built-in": "Each system on its built-in task, which needs no file, beside its baseline: the same system without "
                "attention, trained for the same *time* (`--baseline`), which may be many more steps. Luong's is to be "
                "compared with Bahdanau's baseline. One seed, two cores, float32; seconds are of training alone, with "
                "kernels that were compiled before.",
    "real": "On files that others made: English-French pairs of Tatoeba, questions about films of MetaQA. Film and "
            "product reviews, the stories of bAbI and WikiText-2 come below.",
    "lengths": "Translators against the same network without attention on 500 test sentences, by the number of source "
               "words: BLEU, and its difference with a 95 % interval by paired bootstrap (`evaluate --against`). "
               "BAHDANAU, LUONG and TRANSFORMER stand for the folders of the built-in runs above.",
    "steps": "Text classifiers of one width, 64: parameters without the word vectors, steps that wait for one another, "
             "steps between the first and the last word, milliseconds for forward and backward of 16 texts, two cores. "
             "The survey's reasons for self-attention: parallel steps and short paths hold; fewer parameters "
             "does not, at one width.",
    "compared": "Grids of attentions and seeds (`tinyattn compare`), all runs of a grid for the same number of *steps*. A "
                "difference is taken seed by seed; its interval is Student's, at 95 %. The mechanisms differ in "
                "parameters and time too, so a gain cannot be credited to attention alone (Hu 2018, section 5.1). "
                "Opinion terms of the product reviews are marked by a lexicon, so their F1 mostly says how much of the "
                "lexicon was seen. Settings were chosen on seeds 1 and 2.",
    "figures": """
- AER: alignment error rate of the largest weight of each target word, against gold links; *next step*: the same, read one step later (Luong 2015, footnote 14).
- F1 of spans: a term counts if both of its ends are right; F1 alone is the mean of aspects and opinions.
- gold MSE, KL, mass, top: attention against gold attention vectors, equal mass on what should be looked at (supporting sentences, the noun that counts, the terms): squared difference, divergence, weight on it, share of samples whose largest weight lies there (Liu 2017; Hu 2018, section 5.1).
- both of a pair: sentences come in pairs with the same words and swapped roles; right only if both are. Simple sentences have one cue. New nouns never stood beside that word in training.
- error: share of wrong answers in percent; failed tasks: tasks with more than 5 % (Weston 2015).
- hits@1: share of questions whose first answer is one of the right ones.""",
}


# ---------------------------------------------------------------------------------------------------------------------
# taking results in
# ---------------------------------------------------------------------------------------------------------------------
def add(name, folder, command):
    """Keep what a run, a comparison, or the JSON of `evaluate --against` says, as results/NAME.json."""
    folder = Path(folder)
    if folder.suffix == ".json":
        given = json.loads(folder.read_text(encoding="utf-8"))
        kind = "lengths" if "against" in given else "steps"
        kept = {"kind": kind, "command": command, **({"against": given["against"]} if kind == "lengths" else given)}
    elif (folder / "comparison.json").is_file():
        given = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
        kept = {"kind": "comparison", "command": command, "system": given["system"],
                "runs": len(given["runs"]), "seconds": round(sum(r["metrics"]["seconds"] for r in given["runs"]), 1),
                **{key: given[key] for key in ("figures", "baseline", "pick", "bound", "tables", "summary")}}
    else:
        twin = folder / "baseline" / "metrics.json"
        kept = {"kind": "run", "command": command, "metrics": _metrics(folder / "metrics.json"),
                "baseline": _metrics(twin) if twin.is_file() else None}
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _metrics(path):
    return json.loads(path.read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------------------------------------
# the page
# ---------------------------------------------------------------------------------------------------------------------
def page():
    """The text of RESULTS.md."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}
    lines = ["# What was measured", "", "Made by `python examples/results.py` from the files in `examples/results/`, "
             "which are the `metrics.json` and `comparison.json` of the runs named here.", ""]
    for title, key in (("Built-in tasks", "built-in"), ("Real files", "real")):
        runs = {name: run for name, run in kept.items() if run["kind"] == "run" and name.startswith(key)}
        lines += [f"## {title}", "", SECTIONS[key], "", *markdown(_runs(runs)), ""]
        lines += ["    " + run["command"] for run in runs.values()] + [""]
    lines += ["## With attention and without, by length", "", SECTIONS["lengths"], ""]
    for found in kept.values():
        if found["kind"] == "lengths":
            lines += [f"`{found['command']}`", "", *markdown(_lengths(found["against"])), ""]
    lines += ["## bAbI, 1,000 questions a task", "", *_babi(kept)]
    lines += ["## What the figures are", *SECTIONS["figures"].split("\n"), ""]
    lines += ["## Parameters, steps and paths", "", SECTIONS["steps"], ""]
    for found in kept.values():
        if found["kind"] == "steps":
            lines += [f"`{found['command']}`", "", *markdown(_steps(found)), ""]
    lines += ["## Compared over seeds", "", SECTIONS["compared"], ""]
    for name, found in kept.items():
        if found["kind"] == "comparison" and not name.startswith("babi"):
            lines += _comparison(name, found)
    return "\n".join(lines).rstrip() + "\n"


def _runs(runs):
    """Rows of texts: a run a row, beside its baseline."""
    rows = [["system", "attention", "parameters", "steps", "seconds", "test data", "test figures", "without attention"]]
    for run in runs.values():
        metrics, twin = run["metrics"], run["baseline"]
        system = systems.find(metrics["system"])
        rows.append([metrics["system"], _attention(metrics["options"]), f"{metrics['parameters']:,}",
                     f"{metrics['steps']:,}", f"{metrics['seconds']:.0f}",
                     f"{metrics['test'][system.counts]:,} {system.counts}", _figures(system, metrics["test"]),
                     "-" if twin is None else _figures(system, twin["test"])])
    return rows


def _attention(options):
    decoder = options.get("decoder")
    return options["attention"] if decoder in (None, "bahdanau") else f"{decoder}: {options['attention']}"


def _figures(system, test, most=3):
    shown = [(figure, test[key]) for key, figure in system.figures.items() if test.get(key) is not None]
    if [row[0] for row in test.get("by_task", ())] in (["kb"], ["window"], ["sentence"]):  # films: accuracy is hits@1
        return f"hits@1 {test['accuracy']:.4f}"
    return ", ".join(f"{figure.title} {value:.{figure.digits}f}" for figure, value in shown[:most])


def _lengths(rows):
    found = [["source words", "sentences", "BLEU", "without attention", "difference", "95 % interval"]]
    for label, count, ours, theirs, difference, low, high in rows:
        found.append([label, f"{count:,}", f"{ours:.1f}", f"{theirs:.1f}", f"{difference:+.1f}",
                      f"{low:+.1f} to {high:+.1f}" + (", not separable" if low <= 0 <= high else "")])
    return found


def _steps(found):
    """Rows of texts: a network a row, three columns a length of text."""
    titles = [f"{n} words: {what}" for n in found["lengths"] for what in ("in a row", "path", "ms")]
    rows = [["network", "parameters", *titles]]
    for name, (count, cells) in found["networks"].items():
        texts = [(f"{steps:,}", f"{path:,}", f"{ms:.1f}") for steps, path, ms in cells]
        rows.append([name, f"{count:,}", *(text for three in texts for text in three)])
    return rows


def _babi(kept):
    """The table of the twenty tasks: a column for each comparison whose name begins with babi, and the paper's."""
    found = {name.removeprefix("babi-"): c for name, c in kept.items() if name.startswith("babi")}
    errors = {}
    for comparison in found.values():
        for label in [row["attention"] for row in comparison["tables"][0]["rows"]]:
            how = f"best of {comparison['runs'] // len(PAPER)}" if comparison["pick"] else "one seed"
            column = f"{'LSTM' if label == 'none' else label}, {how}"
            errors[column] = {str(t["at"]["tasks"]): next(r["figures"]["error"]["mean"] for r in t["rows"]
                                                          if r["attention"] == label) for t in comparison["tables"]}
    rows = [["task", "paper's MemN2N", *errors]]
    for task, paper in enumerate(PAPER, 1):
        rows.append([str(task), f"{paper:.1f}", *(_percent(column.get(str(task))) for column in errors.values())])
    means = [sum(c.values()) / len(c) if len(c) == len(PAPER) else None for c in errors.values()]
    rows.append(["mean", f"{sum(PAPER) / len(PAPER):.1f}", *map(_percent, means)])
    lines = ["Test error in percent. The paper's column is its PE LS RN, 3 hops: of ten seeds the best by training "
             "error.", "", *markdown(rows), ""]
    for name, comparison in found.items():
        picked = ", the best of the seeds of each task by its training error" if comparison["pick"] else ""
        lines.append(f"- {name}: `{comparison['command']}`, {comparison['runs']} runs, "
                     f"{_minutes(comparison['seconds'])} of training{picked}")
    return [*lines, ""]


def _percent(value):
    return "-" if value is None else f"{value:.1f}"


def _minutes(seconds):
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def _comparison(name, found):
    lines = [f"### {name}", "", f"`{found['command']}`: {found['runs']} runs, {_minutes(found['seconds'])} of training "
             "in all.", ""]
    tables = [(where(t["at"]), t["rows"]) for t in found["tables"]]
    for title, rows in tables:
        lines += [*([f"{title}:", ""] if title else []), *markdown(layout(found, rows)), ""]
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["add"]:
        add(*sys.argv[2:5])
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
