"""What moves in an attention page: its style and its script, as text. `page.py` makes the page.

One <section class="look"> is one picture. The script starts every section that it finds and knows it by no id, so that
several can stand in one document. What is shown is always in the document too: data-where (which map), data-view,
data-active ("row:3": whose weights), data-pinned, data-scale on the section; data-weight on tokens and lines.
"""
from .moves import MOVE

STYLE = """
.look { --tint: 0, 114, 178; --size: 18px; color: #222; background: #fff; font: 17px/1.4 system-ui, sans-serif; }
.look .controls, .look .choices { display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; align-items: center; }
.look .controls { margin: 0.3rem 0; } .look .choices:empty { display: none; }
.look select, .look .controls button { font: inherit; padding: 0.15rem 0.6rem; }
.look .controls button[aria-pressed=true] { background: #222; color: #fff; }
.look .what { margin: 0.2rem 0; white-space: pre-line; } .look .what b { font-size: 1.1em; }
.look .said { min-height: 2.8em; margin: 0.3rem 0 0.5rem; padding: 0.2rem 0.7rem; border-left: 4px solid #0072B2;
  background: #f5f5f2; }
.look .stage { display: flex; gap: 2rem; align-items: flex-start; }
.look[data-view=text] .stage { flex-direction: column; gap: 1rem; }
.look .pair { display: grid; grid-template-columns: auto 9rem auto; align-items: start; max-width: 100%; }
.look h3 { font-size: 15px; margin: 0 0 0.3rem; color: #555; font-weight: 600; }
.look .list { display: flex; flex-direction: column; gap: 2px; }
.look .pair .rows, .look .pair h3:first-child { text-align: right; align-items: flex-end; }
.look .pair .columns { align-items: flex-start; } .look .pair .rows .token { flex-direction: row-reverse; }
.look .token { font: inherit; font-size: var(--size); line-height: 1.25; border: 1px solid #ccc; border-radius: 4px;
  color: #222; background: #fff; padding: 0.08em 0.4em; display: inline-flex; gap: 0.6em; cursor: pointer;
  align-items: baseline; max-width: 30rem; text-align: inherit; print-color-adjust: exact; }
.look .token .word { unicode-bidi: isolate; overflow-wrap: anywhere; }
.look .token .number { font-size: 0.8em; font-variant-numeric: tabular-nums; min-width: 2.2em; }
.look .token.dark { color: #fff; } .look .token.gold { border: 2px dashed #D55E00; }
.look .token.active { outline: 3px solid #222; outline-offset: -1px; font-weight: 700; }
.look .token:focus-visible, .look canvas:focus-visible { outline: 3px solid #D55E00; outline-offset: 1px; }
.look .token[aria-pressed=true] .word::after { content: " \\25C6"; }
.look .link { stroke: rgb(var(--tint)); fill: none; } .look .pale .link { stroke: #777; }
.look .text .list { flex-direction: row; flex-wrap: wrap; gap: 0.45em 0.3em; }
.look .text .token { flex-direction: column; gap: 0; align-items: center; border-color: transparent; }
.look .text .token .number { min-width: 0; line-height: 1; }
.look .text .sentence { display: grid; grid-template-columns: 9.5rem 1fr; gap: 0.6rem; margin: 0 0 0.4rem; }
.look .share { font-size: 15px; white-space: nowrap; font-variant-numeric: tabular-nums; padding-top: 0.2em; }
.look .share i { display: block; height: 0.45em; background: #D55E00; print-color-adjust: exact; }
.look .matrix { position: relative; margin: 0; flex: none; } .look[data-view=lines] .matrix { position: sticky;
  top: 1rem; } .look .matrix canvas { image-rendering: pixelated; display: block;
  position: absolute; outline: 1px solid #999; cursor: crosshair; }
.look .matrix span { position: absolute; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.look .matrix .across { writing-mode: vertical-rl; transform: rotate(180deg); }
.look .matrix .mark { position: absolute; border: 2px solid #222; pointer-events: none; box-sizing: border-box; }
.look .matrix .mark.gold { border: 2px dashed #D55E00; } .look .matrix .on { font-weight: 700; color: #000; }
.look .table { overflow: auto; max-height: 32rem; } .look .table td, .look .table th { border: 1px solid #ddd;
  padding: 0.1rem 0.4rem; font-size: 15px; font-variant-numeric: tabular-nums; print-color-adjust: exact; }
.look .table thead th { position: sticky; top: 0; background: #fff; } .look .table caption { text-align: left; }
.look .legend { font-size: 15px; color: #555; margin: 0.6rem 0 0; }
.look .legend i { display: inline-block; width: 7rem; height: 0.8em; border: 1px solid #999; vertical-align: middle;
  background: linear-gradient(90deg, #fff, rgb(var(--tint))); print-color-adjust: exact; }
@media print { .look .controls { display: none; } .look .table { max-height: none; overflow: visible; } }
"""

