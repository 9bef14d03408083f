"""A graph as a page to move about in: zoom, follow what a node needs and where it goes, ask what it holds.

    wheel, drag, + - 0 w        zoom, move, show all, fill the width; arrow keys move where no node has the focus. A
                                picture that would be tiny as a whole fills the width at first
    hover or focus              what the node is made of and what is made of it: both strong, the rest pale
    click, Enter                its formula, shapes, values beside the picture; Escape takes it away
    arrow keys on a node        up: to what it needs; down: to what uses it; left and right: the node before and after
"""
import json
from html import escape

import numpy as np

from ..page import embedded, page
from .fold import title
from .grids import cell_text, summary
from .labels import Labels, shape_text

SHOWN = 400  # numbers of a tensor that the page writes out

STYLE = """
body { max-width: none; margin: 0.5rem; font-size: 16px; }
.controls { display: flex; gap: 0.4rem; align-items: baseline; flex-wrap: wrap; }
main { display: flex; gap: 0.75rem; height: calc(100vh - 7rem); min-height: 20rem; }
h1 { font-size: 1.2rem; margin: 0; overflow-wrap: anywhere; } .controls { margin: 0.4rem 0; }
#picture { flex: 1; border: 1px solid var(--line); overflow: hidden; cursor: grab; min-width: 0; }
#picture svg { width: 100%; height: 100%; touch-action: none; }
#picture text { font-family: Helvetica, Arial, "Liberation Sans", sans-serif; }
aside { width: 17rem; overflow: auto; border: 1px solid var(--line); padding: 0 0.75rem; }
aside h2 { margin: 0.5rem 0; } aside table { font-size: 13px; margin-bottom: 0.5rem; }
aside table.numbers td { border: 1px solid var(--line); padding: 1px 5px; text-align: right; }
aside dt { color: var(--pale); font-size: 14px; } aside dd { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
.node { cursor: pointer; } .node:focus { outline: none; }
.asked .node, .asked .edge { opacity: 0.22; } .asked .on { opacity: 1; }
.asked .edge.on path { stroke-width: 2.5; } .node.here > title + * { stroke-width: 3.5; }
"""

