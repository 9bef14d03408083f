"""What runs looked at: each layer, head, hop and decoder step by itself, counted from 1; and `tinyattn heatmap`."""
import numpy as np
import pytest

from tinyattn import Tensor
from tinyattn.attention import find
from tinyattn.autograd import capture, scope
from tinyattn.cli import main
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.models.aspects import Aspects
from tinyattn.models.aspects import Options as AspectOptions
from tinyattn.models.classify import Classify
from tinyattn.models.classify import Options as ClassifyOptions
from tinyattn.models.qa import QA
from tinyattn.models.qa import Options as QAOptions
from tinyattn.models.sense import Options as SenseOptions
from tinyattn.models.sense import Sense
from tinyattn.models.system import Look, Prediction, apart, said
from tinyattn.models.translate import Options as TranslateOptions
from tinyattn.models.translate import Translate
from tinyattn.tasks.text import Vocabulary
from tinyattn.train import train

pytest.importorskip("matplotlib")

from viz import heatmap, hops, lines, tinted  # noqa: E402
from viz.attention.maps import averaged, choices, chosen, looks_of, offered, stacked, token  # noqa: E402

WORDS = Vocabulary.build([[*"abcdef"]], 100, 1)
SENTENCES = ["good food .", "the bad one ; good", "food ; bad"]


def translator(**options):
    sizes = {"heads": 2, "layers": 2} if options["decoder"] == "transformer" else {"embed": 8}
    return Translate(TranslateOptions(hidden=8, **sizes, **options), WORDS, WORDS)


