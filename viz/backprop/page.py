"""The page of `steps`: the slides, and what turns them."""
from html import escape

from ..page import embedded

STYLE = """
.tinyattn-steps { background: #fff; color: #222; font: 16px/1.4 system-ui, sans-serif; }
.tinyattn-steps > svg { display: block; width: 100%; max-height: calc(100vh - 92px); background: #fff; }
.tinyattn-steps .controls { display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: center; padding: 0.2rem 0.5rem; }
.tinyattn-steps .controls input[type=range] { flex: 1 1 8rem; min-width: 6rem; }
.tinyattn-steps button, .tinyattn-steps select { font: inherit; padding: 0.2rem 0.7rem; }
.tinyattn-steps .why { margin: 0.1rem 0.5rem; min-height: 1.4em; font-size: 15px; color: #555; }
.tinyattn-steps :focus-visible, .tinyattn-steps:focus-visible { outline: 3px solid #D55E00; outline-offset: 1px; }
.tinyattn-steps .said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media print { .tinyattn-steps .controls, .tinyattn-steps .why { display: none; } }
"""
PAGE_STYLE = ("body { max-width: none; margin: 0 auto; padding: 0; } h1 { display: none; } "
              "@page { size: landscape; margin: 1cm; }")

# Every section on the page is started once, and looks only for what it holds: no ids, no names outside the function.
SCRIPT = """
(() => {
  function start(root) {
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const find = name => root.querySelector("." + name);
    const svg = root.querySelector("svg");
    const [slider, play, speed, wrong] = ["place", "play", "speed", "wrong"].map(find);
    const whole = root.hasAttribute("data-page");  // a page of its own: keys anywhere, and a place in the address
    let at = 0, timer = null;
    const order = () => data.orders[wrong.checked ? "wrong" : "topological"];

    function show(number) {
      const frames = order().frames;
      at = Math.max(0, Math.min(frames.length - 1, number));
      svg.innerHTML = frames[at].map(i => data.groups[i]).join("");
      svg.setAttribute("aria-label", order().titles[at]);
      find("said").textContent = order().said[at];
      find("why").textContent = order().why;
      find("number").textContent = `${at + 1} / ${frames.length}`;
      slider.max = frames.length;
      slider.value = at + 1;
      find("first").disabled = find("previous").disabled = at === 0;
      find("last").disabled = find("next").disabled = at === frames.length - 1;
      root.dataset.frame = at + 1;
      root.dataset.order = wrong.checked ? "wrong" : "topological";
      if (whole) remember();
    }
    function remember() {  // browsers refuse it when a held key turns too many frames a second; the next one will do
      try {
        history.replaceState(null, "", "#" + (wrong.checked ? "wrong-" : "") + (at + 1));
      } catch {}
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "play";
      play.setAttribute("aria-pressed", "false");
    }
    function run() {
      timer = setInterval(() => {
        show(at + 1);
        if (at === order().frames.length - 1) stop();
      }, 1000 * speed.value);
      play.textContent = "pause";
      play.setAttribute("aria-pressed", "true");
    }
    function toggle() {
      if (timer !== null) return stop();
      if (at === order().frames.length - 1) show(0);
      run();
    }
    function go(number) { stop(); show(number); }
    function change() {  // the other order: the forward pass is the same; the backward pass is shown from its start
      const other = data.orders[wrong.checked ? "topological" : "wrong"];
      const ended = at === other.frames.length - 1;
      go(ended ? order().frames.length - 1 : Math.min(at, order().seed));
    }
    const moves = { first: () => go(0), previous: () => go(at - 1), next: () => go(at + 1), last: () => go(Infinity) };
    for (const name in moves) find(name).addEventListener("click", moves[name]);
    const keys = { ArrowRight: moves.next, PageDown: moves.next, ArrowDown: moves.next, ArrowLeft: moves.previous,
                   ArrowUp: moves.previous, PageUp: moves.previous, Home: moves.first, End: moves.last, " ": toggle };
    play.addEventListener("click", toggle);
    slider.addEventListener("input", () => go(slider.value - 1));
    speed.addEventListener("change", () => { if (timer !== null) { stop(); run(); } });
    wrong.addEventListener("change", change);
    (whole ? document : root).addEventListener("keydown", event => {
      const on = event.target;
      const own = on.tagName === "SELECT" || on.type === "range"  // these have keys of their own
        || event.key === " " && /BUTTON|INPUT/.test(on.tagName);
      if (own || event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    function follow() {
      const found = /^#(wrong-)?(\\d+)$/.exec(location.hash);
      if (!found) return false;
      wrong.checked = Boolean(found[1]);
      go(Number(found[2]) - 1);
      return true;
    }
    if (whole) window.addEventListener("hashchange", follow);
    if (!(whole && follow())) show(0);
  }
  for (const root of document.querySelectorAll(".tinyattn-steps:not([data-started])")) {
    root.setAttribute("data-started", "");
    start(root);
  }
})();
"""


def section(data, title, order, first, whole):
    """The HTML of one walk-through. data: groups and orders; first: the SVG of the first frame; whole: a page of it."""
    checked = " checked" if order == "wrong" else ""
    speeds = "".join(f'<option value="{s}"{" selected" if s == "2" else ""}>{s} s</option>'
                     for s in ("0.5", "1", "2", "4"))
    buttons = "".join(f'<button type="button" class="{name}">{name}</button>'
                      for name in ("first", "previous", "play", "next", "last"))
    numbers = embedded("steps", data).replace(' id="steps"', "", 1)
    page = " data-page" if whole else ""
    return (f'<section class="tinyattn-steps" tabindex="0" aria-label="{escape(title)}"{page}>\n'
            f'{first}\n<p class="said" aria-live="polite"></p>\n<div class="controls">{buttons}\n'
            '<input type="range" class="place" min="1" max="1" value="1" aria-label="frame">\n'
            '<span class="number"></span>\n'
            f'<label>each <select class="speed">{speeds}</select></label>\n'
            f'<label><input type="checkbox" class="wrong"{checked}> wrong order</label></div>\n<p class="why"></p>\n'
            '<noscript><p>Frame 1 alone: pages turn by JavaScript, which is switched off here. Frames that need none: '
            'tinyattn steps NAME -o all.pdf</p></noscript>\n'
            f"{numbers}\n</section>")