_CHOICE = """
// Which map: data.maps have p, their place on data.axes (null: none there); r, c numbers of their lists of tokens.
const plural = (name) => name + (/(s|x|ch)$/.test(name) ? "es" : "s");
const spoken = (axis) => axis.replaceAll("_", " ");
const say = (axis, value) => typeof value === "number" ? `${spoken(axis)} ${value}` : value;

function matching(data, choice, upto) {
  return data.maps.filter((map) => choice.slice(0, upto).every(
    (value, a) => value === MEAN || value === ALL || map.p[a] === value));
}

function offers(data, choice, a) {                       // what axis a may be, as far as the axes before it are chosen
  const maps = matching(data, choice, a);
  const values = [...new Set(maps.map((map) => map.p[a]))].filter((value) => value !== null);
  const alike = maps.every((map) => map.c === maps[0].c && map.r === maps[0].r && !map.parts);
  const single = maps.every((map) => map.c === maps[0].c && data.tokens[map.r].length === 1 && !map.parts);
  const mixed = maps.some((map) => map.p[a] === null);
  const more = [];
  if (values.length > 1 && !mixed && single) more.push(ALL);
  if (values.length > 1 && !mixed && alike && data.means.includes(data.axes[a])) more.push(MEAN);
  return { values, more };
}

function settle(data, choice) {                          // keep what still exists, else take the first
  data.axes.forEach((axis, a) => {
    const { values, more } = offers(data, choice, a);
    if (choice[a] !== undefined && [...values, ...more].includes(choice[a])) return;
    const few = more.includes(ALL) && values.length <= 12 && values.length > 1;
    choice[a] = few ? ALL : values.length ? values[0] : null;
  });
}

function chosen(data, choice) {                          // the map that is shown: {rows, columns, w[row][column], ...}
  const maps = matching(data, choice, choice.length);
  const groups = new Map();
  for (const map of maps) {
    const key = map.p.map((value, a) => choice[a] === ALL ? say(data.axes[a], value) : "").filter(Boolean).join(", ");
    groups.set(key, [...(groups.get(key) || []), map]);
  }
  const first = maps[0], columns = data.tokens[first.c], rows = [], w = [], gold = [];
  for (const [key, some] of groups) {
    for (const [row, column] of some[0].g) gold.push([rows.length + row, column]);
    data.tokens[first.r].forEach((name, i) => {
      rows.push(key || name);
      w.push(columns.map((_, j) => some.reduce((sum, map) => sum + map.w[i * columns.length + j], 0)
        / some.length / data.unit));
    });
  }
  const where = data.axes.map((axis, a) => choice[a] === null || choice[a] === ALL ? "" : choice[a] === MEAN
    ? `mean of ${new Set(maps.map((map) => map.p[a])).size} ${plural(spoken(axis))}` : say(axis, choice[a]));
  const own = first.r === first.c && !choice.includes(ALL);
  const of = (j) => { let end = 0; return first.parts.find(([count]) => (end += count) > j)[1] * w[0][j]; };
  const heaviest = first.parts && columns.reduce((best, _, j) => of(j) > of(best) ? j : best, 0);
  return { heaviest, rows, columns, w, gold, own, parts: first.parts, title: first.t, sides: data.sides[first.s],
    where: where.filter(Boolean).join(", ") };
}
"""

