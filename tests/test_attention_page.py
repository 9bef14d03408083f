"""The page that answers to mouse and keyboard: what it shows is compared with the weights, in a real browser."""
import re

import numpy as np
import pytest

from tinyattn import Tensor
from tinyattn.attention import find
from tinyattn.autograd import capture
from tinyattn.errors import InputError
from tinyattn.models.sense import Options, Sense
from tinyattn.models.system import Look

pytest.importorskip("matplotlib")

from viz import attention_page  # noqa: E402
from viz.page import page  # noqa: E402

WORDS = ["<pad>", "bank", "</script>", "注意", "🙂", "bank", "", " ", '"\\N&<b>']


def soft(rng, *shape):
    x = np.exp(2 * rng.normal(size=shape))
    return x / x.sum(-1, keepdims=True)


def heads(rng, layers=2, count=3):
    return [Look(soft(rng, len(WORDS), len(WORDS)), WORDS, WORDS, "a sentence", ((1, 3),), {"layer": i, "head": j},
                 ("who looks", "at whom")) for i in range(1, layers + 1) for j in range(1, count + 1)]


def shown(tab, side):
    """The weights that the tokens of one side say they have."""
    found = tab.eval_on_selector_all(f'.token[data-side="{side}"]', "all => all.map(t => t.dataset.weight)")
    return [float(x) for x in found]


def state(tab):
    return tab.eval_on_selector(".look", "root => ({...root.dataset})")


def at(tab, side, index):
    return tab.locator(f'.token[data-side="{side}"][data-index="{index}"]')


@pytest.fixture
def heads_page(rng, tmp_path, opened):
    looks = heads(rng)
    attention_page(looks, tmp_path / "look.html", "Heads")
    return looks, opened(tmp_path / "look.html")


# ---------------------------------------------------------------------------------------------------------------------
# in the browser
# ---------------------------------------------------------------------------------------------------------------------
def test_a_token_that_is_pointed_at_shows_its_weights_on_the_other_side(heads_page):
    looks, tab = heads_page
    w = looks[0].weights
    assert state(tab)["where"] == "layer 1, head 1" and state(tab)["active"] == ""
    assert "Point at" in tab.inner_text(".said")
    at(tab, "row", 1).hover()
    np.testing.assert_allclose(shown(tab, "column"), w[1], atol=5.1e-5)
    assert state(tab)["active"] == "row:1" and "active" in at(tab, "row", 1).get_attribute("class")
    best = int(w[1].argmax())
    said = tab.inner_text(".said")
    assert said.startswith("“bank” (2) looks at ") and f"({best + 1}) {w[1, best]:.3f}" in said.split(",")[0]
    lines = tab.eval_on_selector_all(".lines path",
                                     "all => all.map(p => [p.dataset.row, p.dataset.column, p.dataset.weight])")
    assert {(row, int(column)) for row, column, _ in lines} == {("1", j) for j in np.flatnonzero(w[1] >= 0.005)}
    for _, column, weight in lines:
        assert float(weight) == pytest.approx(w[1, int(column)], abs=5.1e-5)
    number = at(tab, "column", best).locator(".number").inner_text()
    assert number == f"{w[1, best]:.2f}"
    assert "gold" in at(tab, "column", 3).get_attribute("class") and "gold" in tab.inner_text(".legend")
    at(tab, "column", 4).hover()
    np.testing.assert_allclose(shown(tab, "row"), w[:, 4], atol=5.1e-5)
    assert "is looked at by" in tab.inner_text(".said")
    tab.mouse.move(5, 5)
    assert state(tab)["active"] == ""


def test_every_token_stands_as_it_is(heads_page):
    _, tab = heads_page
    names = ["<pad>", "bank", "</script>", "注意", "🙂", "bank", "∅", "␣", '"\\N&<b>']
    for side in ("row", "column"):
        assert tab.locator(f'.token[data-side="{side}"] .word').all_text_contents() == names


