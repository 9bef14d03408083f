"""The second half of the script of an attention page: one picture, and how it answers to mouse and keyboard."""

MOVE = """
function start(root) {
  root.dataset.ready = "yes";
  const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
  const part = (name) => root.querySelector(`.${name}`);
  const choice = [], state = { active: null, pinned: null, cell: null, view: data.view, scale: data.scale };
  let now, lists;

  function fillSelects() {
    settle(data, choice);
    const box = part("choices");
    box.replaceChildren();
    data.axes.forEach((axis, a) => {
      const { values, more } = offers(data, choice, a), label = make("label", "", `${spoken(axis)} `);
      if (values.length < 2) return;
      const select = make("select");
      select.dataset.axis = axis;
      for (const value of [...values, ...more]) {
        const several = value === ALL ? `all ${values.length}, one row each`
          : `mean of ${values.length} ${plural(spoken(axis))}`;
        select.add(new Option(value === ALL || value === MEAN ? several : value, String(value), false,
          value === choice[a]));
      }
      select.onchange = () => {
        choice[a] = [...values, ...more][select.selectedIndex];
        fillSelects();
        draw();
        [...root.querySelectorAll("select")].find((one) => one.dataset.axis === axis)?.focus();
      };
      label.append(select);
      box.append(label);
    });
  }

  function draw() {
    now = chosen(data, choice);
    if (now.parts && state.view === "lines") state.view = "text";
    Object.assign(root.dataset, { view: state.view, where: now.where });
    const stage = part("stage"), n = state.view === "text" ? 0 : Math.max(now.rows.length, now.columns.length);
    const long = now.columns.length > 60;
    const sizes = long ? [[20, 16]] : [[8, 24], [11, 21], [14, 18], [20, 16]];
    root.style.setProperty("--size", `${(sizes.find(([most]) => n <= most) || [0, 13])[1]}px`);
    stage.replaceChildren();
    part("what").replaceChildren(make("b", "", now.where), now.where && now.title ? "   " : "", now.title);
    ({ lines: drawPair, text: drawText, table: drawTable })[state.view](stage, now);
    if (state.view !== "table" && now.rows.length > 1) {
      const beside = state.view === "text" ? 0 : stage.firstChild.offsetWidth + 40;
      drawMatrix(stage, now, Math.max(320, stage.clientWidth - beside));
    }
    const of = (side) => [...stage.querySelectorAll(`.token[data-side="${side}"]`)].sort(
      (a, b) => a.dataset.index - b.dataset.index);
    lists = { row: of("row"), column: of("column") };
    if (state.view === "text" && now.own) lists.column = lists.row;
    for (const button of root.querySelectorAll("[data-view]")) {
      if (button === root) continue;
      button.hidden = button.dataset.view === "lines" && Boolean(now.parts);
      button.setAttribute("aria-pressed", button.dataset.view === state.view);
    }
    const [side, index] = state.pinned || [];
    if (side && index >= (side === "row" ? now.rows : now.columns).length) state.pinned = null;
    rest();
  }

  function rest() {                                      // nothing is pointed at: the pinned token, or all at once
    if (state.pinned) return aim(...state.pinned);
    [state.active, state.cell] = [now.rows.length === 1 ? ["row", 0] : null, null];
    show();
  }

  function point(side, index, cell) {
    if (!state.pinned) aim(side, index, cell);
  }

  function aim(side, index, cell) {                      // a single row goes on being shown while a column is named
    const only = now.rows.length === 1 && side === "column";
    [state.active, state.cell] = only ? [["row", 0], index] : [[side, index], cell ?? null];
    show();
  }

  const weight = (side, index, other) => side === "row" ? now.w[index][other] : now.w[other][index];

  function show() {
    const [side, index] = state.active || [], other = side === "row" ? "column" : "row";
    const largest = Math.max(0, ...(side ? lists[other].map((_, n) => weight(side, index, n)) : now.w.flat()));
    const full = state.scale === "one" || !largest ? 1 : largest;
    for (const token of [...lists.row, ...lists.column]) {
      token.classList.remove("active", "dark", "gold");
      token.style.background = token.querySelector(".number").textContent = "";
      delete token.dataset.weight;
      token.setAttribute("aria-pressed", "false");
    }
    if (side) tint(side, index, other, full);
    for (const one of state.pinned ? [lists[state.pinned[0]][state.pinned[1]]] : []) {
      one?.setAttribute("aria-pressed", "true");
    }
    drawLines(side, index, other);
    if (now.figure) marked(side, index, full);
    const spell = (pair) => pair ? pair.join(":") : "";
    Object.assign(root.dataset, { active: spell(state.active), pinned: spell(state.pinned), scale: state.scale });
    part("said").textContent = words(side, index, other);
    part("scale").setAttribute("aria-pressed", state.scale === "largest");
    part("legend").lastChild.textContent = ` ${full === 1 ? "1" : full.toFixed(3)}`
      + (now.gold.length ? "   dashed frame: the right place to look (gold)" : "");
  }

  function tint(side, index, other, full) {
    const ws = lists[other].map((_, n) => weight(side, index, n));
    const least = state.view === "text" ? Math.max(0.01, [...ws].sort((a, b) => b - a)[11] || 0) : -Infinity;
    const golden = new Set(now.gold.filter(([i, j]) => (side === "row" ? i : j) === index).map(
      ([i, j]) => side === "row" ? j : i));
    lists[other].forEach((token, n) => {
      const share = Math.min(1, Math.max(0, ws[n] / full));
      token.style.background = `rgba(var(--tint), ${(0.9 * share).toFixed(3)})`;
      token.classList.toggle("dark", share > 0.6);
      token.classList.toggle("gold", golden.has(n));
      token.dataset.weight = ws[n].toFixed(4);
      token.querySelector(".number").textContent = ws[n] >= least ? ws[n].toFixed(2) : "";
    });
    lists[side][index]?.classList.add("active");
    if (state.cell !== null) lists.column[state.cell].classList.add("active");
  }

  function drawLines(side, index, other) {
    const svg = part("lines");
    if (!svg) return;
    const box = svg.parentElement.getBoundingClientRect(), high = box.bottom - svg.getBoundingClientRect().top;
    svg.replaceChildren();
    svg.setAttribute("width", "144");
    svg.setAttribute("height", Math.max(1, high));
    svg.classList.toggle("pale", !side);
    if (side) {
      lists[other].forEach((token, n) => {
        const w = weight(side, index, n), mine = lists[side][index];
        if (w >= 0.005) link(svg, ...(side === "row" ? [mine, token] : [token, mine]), w, false);
      });
      return;
    }
    const all = now.w.flatMap((row, i) => row.map((w, j) => [w, i, j])).filter(([w]) => w >= 0.1);
    for (const [w, i, j] of all.sort((a, b) => b[0] - a[0]).slice(0, 400)) {
      link(svg, lists.row[i], lists.column[j], w, true);
    }
  }

  function marked(side, index, full) {                   // the row or column in the matrix
    const { figure, cell, left, top, rows, columns } = now;
    paint(now, full);
    figure.querySelectorAll(".mark:not(.gold)").forEach((one) => one.remove());
    figure.querySelectorAll("span").forEach((one) => one.classList.toggle(
      "on", one.dataset.side === side && Number(one.dataset.index) === index));
    figure.dataset.row = side === "row" ? index : "";
    figure.dataset.column = side === "column" ? index : state.cell ?? "";
    if (side === "row") figure.append(mark("mark", left, top + index * cell, columns.length * cell, cell));
    if (side === "column") figure.append(mark("mark", left + index * cell, top, cell, rows.length * cell));
    if (state.cell !== null) figure.append(mark("mark", left + state.cell * cell, top + index * cell, cell, cell));
  }

  function ofDocument(index) {
    let end = 0;
    const i = now.parts.findIndex(([count]) => (end += count) > index);
    return `“${now.columns[index]}” (${index + 1}) has ${now.w[0][index].toFixed(3)} of sentence ${i + 1}, which has `
      + `${now.parts[i][1].toFixed(3)} of the document`;
  }

  function words(side, index, other) {
    if (state.view === "table") return "All numbers of this map; choose another view to point at tokens.";
    if (!side) return "Point at a token, or move to one with the keyboard: its weights are shown on the other side. "
      + "A click holds it, Escape lets go.";
    const names = { row: now.rows, column: now.columns };
    if (now.parts) return ofDocument(state.cell ?? now.heaviest);
    if (state.cell !== null) return `“${now.rows[index]}” (${index + 1}) to “${now.columns[state.cell]}” `
      + `(${state.cell + 1}): ${weight("row", index, state.cell).toFixed(4)}`;
    const best = names[other].map((name, n) => [weight(side, index, n), name, n]);
    best.sort((a, b) => b[0] - a[0] || a[2] - b[2]);
    const some = best.slice(0, 5).map(([w, name, n]) => `“${name}” (${n + 1}) ${w.toFixed(3)}`).join(", ");
    return `“${names[side][index]}” (${index + 1}) ${side === "row" ? "looks at" : "is looked at by"} ${some}`
      + (best.length > 5 ? `; ${best.length - 5} more` : "");
  }

  function hold(side, index) {                           // a click: pin, or let go of what is pinned
    const same = state.pinned && state.pinned[0] === side && state.pinned[1] === index;
    state.pinned = same ? null : [side, index];
    rest();
    if (same) point(side, index);
  }

  function move(token, key) {
    const side = token.dataset.side, list = lists[side], index = Number(token.dataset.index);
    let to = { Home: list[0], End: list[list.length - 1] }[key];
    const running = state.view === "text" ? { ArrowRight: 1, ArrowLeft: -1 } : {};
    const ahead = { ArrowDown: 1, ArrowUp: -1, ...running }[key];
    if (ahead) to = list[index + ahead];
    if (!ahead && !to && (key === "ArrowRight" || key === "ArrowLeft")) {
      const other = key === "ArrowRight" ? "column" : "row";
      if (other !== side) {
        const ws = lists[other].map((_, n) => weight(side, index, n));
        to = lists[other][ws.indexOf(Math.max(...ws))];
      }
    }
    if (!to) return;
    for (const one of lists[to.dataset.side]) one.tabIndex = one === to ? 0 : -1;
    to.focus();
  }

  const stage = part("stage"), at = (event) => event.target.closest?.(".token");
  const onToken = (event) => { const t = at(event); if (t) point(t.dataset.side, Number(t.dataset.index)); };
  const onCell = (event) => {
    const box = now.canvas.getBoundingClientRect(), clip = (x, n) => Math.min(n - 1, Math.max(0, Math.floor(x)));
    return [clip((event.clientY - box.top) / now.cell, now.rows.length),
      clip((event.clientX - box.left) / now.cell, now.columns.length)];
  };
  stage.addEventListener("mouseover", onToken);
  stage.addEventListener("focusin", onToken);
  stage.addEventListener("mouseleave", () => state.pinned || rest());
  stage.addEventListener("focusout", (event) => stage.contains(event.relatedTarget) || state.pinned || rest());
  stage.addEventListener("mousemove", (event) => {
    if (event.target.matches("canvas")) { const [i, j] = onCell(event); point("row", i, j); }
  });
  stage.addEventListener("click", (event) => {
    const t = at(event);
    if (t) hold(t.dataset.side, Number(t.dataset.index));
    else if (event.target.matches("canvas")) hold("row", onCell(event)[0]);
  });
  stage.addEventListener("keydown", (event) => {
    if (!at(event) || !/^(Arrow|Home|End)/.test(event.key)) return;
    event.preventDefault();
    move(at(event), event.key);
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") { state.pinned = null; rest(); } });
  for (const button of root.querySelectorAll("button[data-view]")) {
    button.onclick = () => { state.view = button.dataset.view; draw(); };
  }
  part("scale").onclick = () => { state.scale = state.scale === "one" ? "largest" : "one"; show(); };
  window.addEventListener("resize", () => show());
  fillSelects();
  draw();
}
document.querySelectorAll("section.look:not([data-ready])").forEach(start);
"""
