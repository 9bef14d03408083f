"""The page SPEED.md, and the table in README.md, made from what benchmarks left behind.

    for i in 1 2 3; do tinyattn bench --peers -o run$i.json; done        # on an idle machine
    tinyattn growth --json > growth.json
    python examples/startup.py -o start.json
    python examples/speed.py run1.json run2.json run3.json --growth growth.json --start start.json
    python examples/speed.py                                              # once more, from what is kept in speed/

What the page needs of the files is kept in speed/. No number on the page is typed by hand; a test holds that page, table
and files agree.
"""
import argparse
import json
import statistics
import sys
from collections import namedtuple
from pathlib import Path

from tinyattn.errors import InputError
from tinyattn.growth import Curve
from tinyattn.tables import markdown
from tinyattn.workloads import GROUPS
from tinyattn.workloads.row import OURS, PEERS
from viz import growth as draw_growth

HERE = Path(__file__).resolve().parent
KEPT, PAGE, README = HERE / "speed", HERE / "SPEED.md", HERE.parent / "README.md"
BEGIN, END = "<!-- speed: python examples/speed.py -->\n", "\n<!-- end of speed -->"
FACTS = ("date", "processor", "cores", "threads", "system", "python", "versions")
SAME = ("processor", "cores", "threads", "python", "versions")        # what the runs of one page must agree in
FIELDS = ("name", "sizes", "group", "ours", "peer", "ours_us", "peer_us", "ratio", "asked", "counts", "left_out", "error")
EXPECTED = {"rnn": (1, 1), "gru": (1, 1), "lstm": (1, 1), "attention": (2, 1), "attention-twin": (2, 2), "additive": (2, 2)}
TITLES = {"small": "Small operations", "recurrent": "Recurrent layers", "attention": "Attention", "layers": "Layers and losses",
          "optimiser": "Optimisers", "training": "Training steps"}
NOTHING = "`python examples/speed.py` makes the table that stands here from three runs of `tinyattn bench --peers`."
HOW = """Each row of `tinyattn bench --peers` is one workload, done by several libraries with the same numbers, in float32,
forward and backward unless it says otherwise. First all results are compared, gradients too. Then ours and one peer run in
turn, and each of them alone, all with the same number of threads. **Ratio** is the peer's time divided by ours, both in one
run: 2 means that we take half as long. It is the median of the runs, with the lowest and the highest; the times are those
of the run that is next to it. An absolute time says little about another machine.

~ marks a ratio that does not count: in that run the peer took another time alone than in turn, by more than 5 %. Median,
lowest and highest are of the runs that count, where one does. BELOW marks a median below what is asked. *Captured* is
`tinyattn.compile`; of a training step the better of ours is shown, captured or not."""
README_ROWS = [*((name, False) for name in ("additive scores", "feature-wise attention", "attention")), ("attention", True),
               *((name, False) for name in ("RNN layer", "GRU layer", "LSTM layer", "softmax", "layer norm", "cross-entropy",
                                            "embedding"))]  # (workload, causal?)


# ---------------------------------------------------------------------------------------------------------------------
# taking results in
# ---------------------------------------------------------------------------------------------------------------------
def read(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"speed: {path}: {error}") from None


def kept_of(run, path):
    """What is kept of one file of `bench --peers -o`: facts, and the fields of each result that are asked for here."""
    if isinstance(run, dict) and run.get("device", "cpu") != "cpu":
        raise InputError(f"speed: {path}: expected a run on the cpu, got one on {run['device']}; examples/card.py reports those")
    if not isinstance(run, dict) or not any(r.get("peer") for r in run.get("results", ())):
        raise InputError(f"speed: {path}: expected what `tinyattn bench --peers -o FILE.json` writes")
    results = [{k: short(r[k]) for k in FIELDS if r.get(k) is not None} for r in run["results"]]
    return {**{k: run[k] for k in FACTS}, "others": short(run["others"]), "results": results}