def test_layers_heads_and_means_are_chosen(heads_page):
    looks, tab = heads_page
    assert tab.locator("select").evaluate_all("all => all.map(s => s.dataset.axis)") == ["layer", "head"]
    assert tab.locator("select[data-axis=head] option").all_text_contents() == ["1", "2", "3", "mean of 3 heads"]
    at(tab, "row", 5).click()                                              # stays while heads are compared
    tab.select_option("select[data-axis=head]", "3")
    assert state(tab)["where"] == "layer 1, head 3" and state(tab)["pinned"] == "row:5"
    np.testing.assert_allclose(shown(tab, "column"), looks[2].weights[5], atol=5.1e-5)
    tab.select_option("select[data-axis=layer]", "2")
    np.testing.assert_allclose(shown(tab, "column"), looks[5].weights[5], atol=5.1e-5)
    tab.select_option("select[data-axis=head]", label="mean of 3 heads")
    assert "layer 2, mean of 3 heads" in tab.inner_text(".what")
    np.testing.assert_allclose(shown(tab, "column"), np.mean([k.weights[5] for k in looks[3:]], 0), atol=1.1e-4)


def test_a_click_pins_and_escape_lets_go(heads_page):
    _, tab = heads_page
    at(tab, "row", 1).click()
    assert at(tab, "row", 1).get_attribute("aria-pressed") == "true" and state(tab)["pinned"] == "row:1"
    at(tab, "row", 4).hover()
    assert state(tab)["active"] == "row:1"
    at(tab, "column", 4).click()
    assert state(tab)["pinned"] == "column:4" and at(tab, "row", 1).get_attribute("aria-pressed") == "false"
    at(tab, "column", 4).click()
    assert state(tab)["pinned"] == "" and state(tab)["active"] == "column:4"
    at(tab, "row", 2).click()
    tab.keyboard.press("Escape")
    assert state(tab)["pinned"] == "" and tab.locator(".token[aria-pressed=true]").count() == 0


def test_it_works_without_a_mouse(heads_page):
    looks, tab = heads_page
    tab.focus("select[data-axis=head]")
    tab.keyboard.press("ArrowDown")
    assert state(tab)["where"] == "layer 1, head 2"
    assert tab.evaluate("document.activeElement.dataset.axis") == "head"
    w, focus = looks[1].weights, "document.activeElement.dataset.side + document.activeElement.dataset.index"
    assert tab.locator(".token[tabindex='0']").count() == 2                # a stop a list, arrows move within
    at(tab, "row", 0).focus()
    for key, place in (("ArrowDown", "row1"), ("ArrowDown", "row2"), ("ArrowUp", "row1"), ("End", "row8"),
                       ("Home", "row0"), ("ArrowUp", "row0"), ("ArrowRight", f"column{w[0].argmax()}")):
        tab.keyboard.press(key)
        assert tab.evaluate(focus) == place
    assert state(tab)["active"] == f"column:{w[0].argmax()}"
    tab.keyboard.press("Enter")
    assert state(tab)["pinned"] == f"column:{w[0].argmax()}"
    assert tab.locator(".token[tabindex='0']").count() == 2


def test_the_matrix_has_the_weights_as_colours_and_marks_what_is_pointed_at(heads_page):
    looks, tab = heads_page
    w, n = looks[0].weights, len(WORDS)
    blue = tab.evaluate("""() => { const c = document.querySelector(".matrix canvas");
        return [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data].filter((_, n) => n % 4 === 0); }""")
    np.testing.assert_allclose(np.reshape(blue, (n, n)), 255 - 255 * w, atol=1)
    at(tab, "row", 3).hover()
    box, canvas = (tab.locator(f".matrix {name}").bounding_box() for name in (".mark:not(.gold)", "canvas"))
    cell = canvas["height"] / n
    assert box["y"] == pytest.approx(canvas["y"] + 3 * cell, abs=1)
    assert box["width"] == pytest.approx(canvas["width"], abs=1)
    assert tab.get_attribute(".matrix", "data-row") == "3"
    tab.mouse.move(canvas["x"] + 2.5 * cell, canvas["y"] + 6.5 * cell)
    assert state(tab)["active"] == "row:6" and tab.get_attribute(".matrix", "data-column") == "2"
    assert tab.inner_text(".said") == f"“∅” (7) to “</script>” (3): {w[6, 2]:.4f}"
    labels = tab.locator(".matrix span[data-side=row]").all_text_contents()
    assert labels[:2] == ["<pad>", "bank"] and len(labels) == n