SCRIPT = """
const nodes = JSON.parse(document.getElementById("nodes").textContent);
const edges = JSON.parse(document.getElementById("edges").textContent);
const svg = document.querySelector("#picture svg"), details = document.getElementById("details");
const said = document.getElementById("said");
const shapes = {}, lines = [], taken = new Set();
const whole = svg.viewBox.baseVal, start = [whole.x, whole.y, whole.width, whole.height];
let view = start.slice(), chosen = null;

// which drawn thing is which node or edge: Graphviz writes the names of DOT into titles
for (const group of svg.querySelectorAll(".node, .edge")) {
  const name = group.querySelector("title");
  if (group.classList.contains("edge")) {
    const n = edges.findIndex(([, , drawn], i) => drawn === name.textContent && !taken.has(i));
    if (n >= 0) { taken.add(n); lines.push([edges[n][0], edges[n][1], group]); }
    name.remove();
  } else {
    const n = Number(name.textContent.slice(1));
    shapes[n] = group;
    name.textContent = nodes[n].title;
    group.setAttribute("tabindex", 0);
    group.setAttribute("role", "button");
    group.setAttribute("aria-label", `${nodes[n].title}, ${nodes[n].kind}`);
    group.addEventListener("mouseenter", () => follow(n));
    group.addEventListener("mouseleave", () => follow(chosen));
    group.addEventListener("focus", () => { follow(n); bring(n); });
    group.addEventListener("blur", () => follow(chosen));
    group.addEventListener("click", () => { if (!moved) choose(n); });
    group.addEventListener("keydown", event => step(event, n));
  }
}

// all nodes that can be reached from n, along edges (from 0 to 1) or against them
function reached(n, from, to) {
  const found = new Set([n]), waiting = [n];
  while (waiting.length) {
    const here = waiting.pop();
    for (const edge of edges) if (edge[from] === here && !found.has(edge[to])) {
      found.add(edge[to]);
      waiting.push(edge[to]);
    }
  }
  return found;
}

function follow(n) {
  svg.classList.toggle("asked", n !== null);
  for (const group of svg.querySelectorAll(".on, .here")) group.classList.remove("on", "here");
  if (n === null) { said.textContent = ""; return; }
  const up = reached(n, 1, 0), down = reached(n, 0, 1);
  for (const m of [...up, ...down]) shapes[m].classList.add("on");
  for (const [source, target, group] of lines)
    if (up.has(source) && up.has(target) || down.has(source) && down.has(target)) group.classList.add("on");
  shapes[n].classList.add("here");
  said.textContent = `${nodes[n].title}: made of ${up.size - 1} nodes, used by ${down.size - 1}`;
}

function choose(n) {
  chosen = n;
  details.innerHTML = n === null ? details.dataset.empty : nodes[n].html;
  follow(n);
}

function step(event, n) {
  const near = { ArrowUp: edges.find(e => e[1] === n && e[0] !== n)?.[0],
                 ArrowDown: edges.find(e => e[0] === n && e[1] !== n)?.[1], ArrowLeft: n - 1, ArrowRight: n + 1 };
  if (event.key === "Enter" || event.key === " ") choose(n);
  else if (event.key in near) { if (shapes[near[event.key]]) shapes[near[event.key]].focus(); }
  else return;
  event.preventDefault();
  event.stopPropagation();
}

// moving about: the part of the picture that is seen is its viewBox
function show(next) { view = next; svg.setAttribute("viewBox", view.join(" ")); }
function zoom(factor, x = 0.5, y = 0.5) {
  const [left, top, width, height] = view;
  const w = Math.min(Math.max(width * factor, 40), start[2] * 4), h = height * w / width;
  show([left + (width - w) * x, top + (height - h) * y, w, h]);
}
function move(x, y) { show([view[0] + x * view[2], view[1] + y * view[3], view[2], view[3]]); }
function fill() {  // the width of the page, from the top of the picture; small pictures do not become huge
  const box = svg.getBoundingClientRect(), w = Math.max(start[2], box.width / 2), h = w * box.height / box.width;
  show([start[0] + (start[2] - w) / 2, start[1] + Math.min(0, (start[3] - h) / 2), w, h]);
}
function place(box) {  // of something on the screen, in units of the picture
  const turn = svg.getScreenCTM().inverse(), point = (x, y) => new DOMPoint(x, y).matrixTransform(turn);
  const a = point(box.left, box.top), b = point(box.right, box.bottom);
  return [a.x, a.y, b.x, b.y];
}
function bring(n) {  // a node that has the focus is moved into sight
  const [left, top, right, bottom] = place(shapes[n].getBoundingClientRect()), [x, y, w, h] = view;
  if (left < x || right > x + w || top < y || bottom > y + h)
    show([(left + right - w) / 2, (top + bottom - h) / 2, w, h]);
}

let held = null, moved = false;
svg.addEventListener("pointerdown", event => { held = [event.clientX, event.clientY]; moved = false; });
addEventListener("pointerup", () => { held = null; });
addEventListener("pointermove", event => {
  if (!held) return;
  const scale = svg.getScreenCTM().a, x = held[0] - event.clientX, y = held[1] - event.clientY;
  if (!moved && Math.hypot(x, y) < 4) return;
  moved = true;
  show([view[0] + x / scale, view[1] + y / scale, view[2], view[3]]);
  held = [event.clientX, event.clientY];
});
svg.addEventListener("wheel", event => {
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, x, y);
  event.preventDefault();
}, { passive: false });
const keys = { "+": () => zoom(1 / 1.3), "=": () => zoom(1 / 1.3), "-": () => zoom(1.3), "0": () => show(start.slice()),
               w: fill, Escape: () => choose(null), ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0),
               ArrowUp: () => move(0, -0.1), ArrowDown: () => move(0, 0.1) };
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys) || details.contains(event.target)) return;
  keys[event.key]();
  event.preventDefault();
});
for (const [id, key] of [["in", "+"], ["out", "-"], ["all", "0"], ["fill", "w"]])
  document.getElementById(id).onclick = keys[key];
document.getElementById("find").addEventListener("change", event => {
  const word = event.target.value.toLowerCase();
  const n = nodes.findIndex(node => word && node.title.toLowerCase().includes(word));
  if (n >= 0) { choose(n); bring(n); } else said.textContent = `no node is called ${event.target.value}`;
});
document.getElementById("find").addEventListener("keydown", event => event.stopPropagation());
details.dataset.empty = details.innerHTML;
const room = svg.getBoundingClientRect();
if (Math.min(room.width / start[2], room.height / start[3]) < 0.7) fill();  // letters would be smaller than 10 pixels
"""