def short(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def take(runs, growth, start):
    """Put the files into speed/, in place of those that are there."""
    runs = [kept_of(read(path), path) for path in runs]
    check_same(runs)
    others = {name: read(path) for name, path in (("growth", growth), ("start", start)) if path}
    KEPT.mkdir(exist_ok=True)
    if runs:
        for old in KEPT.glob("run*.json"):
            old.unlink()
    for i, run in enumerate(runs, 1):
        lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in run["results"])
        head = json.dumps({k: v for k, v in run.items() if k != "results"}, indent=1, ensure_ascii=False)
        text = f'{head[:-2]},\n "results": [\n{lines}\n]}}\n'
        (KEPT / f"run{i}.json").write_text(text, encoding="utf-8")
    for name, document in others.items():
        (KEPT / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if growth:
        draw_growth([Curve(c["name"], c["lengths"], c["seconds"], c["bytes"]) for c in others["growth"]], KEPT / "growth.svg")


def check_same(runs):
    for key in SAME:
        if len({json.dumps(run[key], sort_keys=True) for run in runs}) > 1:
            raise InputError(f"speed: the runs differ in {key}: " + " and ".join(json.dumps(run[key]) for run in runs))


def kept():
    """(the runs, growth or None, start-up or None) of speed/."""
    runs = [read(path) for path in sorted(KEPT.glob("run*.json"))]
    growth, start = (read(path) if path.is_file() else None for path in (KEPT / "growth.json", KEPT / "start.json"))
    return runs, growth, start


# ---------------------------------------------------------------------------------------------------------------------
# one row over all runs
# ---------------------------------------------------------------------------------------------------------------------
class Line(namedtuple("Line", "name sizes group ours peer asked found")):
    """One workload, one of our sides and one peer; found: the results of the runs, None where a run has none."""

    @property
    def counts(self):
        """Does the result of any run count?"""
        return any(r["counts"] for r in self.found if r)

    @property
    def good(self):
        """The results that count; all if none does."""
        there = [r for r in self.found if r]
        return [r for r in there if r["counts"]] or there

    @property
    def ratio(self):
        return statistics.median(r["ratio"] for r in self.good)

    @property
    def middle(self):
        """The result whose ratio is next to the median."""
        return min(self.good, key=lambda r: abs(r["ratio"] - self.ratio))

    @property
    def shown(self):
        """"2.1 (1.9-2.2)"; one number where there is one run."""
        ratios, text = [r["ratio"] for r in self.good], number(self.ratio)
        text += f" ({number(min(ratios))}-{number(max(ratios))})" if len(ratios) > 1 else ""
        return text if self.counts else f"~{text}"

    @property
    def mark(self):
        marks = ["BELOW"] if self.asked and self.ratio < self.asked else []
        off = [str(i) for i, r in enumerate(self.found, 1) if r and not r["counts"]]
        return "; ".join(marks + ([f"disturbed: run {', '.join(off)}"] if off else []))


def number(x):
    return f"{x:.0f}" if x >= 99.5 else f"{x:.3g}" if x >= 9.95 else f"{x:.2f}"


def lines_of(runs):
    """{(name, sizes, our side, peer): Line} of what was measured, in the order of the first run that has it."""
    found = {}
    for i, run in enumerate(runs):
        for r in run["results"]:
            if r.get("peer") and "ratio" in r:
                key = r["name"], r["sizes"], r["ours"], r["peer"]
                line = found.setdefault(key, Line(*key[:2], r["group"], *key[2:], r.get("asked"), [None] * len(runs)))
                line.found[i] = r
    return found


def best_of(lines):
    """[Line], one for each workload and peer: that of our better side."""
    best = {}
    for line in lines.values():
        key = line.name, line.sizes, line.peer
        if key not in best or (line.counts, line.ratio) > (best[key].counts, best[key].ratio):
            best[key] = line
    return list(best.values())


# ---------------------------------------------------------------------------------------------------------------------
# the page
# ---------------------------------------------------------------------------------------------------------------------
def page():
    """The text of SPEED.md."""
    runs, growth, start = kept()
    if not runs:
        raise InputError("speed: there is nothing in speed/ yet; give the files of `tinyattn bench --peers -o FILE.json`")
    lines = lines_of(runs)
    best = best_of(lines)
    made = "Made by `python examples/speed.py` from the files in `examples/speed/`, which the commands at the end left."
    text = ["# How fast", "", made, "", *_machine(runs), "", HOW, "", _verdict(best), ""]
    for group in GROUPS:
        there = [line for line in best if line.group == group]
        if there:
            text += [f"## {TITLES.get(group, group)}", "", *markdown(_rows(there, len(runs))), ""]
            if group == "training":
                text += _captured(lines)
    text += [*_left_out(runs), *_growth(growth), *_start(start)]
    return "\n".join([*text, "## To repeat it", "", *_commands(len(runs))]) + "\n"


def _machine(runs):
    first, days = runs[0], sorted({run["date"][:10] for run in runs})
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    others = [run["others"] for run in runs if run["others"] is not None]
    lines = [f"- {first['processor']}, {first['cores']} cores, {first['threads']} threads for every side",
             f"- {first['system']}", f"- Python {first['python']}, {versions}",
             f"- {' and '.join(days)}, {len(runs)} run{'s' * (len(runs) > 1)}"]
    busy = [f"- other programs used {min(others):.0%} to {max(others):.0%} of the machine meanwhile"] if others else []
    return lines + busy


def _verdict(best):
    asked = [line for line in best if line.asked]
    below = [line for line in asked if line.ratio < line.asked]
    disturbed = sum(not line.counts for line in asked)
    text = f"Of {len(asked)} rows of which something is asked {len(asked) - len(below)} have it."
    text += f" Of {disturbed} of them no run counts." if disturbed else ""
    names = "; ".join(f"{line.name}, {line.sizes}, beside {PEERS[line.peer]}" for line in below)
    return text + (f" Below it: {names}." if below else "")


def _rows(lines, runs):
    rows = [["workload", "sizes", "peer", "asked", "ratio", *(f"run {i}" for i in range(1, runs + 1)), "ours", "peer's", ""]]
    for line in lines:
        each = ["-" if r is None else ("" if r["counts"] else "~") + number(r["ratio"]) for r in line.found]
        name = line.name + (" (captured)" if line.ours == "compiled" else "")
        rows.append([name, line.sizes, PEERS[line.peer], f"{line.asked:g}" if line.asked else "", line.shown, *each,
                     duration(line.middle["ours_us"]), duration(line.middle["peer_us"]), line.mark])
    return rows


def duration(us):
    for unit, size in (("s", 1e6), ("ms", 1e3), ("us", 1)):
        if us >= size or size == 1:
            return f"{us / size:.3g} {unit}"


def _captured(lines):
    """The table of training steps: our own two sides, and both beside the peers that are asked."""
    steps = {}
    for line in lines.values():
        if line.group == "training":
            steps.setdefault((line.name, line.sizes), {})[line.ours, line.peer] = line
    peers = [peer for peer in ("torch", "jax") if any(peer == p for sides in steps.values() for _, p in sides)]
    rows = [["training step", "eager", "captured", "gain",
             *(f"{side}, beside {PEERS[p]}" for p in peers for side in ("eager", "captured"))]]
    for (name, _), sides in steps.items():
        times = [_time_of(sides, side) for side in OURS]
        gain = number(times[0] / times[1]) if all(times) else "-"
        rows.append([name.removeprefix("training step: "), *(duration(t) if t else "-" for t in times), gain,
                     *(sides[side, p].shown if (side, p) in sides else "-" for p in peers for side in OURS)])
    about = ("A step is loss, gradients, clipping and Adam. *Eager* is our own step as it stands, *captured* the same through "
             "`tinyattn.compile`; their times are medians over all peers and runs, *gain* is their ratio.")
    return [about, "", *markdown(rows), ""]


def _time_of(sides, side):
    """The median time of one of our sides, beside all peers in all runs; None if there is none."""
    times = [r["ours_us"] for (ours, _), line in sides.items() if ours == side for r in line.good]
    return statistics.median(times) if times else None


def _left_out(runs):
    """What a peer could not do, and what it computed otherwise."""
    found = {}
    for run in runs:
        for r in run["results"]:
            if "left_out" in r or "error" in r:
                peer, why = PEERS.get(r["peer"], r["peer"]), r.get("error") or r["left_out"]
                found[f"- {r['name']}, {r['sizes']}: {peer}: {why}"] = None
    return ["## Left out", "", *found, ""] if found else []


def _growth(growth):
    if not growth:
        return []
    rows = [["one sequence, width 32", "time grows as", "memory grows as", "expected", "longest", "time", "memory"]]
    for c in growth:
        a, b = EXPECTED.get(c["name"], ("-", "-"))
        rows.append([c["name"], f"T^{c['time_grows_as']:.2f}", f"T^{c['memory_grows_as']:.2f}", f"T^{a}, T^{b}",
                     f"{c['lengths'][-1]:,}", duration(1e6 * c["seconds"][-1]), f"{c['bytes'][-1] / 2**20:,.1f} MB"])
    about = ("Forward and backward of `tinyattn growth`, on one thread. Memory is the peak beyond the inputs. *attention-twin* is "
             "attention by its readable twin, which holds the T x T weights. What *additive* gives is T x T too; what it never "
             "holds is T x T x D.")
    picture = ["![Time and memory by the length T](speed/growth.svg)", ""] if (KEPT / "growth.svg").is_file() else []
    return ["## Growth with the length T", "", about, "", *markdown(rows), "", *picture]


def _start(start):
    if not start:
        return []
    what = {"help": "`tinyattn --help`", "import": "`import tinyattn; tinyattn.Tensor`", "mlp": "first step, small perceptron"}
    rows = [["a fresh process", "cache of kernels", "asked", "seconds", ""]]
    for r in start["results"]:
        median = statistics.median(r["seconds"])
        name = what.get(r["what"], f"first step, `tinyattn train {r['what']}`")
        rows.append([name, r["cache"] or "", f"< {r['asked']:g}", f"{median:.2f}", "LATE" if median >= r["asked"] else ""])
    rounds = max(len(r["seconds"]) for r in start["results"])
    about = (f"Seconds from the start of a process to its end: the median of {rounds}, but once where the cache is empty and all "
             "must be compiled. In a system's first step its data are made, or read from the cache, too.")
    return ["## Start", "", about, "", *markdown(rows), ""]


def _commands(runs):
    files = [f"run{i}.json" for i in range(1, runs + 1)]
    return ["    pip install -e \".[peers]\"", *(f"    tinyattn bench --peers -o {file}" for file in files),
            "    tinyattn growth --json > growth.json", "    python examples/startup.py -o start.json",
            f"    python examples/speed.py {' '.join(files)} --growth growth.json --start start.json"]


# ---------------------------------------------------------------------------------------------------------------------
# the table of the README
# ---------------------------------------------------------------------------------------------------------------------
def readme_part():
    """What stands between the two marks in README.md."""
    runs, *_ = kept()
    if not runs:
        return NOTHING
    best = {(line.name, line.sizes, line.peer): line for line in best_of(lines_of(runs))}
    rows = [["workload", "sizes", "beside PyTorch", "asked", "beside JAX, jit", "asked"]]
    for name, causal in README_ROWS:
        rows += _summary(best, name, [s for n, s, p in best if (n, p) == (name, "torch") and ("causal" in s) == causal
                                      and "T,S,D = 32,1," not in s])
    for what in ("alone, forward + backward", "chain of 100, forward", "chain of 100, forward + backward"):
        there = [(n, s) for n, s, p in best if p == "torch" and n.startswith("small ") and s.endswith(what)]
        rows += _summary_of(best, f"{' / '.join(n.removeprefix('small ') for n, _ in there)} of (32, 64)", what, there)
    for n, s in [(n, s) for n, s, p in best if p == "torch" and n.startswith("training step")]:
        rows += _summary_of(best, n, s, [(n, s)])
    facts, many = runs[0], f"{len(runs)} run{'s' * (len(runs) > 1)}"
    head = (f"{facts['processor']}, {facts['threads']} threads, float32, forward and backward: the peer's time divided by ours, "
            f"both in one run; the\nmedian of {many}. A training step has clipping and Adam in it, and is "
            "captured where that is faster. Every row and run, growth\nand start-up: [examples/SPEED.md](examples/SPEED.md).")
    return "\n".join([head, "", *markdown(rows)])


def _summary(best, name, sizes):
    """One row for all sizes of a workload: "B,T,D = 32,32,64 / 64,64,256"."""
    if not sizes:
        return []
    causal = ", causal" if "causal" in sizes[0] else ""
    bare = [s.removesuffix(", causal") for s in sizes]
    head = bare[0].split(" = ")[0] + " = " if " = " in bare[0] else ""
    shown = head + " / ".join(s.removeprefix(head) for s in bare)
    return _summary_of(best, name + causal, shown, [(name, s) for s in sizes])


def _summary_of(best, title, sizes, keys):
    """One row: the ratios of several workloads, side by side."""
    if not keys:
        return []

    def side(peer, text):
        return _joined([text(best[*key, peer]) if (*key, peer) in best else "-" for key in keys])
    return [[title, sizes, *(side(peer, text) for peer in ("torch", "jax") for text in (ratio, asked_of))]]


def _joined(texts):
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def asked_of(line):
    return f"{line.asked:g}" if line.asked else "-"


def ratio(line):
    """The median; ~ where no run counts."""
    return ("" if line.counts else "~") + number(line.ratio)


def put_into_readme(path=None):
    path = path or README
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"speed: expected the two marks of the table in {path}")
    path.write_text(text.split(BEGIN)[0] + BEGIN + readme_part() + END + text.split(END)[1], encoding="utf-8")


def main(arguments=None):
    ask = argparse.ArgumentParser(prog="speed.py", description="Make SPEED.md and the README's table from benchmarks.")
    ask.add_argument("runs", nargs="*", metavar="RUN.json", help="files of `tinyattn bench --peers -o FILE.json`")
    ask.add_argument("--growth", metavar="FILE.json", help="what `tinyattn growth --json` printed")
    ask.add_argument("--start", metavar="FILE.json", help="what `python examples/startup.py -o FILE.json` wrote")
    asked = ask.parse_args(arguments)
    try:
        if asked.runs or asked.growth or asked.start:
            take(asked.runs, asked.growth, asked.start)
        text = page()
        PAGE.write_text(text, encoding="utf-8")
        put_into_readme()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