def test_views_and_scale(heads_page):
    looks, tab = heads_page
    w = looks[0].weights
    tab.click("button[data-view=text]")
    assert state(tab)["view"] == "text" and tab.locator(".lines").count() == 0
    assert tab.locator(".token").count() == len(WORDS)
    assert tab.get_attribute("button[data-view=text]", "aria-pressed") == "true"
    at(tab, "row", 2).hover()
    np.testing.assert_allclose(shown(tab, "row"), w[2], atol=5.1e-5)
    before = at(tab, "row", int(w[2].argmax())).evaluate("t => getComputedStyle(t).backgroundColor")
    tab.click("button.scale")
    at(tab, "row", 2).hover()
    after = at(tab, "row", int(w[2].argmax())).evaluate("t => getComputedStyle(t).backgroundColor")
    assert state(tab)["scale"] == "largest" and before != after and "0.9)" in after
    assert f"{w[2].max():.3f}" in tab.inner_text(".legend")
    tab.click("button[data-view=table]")
    cells = tab.locator(".table td").all_text_contents()
    np.testing.assert_allclose(np.reshape([float(c) for c in cells], w.shape), w, atol=5.1e-5)
    assert tab.locator(".table tbody th[scope=row]").all_text_contents()[2] == "</script>"
    assert tab.inner_text("caption") == "a sentence: layer 1, head 1"


def test_kinds_offer_only_what_they_have(rng, tmp_path, opened):
    looks = [Look(soft(rng, 2, 3), ["le", "chat"], ["the", "cat", "</s>"],
                  place={"kind": "cross", "layer": 1, "head": j}) for j in (1, 2)]
    looks += [Look(soft(rng, 3, 3), *[["the", "cat", "</s>"]] * 2, "", (), {"kind": "encoder", "layer": i, "head": 1})
              for i in (1, 2)]
    attention_page(looks, tmp_path / "kinds.html")
    tab = opened(tmp_path / "kinds.html")
    selects = lambda: tab.locator("select").evaluate_all("all => all.map(s => s.dataset.axis)")  # noqa: E731
    assert selects() == ["kind", "head"] and tab.locator(".token[data-side=row]").count() == 2
    tab.select_option("select[data-axis=kind]", "encoder")
    assert selects() == ["kind", "layer"] and state(tab)["where"] == "encoder, layer 1, head 1"
    tab.select_option("select[data-axis=layer]", "2")
    at(tab, "row", 0).hover()
    np.testing.assert_allclose(shown(tab, "column"), looks[3].weights[0], atol=5.1e-5)


def test_hops_stand_below_each_other_or_alone(rng, tmp_path, opened):
    story = ["sam takes the apple", "sam walks into the attic", "sam takes the apple"]
    looks = [Look(soft(rng, 1, 3), ["where is it?"], story, "where is it? attic", ((0, 1),), {"hop": i})
             for i in (1, 2, 3)]
    attention_page(looks, tmp_path / "hops.html")
    tab = opened(tmp_path / "hops.html")
    assert tab.locator(".token[data-side=row] .word").all_text_contents() == ["hop 1", "hop 2", "hop 3"]
    at(tab, "row", 2).hover()
    np.testing.assert_allclose(shown(tab, "column"), looks[2].weights[0], atol=5.1e-5)
    assert tab.locator("select option").all_text_contents() == ["1", "2", "3", "all 3, one row each"]  # no mean of hops
    tab.select_option("select", "2")
    np.testing.assert_allclose(shown(tab, "column"), looks[1].weights[0], atol=5.1e-5)  # the only row, unasked
    at(tab, "column", 1).hover()
    assert state(tab)["active"] == "row:0" and f"{looks[1].weights[0, 1]:.4f}" in tab.inner_text(".said")


def test_a_document_has_words_in_sentences_with_weights_of_their_own(rng, tmp_path, opened):
    w = np.concatenate([soft(rng, 3), soft(rng, 2)])[None]
    look = Look(w, ["document"], [*"abcde"], "sport (0.81)", parts=((3, 0.75), (2, 0.25)))
    attention_page([look], tmp_path / "document.html")
    tab = opened(tmp_path / "document.html")
    assert state(tab)["view"] == "text" and tab.is_hidden("button[data-view=lines]")
    assert tab.locator(".share").all_text_contents() == ["sentence 1: 0.75", "sentence 2: 0.25"]
    assert tab.locator(".sentence .list").evaluate_all("all => all.map(l => l.children.length)") == [3, 2]
    np.testing.assert_allclose(shown(tab, "column"), w[0], atol=5.1e-5)
    heaviest = max(range(5), key=lambda j: w[0, j] * (0.75 if j < 3 else 0.25))
    assert tab.inner_text(".said").startswith(f"“{'abcde'[heaviest]}” ({heaviest + 1}) has {w[0, heaviest]:.3f} of ")
    assert "within its sentence" in tab.inner_text(".text h3")
    at(tab, "column", 3).hover()
    assert tab.inner_text(".said") == f"“d” (4) has {w[0, 3]:.3f} of sentence 2, which has 0.250 of the document"
    np.testing.assert_allclose(shown(tab, "column"), w[0], atol=5.1e-5)    # the others stay
    tab.click("button[data-view=table]")
    last = tab.locator(".table tbody tr").nth(4).locator("td").all_text_contents()
    assert last == ["2", "0.2500", "e", f"{w[0, 4]:.4f}"]