def classifier(attention):
    words = Vocabulary.build([s.split() for s in SENTENCES], 100, 1)
    return Classify(ClassifyOptions(attention=attention, embed=6, hidden=4, align=4), words, ["bad", "good"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small runs on the disk: sense with heads, and classify with HAN."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    data = folder / "texts.tsv"
    data.write_text("".join(f"{label}\tThe {word} film . A {word} plot {'x' * i} .\n" for i in range(20)
                            for label, word in (("good", "superb"), ("bad", "awful"))))
    for name, kind, options, paths in (
            ("sense", Sense, SenseOptions(attention="multi_head", heads=2, width=8), ()),
            ("han", Classify, ClassifyOptions(embed=6, hidden=4, align=4), (str(data),)),
            ("none", Classify, ClassifyOptions(attention="none", embed=6, hidden=4), (str(data),))):
        system = kind.prepare(options, paths)
        train(system, Config.of(system, data=paths, steps=2, batch_size=8, validate_every=2), folder / name)
        found[name] = str(folder / name)
    return found


def close(weights, other):
    np.testing.assert_allclose(weights, other, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# what each system gives
# ---------------------------------------------------------------------------------------------------------------------
def test_of_a_transformer_every_head_of_every_kind():
    one = translator(decoder="transformer")
    found = one.predict("a b c")
    looks, end = found.finest, "</s>"
    assert choices(looks) == {"kind": ["cross", "encoder", "decoder"], "layer": [1, 2], "head": [1, 2]}
    kinds = {kind: chosen(looks, {"kind": kind, "layer": 2, "head": 1})[0] for kind in choices(looks)["kind"]}
    assert kinds["cross"].columns == kinds["encoder"].rows == kinds["encoder"].columns == ["a", "b", "c", end]
    assert kinds["cross"].rows == [*found.target, end] and kinds["decoder"].rows == ["<s>", *found.target]
    for look in looks:
        assert look.weights.shape == (len(look.rows), len(look.columns))
        close(look.weights.sum(1), 1)
        if look.place["kind"] == "decoder":
            close(np.triu(look.weights, 1), 0)                             # no word sees those after it
    given = one.tensors([type("P", (), {"source": ("a", "b", "c"), "target": tuple(found.target)})])[:3]
    with capture() as seen:
        one.model(*given)
    taps = [w.numpy()[0] for w in seen["weights"]]                         # two of the encoder, then self and cross
    close(kinds["encoder"].weights, taps[1][0])
    close(kinds["decoder"].weights, taps[4][0])
    close(kinds["cross"].weights, taps[5][0])
    mean, = averaged(chosen(looks, {"kind": "cross"}), ("head", "layer"))
    close(mean.weights, found.weights)
    assert mean.place == {"kind": "cross", "layer": "mean of 2 layers", "head": "mean of 2 heads"}
    assert found.looks[0].title == "mean of 4 heads"
    assert one.predict("a").record.keys() == {"source", "target", "weights"}


@pytest.mark.parametrize(("options", "place"), [
    ({"decoder": "bahdanau"}, {}), ({"decoder": "luong"}, {}), ({"decoder": "luong", "attention": "local_p"}, {}),
    ({"decoder": "luong", "attention": "memory"}, {}), ({"decoder": "luong", "reverse_source": True}, {})])
def test_of_a_recurrent_decoder_each_row_is_a_step(options, place):
    one = translator(**options)
    found = one.predict("a b")
    looks = found.finest
    assert looks[0].place == place and looks[0].rows == [*found.target, "</s>"]
    assert looks[0].columns == ["a", "b", "</s>"]
    close(looks[-1].weights, found.weights)                                # of hops, the last makes the alignment
    assert "step" in looks[0].sides[0]


def test_of_a_sense_each_head_and_of_disan_each_feature():
    corpus = Sense.load(SenseOptions(), (), 1)
    for attention, places in (("multi_head", {"head": [1, 2]}), ("pairwise", {}),
                              ("disan", {"direction": ["before", "after"], "feature": [1, 2, 3, 4]})):
        one = Sense.build(SenseOptions(attention=attention, heads=2, width=8), corpus)
        found = one.predict("I arrived at the *bank* after crossing the street .")
        looks = found.finest
        assert choices(looks) == places and looks[0].rows == looks[0].columns == found.record["words"]
        at = found.record["answers"][0]["at"]
        small = found.looks[0].weights if len(looks) == 1 else found.looks[0].weights[1:]
        rows = averaged(looks, ("feature",)) if attention == "disan" else looks
        close([look.weights[at] for look in rows], small)
        assert not any("0" in row for row in found.looks[0].rows)


def test_of_a_document_words_and_sentences():
    found = classifier("han").predict("Good food. The bad one; good! Food bad.")
    look, = found.finest
    assert look.columns == [word for row in found.record["rows"] for word in row] and look.place == {}
    words, sentences = (found.record["weights"][name] for name in ("words", "sentences"))
    close([weight for _, weight in look.parts], sentences)
    close(look.weights[0], np.concatenate([w[:n] for (n, _), w in zip(look.parts, words)]))
    assert [n for n, _ in look.parts] == [len(row) for row in found.record["rows"]]
    weights, rows, columns, title, gold = look.as_map()
    close(weights, found.looks[0].weights)
    assert rows == found.looks[0].rows and columns == found.looks[0].columns


def test_rows_of_attention_each_by_itself():
    found = classifier("structured_self").predict("good food bad")
    assert choices(found.finest) == {"row": [1, 2, 3, 4, 5]}
    close(stacked(found.finest).weights, found.record["weights"]["rows of A"])
    two = classifier("two_level").predict("good food. bad one.")
    assert choices(two.finest) == {"sentence_row": [1, 2, 3], "word_row": [1, 2, 3]}
    look, = chosen(two.finest, {"sentence_row": "2", "word_row": "3"})
    close([w for _, w in look.parts], two.record["weights"]["sentences"][1])
    close(look.weights[0, :look.parts[0][0]], two.record["weights"]["words"][0][2][:look.parts[0][0]])
    disan = classifier("disan").predict("good food bad")
    close(averaged(disan.finest, ("feature",))[0].weights, disan.record["weights"]["mean over features"])
    assert classifier("max").predict("good food").finest == []


@pytest.mark.parametrize("attention", ["memn2n", "dmn", "key_value"])
def test_of_a_story_each_hop(attention):
    options = QAOptions(attention=attention, hidden=6, hops=2)
    corpus = QA.load(QAOptions(tasks="1"), (), 1)
    found = QA.build(options, corpus).predict("Sam walks into the kitchen. Sam runs. Where is Sam?")
    assert [look.place for look in found.finest] == [{"hop": 1}, {"hop": 2}]
    close(stacked(found.finest).weights, found.record["hops"])
    assert found.finest[1].rows == ["where is sam?"] and stacked(found.finest).rows == ["hop 1", "hop 2"]


def test_of_coupled_attention_each_layer_and_side():
    one = Aspects(AspectOptions(hidden=6, embed=6), WORDS)
    found = one.predict("a b c")
    assert choices(found.finest) == {"layer": [1, 2], "side": ["aspect", "opinion"]}
    for look, row in zip(found.finest, found.record["weights"]):
        close(look.weights[0], row)


# ---------------------------------------------------------------------------------------------------------------------
# looks in general
# ---------------------------------------------------------------------------------------------------------------------
def many():
    return [Look(np.full((2, 3), i + 10.0 * j), ["a", "a"], ["x", "y", "<pad>"], "t", ((0, 1),),
                 {"kind": "cross", "layer": i, "head": j}) for i in (1, 2) for j in (1, 2, 3)]


def test_places_are_said_and_a_title_ends_with_them():
    assert said({"kind": "cross", "layer": 1, "word_row": 2}) == "cross, layer 1, word row 2" and said({}) == ""
    assert many()[0].as_map()[3] == "t\ncross, layer 1, head 1" and Look([[1]], ["a"], ["b"]).as_map()[3] == ""
    rows = apart(Look(np.eye(2), ["a", "b"], ["x", "y"], "t", ((1, 0),)), [{"hop": 1}, {"hop": 2}])
    assert rows[1].weights.tolist() == [[0, 1]] and rows[1].gold == ((0, 0),) and rows[0].gold == ()
    assert Prediction("", {}, rows).finest is rows


def test_choosing_and_means():
    found = chosen(many(), {"layer": "2", "head": 3})
    assert [look.place for look in found] == [{"kind": "cross", "layer": 2, "head": 3}]
    mean = averaged(many(), ("head",))
    assert [look.weights[0, 0] for look in mean] == [21, 22] and mean[1].place["head"] == "mean of 3 heads"
    assert offered(many()) == "kind cross; layer 1, 2; head 1, 2, 3"
    ragged = [*many(), Look(np.ones((1, 1)), ["a"], ["b"], place={"kind": "cross", "layer": 1, "head": 4})]
    for wrong, says in ((lambda: chosen(many(), {"hop": 1}), "cannot choose by hop; there is kind cross; layer 1, 2"),
                        (lambda: chosen(many(), {"head": 0}), "expected head to be one of 1, 2, 3, got 0"),
                        (lambda: chosen(many()[:4], {"layer": 2, "head": 3}), "no map of layer 2, head 3"),
                        (lambda: averaged(many(), ("feature",)), "no several features"),
                        (lambda: averaged(ragged, ("head",)), "unlike words"),
                        (lambda: stacked(many()), "one row each")):
        with pytest.raises(InputError, match=says):
            wrong()


def test_tokens_leave_a_trace():
    assert [token(t) for t in ("", " ", "  ", "<pad>", "a\nb", "\x00", "注意", "🙂", "$x$", "\\")] == [
        "∅", "␣", "␣␣", "<pad>", "a\\nb", "\ufffd", "注意", "🙂", "$x$", "\\"]


# ---------------------------------------------------------------------------------------------------------------------
# from a capture
# ---------------------------------------------------------------------------------------------------------------------
def test_a_capture_of_anything_becomes_looks(rng):
    attend, x, y = find("scaled_dot"), Tensor(rng.normal(size=(2, 3, 4))), Tensor(rng.normal(size=(2, 5, 4)))
    with capture() as seen:
        for layer in (0, 1):
            with scope(f"layer{layer}"):
                with scope("own"):
                    attend(x, x, x)
                with scope("cross"):
                    attend(x, y, y)
                    attend(x, y, y)
    looks = looks_of(seen, ["a", "a", "<pad>"], [*"vwxyz"], batch=1)
    places = [look.place for look in looks]
    assert places[0] == {"scope": "own/scaled_dot", "layer": 1} and places[3]["layer"] == 2
    assert places[1:3] == [{"scope": "cross/scaled_dot", "layer": 1, "call": n} for n in (1, 2)]
    assert looks[0].rows == looks[0].columns == ["a", "a", "<pad>"] and looks[1].columns == [*"vwxyz"]
    close(looks[4].weights, seen["weights"][4].numpy()[1])
    assert looks_of(seen)[1].rows == ["q1", "q2", "q3"] and looks_of(seen)[1].columns[4] == "k5"
    with pytest.raises(InputError, match="column name.* got 2 names; the maps are 3 x 3, 3 x 5"):
        looks_of(seen, ["a", "b", "c"], ["x", "y"])
    with pytest.raises(InputError, match="batch element from 0 to 1, got 2"):
        looks_of(seen, batch=2)
    with capture() as nothing:
        x @ y.transpose()
    with pytest.raises(InputError, match="nothing was tapped"):
        looks_of(nothing)


def test_gold_of_stacked_rows_stays_in_its_row():
    looks = [Look(np.eye(3)[i:i + 1], ["q"], ["a", "b", "c"], "", ((0, i),), {"hop": i + 1}) for i in range(3)]
    one = stacked(looks)
    assert one.gold == ((0, 0), (1, 1), (2, 2)) and one.rows == ["hop 1", "hop 2", "hop 3"]
    close(one.weights, np.eye(3))


@pytest.mark.parametrize(("numbers", "places"), [((0, 1), [1, 2]), ((1, 2), [1, 2]), ((3, 4), [3, 4])])
def test_scopes_that_count_from_0_are_counted_from_1_and_others_as_they_are(rng, numbers, places):
    with capture() as seen:
        for n in numbers:
            with scope(f"step {n}"):
                find("dot")(*(Tensor(rng.normal(size=(1, 1, 4))) for _ in "qkv"))
    assert [look.place["step"] for look in looks_of(seen)] == places


def test_heads_of_a_capture_are_counted_and_called_as_asked():
    variant = find("multi_head")
    given = {name: Tensor(x) if isinstance(x, np.ndarray) else x
             for name, x in variant.part("example")(np.random.default_rng(0)).items()}
    with capture() as seen:
        variant(**given)
    w = seen["weights"][0].numpy()                                         # (B, H, T, S)
    for inner in ("head", "expert"):
        looks = looks_of(seen, inner=inner)
        assert [look.place for look in looks] == [{inner: i + 1} for i in range(w.shape[1])]
        close([look.weights for look in looks], w[0])


# ---------------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------------
BANK = "I arrived at the *bank* after crossing the street ."


@pytest.mark.parametrize("arguments", [
    ["sense", BANK], ["sense", BANK, "--mean"], ["sense", BANK, "--head", "2"], ["sense", BANK, "--as", "lines"],
    ["sense", BANK, "--only", "head=1", "--as", "lines"], ["sense"], ["han", "a superb plot . the film ."], ["han"],
    ["han", "a superb plot . the film .", "--as", "map"]])
def test_drawings(runs, arguments, tmp_path, capsys):
    path = tmp_path / "look.svg"
    assert main(["heatmap", runs[arguments[0]], *arguments[1:], "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"<?xml") and capsys.readouterr().out == f"{path}\n"


@pytest.mark.parametrize("arguments", [["sense", BANK], ["sense", "-n", "2"], ["sense", BANK, "--mean"],
                                       ["han", "a superb plot . the film ."], ["han"]])
def test_pages(runs, arguments, tmp_path):
    path = tmp_path / "look.html"
    assert main(["heatmap", runs[arguments[0]], *arguments[1:], "-o", str(path)]) == 0
    first = path.read_bytes()
    assert main(["heatmap", runs[arguments[0]], *arguments[1:], "-o", str(path)]) == 0 and path.read_bytes() == first


@pytest.mark.parametrize(("arguments", "says"), [
    (["sense", BANK, "--head", "3"], "expected head to be one of 1, 2, got 3"),
    (["sense", BANK, "--layer", "1"], "cannot choose by layer; there is head 1, 2"),
    (["sense", BANK, "--only", "head"], "--only: expected NAME=N"),
    (["sense", BANK, "--only", "head=1", "--head", "2"], "head is asked to be 2 and 1"),
    (["sense", BANK, "--as", "hops"], "--as hops"), (["sense", BANK, "--as", "text"], "--as text: draws one map"),
    (["sense", BANK, "--as", "text", "--mean"], "this map has 10 rows"),
    (["sense", "--as", "lines", "-n", "2"], "draws one sample"), (["sense", BANK, "--head", "1", "--mean"], "--mean"),
    (["han", "A superb plot . The film .", "--as", "lines"], "weights within their sentences"),
    (["han", "A superb plot . The film .", "--as", "hops"], "--as hops: draws what each hop"),
    (["han", "a film", "--mean"], "--mean: there are no several heads"), (["none", "a film"], "no attention to draw")])
def test_refusals(runs, arguments, says, tmp_path, capsys):
    path = tmp_path / "look.svg"
    assert main(["heatmap", runs[arguments[0]], *arguments[1:], "-o", str(path)]) == 2
    error = capsys.readouterr().err.strip()
    assert says in error and "\n" not in error and not path.exists()
    assert main(["heatmap", runs["sense"], BANK, "--as", "map", "-o", str(tmp_path / "a.html")]) == 2
    capsys.readouterr()


def test_a_form_for_one_sample_draws_one(runs, tmp_path):
    assert main(["heatmap", runs["han"], "--as", "text", "-o", str(tmp_path / "a.svg")]) == 0
    assert main(["heatmap", runs["han"], "--as", "text", "-n", "1", "-o", str(tmp_path / "b.svg")]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert main(["heatmap", runs["sense"], "--as", "lines", "-o", str(tmp_path / "c.svg")]) == 0


def test_the_rest_of_the_weights_is_shown_where_a_look_says_where_it_is():
    look = Look(np.array([[0.1, 0.2], [0.5, 0.5]]), ["hop 1", "hop 2"], ["a", "b"], gold=((0, 1),), rest="empty slots")
    whole = look.with_rest()
    assert whole.columns == ["a", "b", "(empty slots)"] and whole.gold == look.gold and whole.rest == ""
    np.testing.assert_allclose(whole.weights[:, 2], [0.7, 0.0])
    assert Look(look.weights, look.rows, look.columns).with_rest().columns == ["a", "b"]
    assert Look(look.weights * 3, look.rows, look.columns, rest="x").with_rest().columns == ["a", "b"]  # no shares
    one, two = apart(look, [{"hop": 1}, {"hop": 2}])
    assert one.with_rest().columns[-1] == "(empty slots)" and stacked([one, two]).rest == "empty slots"
    said = [t.get_text() for t in hops(look.weights, look.columns, rest="empty slots").axes[0].texts]
    assert "sum; the rest lies on empty slots" in said and "0.30" in said


@pytest.mark.parametrize("draw", [
    lambda title: heatmap(np.eye(2), ["a", "b"], ["c", "d"], title), lambda title: hops(np.eye(2), ["a", "b"], title),
    lambda title: lines(np.eye(2), ["a", "b"], ["c", "d"], title), lambda title: tinted([(["a"], [1.0])], title)])
def test_a_file_in_the_place_of_the_title_is_refused(draw, tmp_path):
    for name in ("h.svg", str(tmp_path / "h.PNG"), "a b.pdf"):
        with pytest.raises(InputError, match="path="):
            draw(name)
    assert draw("of h.svg: head 1") and draw("")


def test_sentences_are_rows_of_a_map():
    from tinyattn.commands.looks import _map
    story = ["sam walks into the kitchen", "sam drops it"]
    weights, rows, columns, _, gold, _ = _map(Look(np.array([[0.9, 0.1]]), ["hop 1"], story, gold=((0, 1),)))
    assert rows == story and columns == ["hop 1"] and weights.shape == (2, 1) and gold == [(1, 0)]
    assert _map(Look(np.array([[0.9, 0.1]]), ["hop 1"], ["sam", "a_very_long_word_of_one"]))[1] == ["hop 1"]


def test_another_kind_of_file_is_refused_with_all_that_there_are(runs, tmp_path, capsys):
    assert main(["heatmap", runs["sense"], BANK, "-o", str(tmp_path / "a.gif")]) == 2
    assert "ends in .svg, .pdf, .png or .html, got 'a.gif'" in capsys.readouterr().err