def graph_page(graph, svg, name="Computation graph"):
    """The text of the page. svg: the picture of a Graph, with ids of its own."""
    details = _Details(graph)
    nodes = [details.of(node) for node in graph.drawing.nodes]
    body = f"""<h1>{escape(name)}</h1>
<p class="controls"><button id="in">zoom in (+)</button> <button id="out">zoom out (-)</button>
<button id="all">show all (0)</button> <button id="fill">fill the width (w)</button>
<label>find <input id="find" size="14"></label>
<span id="said" role="status" aria-live="polite" class="pale"></span></p>
<main><div id="picture">{svg}</div><aside id="details" aria-live="polite" tabindex="0"><h2>Nothing chosen</h2>
<p>{len(nodes)} nodes. Hover over a node to see what it is made of and what is made of it; click it (or Enter) to read
what it is. Wheel and drag, or + - 0 w and the arrow keys, move the picture.</p></aside></main>
{embedded("nodes", nodes)}{embedded("edges", _edges(graph))}"""
    return page(name, body, STYLE, SCRIPT)


def _edges(graph):
    """[source, target, title in the picture]; some edges of the backward pass are drawn from their end."""
    drawing = graph.drawing
    upward = any(n.kind in ("op", "scope") and not n.backward for n in drawing.nodes)
    found = []
    for e in drawing.edges:
        turned = upward and drawing.nodes[e.source].backward and drawing.nodes[e.target].backward \
            and not e.loop and not e.saved
        a, b = (e.target, e.source) if turned else (e.source, e.target)
        found.append([e.source, e.target, f"n{a}->n{b}"])
    return found


class _Details:
    """What the page tells of each node."""

    def __init__(self, graph):
        self.program, self.labels = graph.program, Labels(graph.program, graph.held)

    def of(self, node):
        label = self.labels.of(node)
        rows = [("", escape(line)) for line in label.lines]
        rows += [("box", escape(" / ".join(map(title, node.path))))] if node.path else []
        if node.kind == "op":
            rows += self.op(self.program.instructions[node.members[len(node.members) // 2]])
        elif node.kind != "scope":
            value = self.program.values[node.members[0]]
            rows += [("kind", node.kind), ("shape", shape_text(value.shape) or "()"), ("type", value.dtype),
                     ("name", escape(value.name))]
        if node.steps > 1:
            rows.append(("time steps", str(node.steps)))
        rows += [("", escape(word)) if array is None else (escape(word or "value"), _numbers(array))
                 for word, array in label.held]
        text = "".join(f"<dt>{name}</dt><dd>{says}</dd>" for name, says in rows if says)
        return {"title": label.title, "kind": "folded box" if node.kind == "scope" else node.kind,
                "html": f"<h2>{escape(label.title)}</h2><dl>{text}</dl>"}

    def op(self, step):
        settings = dict(step.attributes)
        values = self.program.values
        said = ", ".join(f"{k}={json.dumps(v)}" for k, v in settings.items())
        rows = [("settings", escape(said))] if settings else []
        if step.fused:
            rows.append(("fused", "its readable twin is drawn by --expand"))
        for names, ids, what in ((step.input_names, step.inputs, "in"), (step.outputs, step.outputs, "out")):
            for name, v in zip(names, ids, strict=False):
                if v is not None:
                    said = escape(values[v].name or (name if what == "in" else ""))
                    rows.append((what, f"{said} {shape_text(values[v].shape) or '()'} {values[v].dtype}".strip()))
        return rows


def _numbers(array):
    """An array as an HTML table, its last axis along a row; a large one as its range."""
    array = np.asarray(array)
    if array.size == 0 or array.size > SHOWN:
        return escape(summary(array))
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    return '<table class="numbers">' + "".join(
        "<tr>" + "".join(f"<td>{cell_text(x)}</td>" for x in row) + "</tr>" for row in rows) + "</table>"