def test_two_pictures_in_one_document_do_not_collide(rng, tmp_path, opened):
    first, second = attention_page(heads(rng)), attention_page(heads(rng, 1, 2))
    path = tmp_path / "two.html"
    path.write_text(page("Two", first.fragment() + second.fragment() + first.fragment("again")), encoding="utf-8")
    tab = opened(path)
    tab.locator(".look").nth(1).locator("select").select_option("2")
    tab.locator(".look").nth(1).locator('.token[data-side=row]').nth(2).click()
    states = tab.eval_on_selector_all(".look", "all => all.map(r => [r.dataset.where, r.dataset.pinned])")
    assert states == [["layer 1, head 1", ""], ["layer 1, head 2", "row:2"], ["layer 1, head 1", ""]]
    ids = re.findall(r'\sid="([^"]*)"', tab.content())
    assert len(ids) == len(set(ids)) == 3


def test_places_of_any_kind_can_be_chosen(rng, tmp_path, opened):
    looks = [Look(soft(rng, 2, 2), ["a", "b"], ["c", "d"], place={'a"] b\n<i>': np.int64(i), 7: 0.5 * i, "no": None})
             for i in (1, 2)]
    attention_page(looks, tmp_path / "odd.html")
    tab = opened(tmp_path / "odd.html")
    tab.locator("select").first.select_option("2")
    assert tab.evaluate("document.activeElement.tagName") == "SELECT" and "<i> 2, 1.0" in state(tab)["where"]
    at(tab, "row", 0).hover()
    np.testing.assert_allclose(shown(tab, "column"), looks[1].weights[0], atol=5.1e-5)


def test_long_texts_run_and_short_ones_stand_in_columns(rng):
    words = [f"w{i}" for i in range(30)]
    views = {n: attention_page([(soft(rng, 5, n), words[:5], words[:n])]).data["view"] for n in (24, 25)}
    assert views == {24: "lines", 25: "text"}


def test_without_javascript_the_page_says_what_to_do(rng, tmp_path, chromium):
    attention_page(heads(rng), tmp_path / "look.html")
    context = chromium.new_context(java_script_enabled=False, offline=True)
    try:
        tab = context.new_page()
        tab.goto((tmp_path / "look.html").as_uri())
        assert "tinyattn heatmap RUN -o look.svg" in tab.inner_text("noscript")
    finally:
        context.close()


def test_in_a_notebook_it_stands_in_a_frame(rng, tmp_path, opened):
    frame = attention_page(heads(rng), title="a <b>")._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f'<!DOCTYPE html><meta charset="utf-8"><style>button {{ display: none }}</style>{frame}{frame}')
    tab = opened(path)
    inside = tab.frames[2]
    inside.hover('.token[data-side=row][data-index="1"]')
    assert [f.eval_on_selector(".look", "r => r.dataset.active") for f in tab.frames[1:]] == ["", "row:1"]
    assert inside.inner_text("h1") == "a <b>"


def test_the_page_has_the_numbers_of_a_run(tmp_path, opened):
    one = Sense.build(Options(attention="multi_head", heads=2, width=8), Sense.load(Options(), (), 1))
    found = one.predict("I arrived at the *bank* after crossing the street .")
    attention_page(found, tmp_path / "run.html")
    tab = opened(tmp_path / "run.html")
    place = found.record["answers"][0]["at"]
    small = found.looks[0].weights                                         # the mean, then each head
    for head in (1, 2):
        tab.select_option("select[data-axis=head]", str(head))
        at(tab, "row", place).hover()
        np.testing.assert_allclose(shown(tab, "column"), small[head], atol=5.1e-5)


def test_a_capture_makes_a_page(rng, tmp_path, opened):
    variant = find("multi_head")
    given = {name: Tensor(x) if isinstance(x, np.ndarray) else x for name, x in variant.part("example")(rng).items()}
    with capture() as seen:
        variant(**given)
    w = seen["weights"][0].numpy()[0]                                      # (H, T, S)
    attention_page(seen, tmp_path / "capture.html", rows=[f"t{i}" for i in range(w.shape[1])])
    tab = opened(tmp_path / "capture.html")
    tab.select_option("select[data-axis=head]", "2")
    at(tab, "row", 1).hover()
    np.testing.assert_allclose(shown(tab, "column"), w[1, 1], atol=5.1e-5)
    assert tab.locator(".token[data-side=row] .word").first.inner_text() == "t0"


