"""The style and the script of the page that `frames` makes."""

STYLE = """
body { margin-top: 0.6rem; }
.controls { display: flex; flex-wrap: wrap; gap: 0.4rem; align-items: center; margin: 0.3rem 0; }
#slider { width: 14rem; padding: 0; vertical-align: middle; }
#look { max-width: 26rem; }
#said { font-size: 1.3rem; font-weight: 600; margin: 0.4rem 0 0; }
#title { margin: 0 0 0.3rem; min-height: 1.5em; }
#map { overflow: auto; }
#map table { border-collapse: separate; border-spacing: 1px; }
#map th { font-weight: normal; white-space: pre; padding: 0 0.4rem; line-height: 1.2; }
#map thead th { vertical-align: bottom; padding: 0.3rem 0; text-align: center; }
#map thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
#map thead th span.upright { writing-mode: horizontal-tb; transform: none; padding: 0 0.3rem; }
#map tbody th { text-align: right; vertical-align: middle; position: sticky; left: 0; background: var(--paper); }
#map td { padding: 0; text-align: center; vertical-align: middle; outline: 1px solid #ddd; outline-offset: -1px; }
#map td.at { outline: 3px solid var(--orange); outline-offset: -3px; }
#cell { margin: 0.2rem 0; min-height: 1.5em; }
#curve { margin: 0.2rem 0; }
@media print { #map td { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

SCRIPT = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let at = 0, look = 0, timer = null;

function blue(w) {                                  // white at 0 to dark blue at 1, through light blue
  const stops = [[255, 255, 255], [158, 202, 225], [33, 113, 181], [8, 48, 107]];
  const x = Math.min(1, Math.max(0, w)) * 3, i = Math.min(2, Math.floor(x));
  const mixed = stops[i].map((from, c) => Math.round(from + (x - i) * (stops[i + 1][c] - from)));
  return `rgb(${mixed.join(",")})`;
}

function element(parent, name, text, attributes = {}) {
  const made = parent.namespaceURI === SVG || name === "svg" ? document.createElementNS(SVG, name)
                                                             : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return parent.appendChild(made);
}

function cellSize(map) {
  const labels = Math.max(...map.rows.map((row) => row.length)) * 10 + 30;
  const wide = (Math.min(1210, document.documentElement.clientWidth - 60) - labels) / map.columns.length;
  const within = (size) => Math.round(Math.min(56, Math.max(20, size)));
  return [within(wide - 2), within(340 / map.rows.length - 1)];
}

function drawMap(map) {
  by("map").replaceChildren();
  by("title").textContent = map ? map.title : "";
  if (!map) { element(by("map"), "p", "There are no weights at this step that could be drawn."); return; }
  const [wide, high] = cellSize(map), table = element(by("map"), "table", null);
  const head = element(element(table, "thead", null), "tr", null), body = element(table, "tbody", null);
  element(head, "td", null, {style: "outline: none"});
  for (const name of map.columns) {
    const upright = map.turned && map.columns.every((one) => one.length < 8) ? {class: "upright"} : {};
    element(element(head, "th", null, {scope: "col"}), "span", name || "∅", upright);
  }
  map.weights.forEach((row, r) => {
    const line = element(body, "tr", null);
    element(line, "th", map.rows[r] || "∅", {scope: "row"});
    row.forEach((w, c) => {
      const cell = element(line, "td", wide >= 38 ? w.toFixed(2) : null);
      cell.dataset.w = w;
      cell.style.cssText = `background: ${blue(w)}; color: ${w > 0.45 ? "#fff" : "#222"}; ` +
                           `min-width: ${wide}px; height: ${high}px; font-size: ${Math.min(16, wide * 0.36)}px`;
      cell.addEventListener("mouseenter", () => point(cell, map, r, c));
    });
  });
}

function point(cell, map, r, c) {
  document.querySelectorAll("#map td.at").forEach((other) => other.classList.remove("at"));
  cell.classList.add("at");
  const row = `${map.rows[r]}, row ${r + 1}`, column = `${map.columns[c]}, column ${c + 1}`;
  const [from, to] = map.turned ? [column, row] : [row, column];
  by("cell").textContent = `${from}, looks at ${to}: weight ${map.weights[r][c]}`;
}

function drawCurve() {                              // the validation loss, with a mark at the step that is shown
  const known = data.losses;
  by("curve").replaceChildren();
  if (known.length < 2) return;
  const W = 760, H = 110, left = 60, top = 16, end = Math.max(known[known.length - 1][0], ...data.steps);
  const low = Math.min(...known.map((p) => p[1])), high = Math.max(...known.map((p) => p[1]));
  const x = (step) => left + (W - left - 40) * step / (end || 1);
  const y = (loss) => top + (H - top - 34) * (high - loss) / (high - low || 1);
  const svg = element(by("curve"), "svg", null, {viewBox: `0 0 ${W} ${H}`, width: W, role: "img",
                                                "aria-label": "validation loss by step"});
  element(svg, "polyline", null, {points: known.map(([s, l]) => `${x(s)},${y(l)}`).join(" "), fill: "none",
                                  stroke: "#0072B2", "stroke-width": 2});
  for (const [s, l] of known) element(svg, "circle", null, {cx: x(s), cy: y(l), r: 3, fill: "#0072B2"});
  const step = data.steps[at], found = known.find(([s]) => s === step);
  element(svg, "line", null, {x1: x(step), x2: x(step), y1: top - 8, y2: H - 28, stroke: "#D55E00",
                              "stroke-width": 2, "data-step": step});
  if (found) element(svg, "circle", null, {cx: x(step), cy: y(found[1]), r: 6, fill: "#D55E00"});
  const small = {"font-size": 14, fill: "#444"};
  element(svg, "text", high.toPrecision(3), {x: left - 8, y: y(high) + 5, "text-anchor": "end", ...small});
  element(svg, "text", low.toPrecision(3), {x: left - 8, y: y(low) + 5, "text-anchor": "end", ...small});
  element(svg, "text", "0", {x: x(0), y: H - 10, "text-anchor": "middle", ...small});
  element(svg, "text", `step ${end}`, {x: x(end), y: H - 10, "text-anchor": "middle", ...small});
  element(svg, "text", "validation loss", {x: (left + W) / 2, y: H - 10, "text-anchor": "middle", ...small});
}

function show(i) {
  at = Math.min(data.steps.length - 1, Math.max(0, i));
  by("slider").value = at;
  by("slider").setAttribute("aria-valuetext", data.said[at]);
  by("said").textContent = `${data.said[at]} (frame ${at + 1} of ${data.steps.length})`;
  by("map").dataset.step = data.steps[at];
  by("cell").textContent = "Point at a cell to read its weight.";
  drawMap(data.frames[at][look]);
  drawCurve();
  by("first").disabled = by("previous").disabled = at === 0;
  by("next").disabled = by("last").disabled = at === data.steps.length - 1;
}

function stop() {
  clearInterval(timer);
  timer = null;
  by("play").textContent = "▶ Play";
}

function play() {
  if (timer) { stop(); return; }
  if (at === data.steps.length - 1) show(0);
  by("play").textContent = "⏸ Pause";
  timer = setInterval(() => {
    show(at + 1);
    if (at === data.steps.length - 1) stop();
  }, 800);
}

const moves = {first: () => 0, previous: () => at - 1, next: () => at + 1, last: () => data.steps.length - 1};
const go = (name) => { stop(); show(moves[name]()); };
for (const name of Object.keys(moves)) by(name).addEventListener("click", () => go(name));
by("play").addEventListener("click", play);
by("slider").addEventListener("input", () => { stop(); show(Number(by("slider").value)); });
by("look").addEventListener("change", () => { look = Number(by("look").value); show(at); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
  const keys = {ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last"};
  if (event.key in keys) go(keys[event.key]);
  else if (event.key === " " && event.target.tagName !== "BUTTON") play();  // a button is pressed by it
  else return;
  event.preventDefault();
});
addEventListener("resize", () => show(at));

const nameOf = (map) => map.title || map.columns.slice(0, 8).join(" ");
const most = Math.max(...data.frames.map((looks) => looks.length));
for (let i = 0; i < most; i++) {
  const named = data.frames.map((looks) => looks[i]).filter(Boolean);
  if (named.length) element(by("look"), "option", `${i + 1}: ${nameOf(named[named.length - 1])}`, {value: i});
}
by("choice").hidden = by("look").options.length < 2;
look = Number(by("look").value);
show(0);
"""