_DRAW = """
function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

function tokenOf(side, index, name) {
  const token = make("button", "token");
  token.type = "button";
  token.tabIndex = index ? -1 : 0;
  Object.assign(token.dataset, { side, index });
  token.setAttribute("aria-pressed", "false");
  token.append(make("span", "word", name), make("span", "number"));
  return token;
}

function listOf(side, names, name) {
  const list = make("div", `list ${name}`);
  list.append(...names.map((one, index) => tokenOf(side, index, one)));
  return list;
}

function drawPair(at, now) {
  const pair = make("div", "pair"), lines = document.createElementNS(SVG, "svg");
  lines.setAttribute("class", "lines");
  lines.setAttribute("aria-hidden", "true");
  pair.append(make("h3", "", now.sides[0]), make("span"), make("h3", "", now.sides[1]),
    listOf("row", now.rows, "rows"), lines, listOf("column", now.columns, "columns"));
  at.append(pair);
}

function drawText(at, now) {
  const text = make("div", "text");
  at.append(text);
  if (!now.own && now.rows.length > 1) text.append(make("h3", "", now.sides[0]), listOf("row", now.rows, "rows"));
  text.append(make("h3", "", now.own ? "the word that is pointed at looks at the others" : now.parts
    ? "each word: its weight within its sentence; each bar: the weight of the sentence" : now.sides[1]));
  if (!now.parts) {
    text.append(listOf(now.own ? "row" : "column", now.columns, "columns"));
    return;
  }
  let end = 0;
  now.parts.forEach(([count, weight], i) => {
    const sentence = make("div", "sentence"), share = make("span", "share", `sentence ${i + 1}: ${weight.toFixed(2)}`);
    const bar = make("i"), list = make("div", "list columns");
    bar.style.width = `${100 * Math.min(1, Math.max(0, weight))}%`;
    share.dataset.weight = weight;
    share.append(bar);
    for (let j = end; j < end + count; j++) list.append(tokenOf("column", j, now.columns[j]));
    end += count;
    sentence.append(share, list);
    text.append(sentence);
  });
}

function drawTable(at, now) {
  const box = make("div", "table"), table = make("table"), head = table.createTHead().insertRow();
  const body = table.createTBody();
  table.createCaption().textContent = [now.title, now.where].filter(Boolean).join(": ");
  const names = now.parts ? ["sentence", "its weight", "word", "weight in its sentence"] : ["", ...now.columns];
  for (const name of names) head.append(Object.assign(make("th", "", name), { scope: "col" }));
  const number = (row, w) => {
    const cell = row.insertCell();
    cell.textContent = cell.dataset.weight = w.toFixed(4);
    cell.style.background = `rgba(var(--tint), ${Math.min(1, Math.max(0, w)) * 0.6})`;
  };
  if (now.parts) {
    let j = 0;
    now.parts.forEach(([count, weight], i) => {
      for (const end = j + count; j < end; j++) {
        const row = body.insertRow();
        row.insertCell().textContent = i + 1;
        number(row, weight);
        row.insertCell().textContent = now.columns[j];
        number(row, now.w[0][j]);
      }
    });
  } else now.rows.forEach((name, i) => {
    const row = body.insertRow();
    row.append(Object.assign(make("th", "", name), { scope: "row" }));
    now.w[i].forEach((w) => number(row, w));
  });
  box.tabIndex = 0;
  box.append(table);
  at.append(box);
}

function drawMatrix(at, now, room) {
  const T = now.rows.length, S = now.columns.length, figure = make("figure", "matrix");
  const longest = (names) => Math.min(150, 14 + 8.5 * Math.max(...names.map((name) => [...name].length)));
  let cell = Math.min(T > 11 ? 34 : 40, Math.floor(Math.min((room - 150) / S, 430 / T))), left = 0, top = 2;
  if (cell >= 13) [left, top] = [longest(now.rows), longest(now.columns)];
  else [cell, left] = [Math.max(2, Math.min((room - 4) / S, 520 / T)), 2];
  const canvas = make("canvas"), size = Math.min(15, cell);
  [canvas.width, canvas.height] = [S, T];
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${S * cell}px`, height: `${T * cell}px` });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `matrix of ${T} rows and ${S} columns; the table has its numbers`);
  Object.assign(figure.style, { width: `${left + S * cell + 2}px`, height: `${top + T * cell + 2}px` });
  if (left > 2) {
    const label = (name, index, side, style) => {
      const span = make("span", side === "column" ? "across" : "", name);
      Object.assign(span.dataset, { side, index });
      Object.assign(span.style, { fontSize: `${size}px`, lineHeight: `${cell}px`, ...style });
      span.setAttribute("aria-hidden", "true");
      figure.append(span);
    };
    now.rows.forEach((name, i) => label(name, i, "row", { right: `${S * cell + 8}px`, top: `${top + i * cell}px`,
      maxWidth: `${left - 6}px` }));
    now.columns.forEach((name, j) => label(name, j, "column", { left: `${left + j * cell}px`, width: `${cell}px`,
      bottom: `${T * cell + 8}px`, maxHeight: `${top - 6}px` }));
  }
  figure.append(canvas);
  for (const [i, j] of now.gold) figure.append(mark("mark gold", left + j * cell, top + i * cell, cell, cell));
  at.append(figure);
  Object.assign(now, { canvas, cell, left, top, figure });
}

function mark(name, x, y, width, height) {
  const box = make("div", name);
  Object.assign(box.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
  return box;
}

function paint(now, full) {                              // the matrix, from white (0) to blue (the full scale)
  const image = new ImageData(now.columns.length, now.rows.length);
  now.w.flat().forEach((w, n) => {
    const share = Math.min(1, Math.max(0, w / full));
    image.data.set([255 - 255 * share, 255 - 141 * share, 255 - 77 * share, 255], 4 * n);
  });
  now.canvas.getContext("2d").putImageData(image, 0, 0);
}

function link(svg, from, to, w, pale) {
  const box = svg.getBoundingClientRect(), a = from.getBoundingClientRect(), b = to.getBoundingClientRect();
  const path = document.createElementNS(SVG, "path"), y = (r) => r.top + r.height / 2 - box.top, width = box.width;
  path.setAttribute("d", `M0 ${y(a)} C${width / 2} ${y(a)} ${width / 2} ${y(b)} ${width} ${y(b)}`);
  path.setAttribute("class", "link");
  path.setAttribute("stroke-width", (0.6 + (pale ? 3 : 7) * Math.min(1, w)).toFixed(2));
  path.setAttribute("stroke-opacity", (pale ? 0.15 + 0.45 * Math.min(1, w) : 0.35 + 0.6 * Math.min(1, w)).toFixed(2));
  Object.assign(path.dataset, { row: from.dataset.index, column: to.dataset.index, weight: w.toFixed(4) });
  svg.append(path);
}
"""

SCRIPT = ('(() => {\n"use strict";\nconst MEAN = "*mean", ALL = "*all", SVG = "http://www.w3.org/2000/svg";\n'
          + _CHOICE + _DRAW + MOVE + "})();\n")