def test_a_large_page_is_small_enough_and_answers(rng, tmp_path, opened):
    words = [f"w{i}" for i in range(120)]
    looks = [Look(soft(rng, 120, 120), words, words, place={"layer": i, "head": j}) for i in range(6) for j in range(8)]
    attention_page(looks, tmp_path / "large.html", view="lines")
    assert (tmp_path / "large.html").stat().st_size < 3e6
    tab = opened(tmp_path / "large.html")
    tab.select_option("select[data-axis=head]", "7")
    at(tab, "row", 2).hover()
    np.testing.assert_allclose(shown(tab, "column"), looks[7].weights[2], atol=5.1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# without a browser
# ---------------------------------------------------------------------------------------------------------------------
def test_same_input_same_page(rng):
    looks = heads(rng)
    one = attention_page(looks)
    assert one.html() == attention_page(looks).html() and one.fragment() == attention_page(looks).fragment()
    text = one.html().partition('type="application/json"')[2].partition("</script>")[0]
    again = attention_page([Look([[1.0]], ["a"], ["b"], "\ud800")]).fragment()
    assert "look-" in again                                                # a title that is no text has a key too
    assert "\\u003c/script" in text and "http" not in text                 # a token cannot end the element it stands in
    assert attention_page(looks).data["unit"] == 10_000 and one.data["view"] == "lines"


@pytest.mark.parametrize(("looks", "says"), [
    ([], "expected at least one map"),
    ([([[1.0]], ["a"], ["b", "c"])], r"shape \(1 rows, 2 columns\).*got shape \(1, 1\)"),
    ([([[np.nan]], ["a"], ["b"], "head 1")], r"head 1: the weight of row 1 \(a\), column 1 \(b\) is nan"),
    ([(np.zeros((0, 2)), [], ["a", "b"])], "nothing to show"), ([([["x"]], ["a"], ["b"])], "expected numbers"),
    ([([[1.0]], ["a"], ["b"], "", ((0, 1),))], "gold pair is outside"),
    ([(np.zeros((1, 1001)), ["a"], ["b"] * 1001)], "at most 1,000 tokens"),
    ([(np.zeros((700, 700)), ["a"] * 700, ["b"] * 700)] * 3, "at most 1,200,000 weights, got 1,470,000 in 3 maps"),
    ([Look([[1.0]], ["d"], ["a"], parts=((2, 1.0),))], "fill one row of 1 words"),
    ([Look([[1.0, 0]], ["d"], ["a", "b"], parts=((-1, 0.5), (3, 0.5)))], "sentences of .number of words, weight"),
    ([Look([[1.0]], ["d"], ["a"], parts=((1, np.nan),))], "sentences of .number of words, weight"),
    ([([[1.0], [1.0, 2.0]], ["a", "b"], ["c"])], "expected a matrix of weights"), (3, "a list of maps, got int"),
    ([Look([[1.0]], None, ["a"])], "expected a matrix"), ([Look([[1.0]], ["d"], ["a"], gold=(1,))], "and pairs"),
    ([([[1e300]], ["a"], ["b"])], "at most 1,000,000, got 1e.300"), ([([[1.0]], ["a"])], "got 2 things")])
def test_refusals(looks, says, tmp_path):
    with pytest.raises(InputError, match=says) as error:
        attention_page(looks, tmp_path / "look.html")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_refusals_of_names_and_files(tmp_path):
    one = [([[1.0]], ["a"], ["b"])]
    for wrong, says in ((lambda: attention_page(one, tmp_path / "look.svg"), "ends in .html"),
                        (lambda: attention_page(one, tmp_path / "no" / "look.html"), "cannot write"),
                        (lambda: attention_page(one, view="cube"), "expected a view of lines, text, table"),
                        (lambda: attention_page(one, rows=["a"]), "name the maps of a `capture\\(\\)`")):
        with pytest.raises(InputError, match=says):
            wrong()
    two = attention_page(one * 2)                                          # no place tells them apart: a number does
    assert two.data["axes"] == ["map"] and [m["p"] for m in two.data["maps"]] == [[1], [2]]
