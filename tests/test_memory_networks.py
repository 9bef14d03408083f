"""What makes each memory network itself: `memn2n`, `dmn`, `dmn_plus`, `key_value`.

(That each equals its slow reference, with gradients to second order, is in test_attention.py.)
"""
import math

import numpy as np
import pytest
from test_memory import close, example, show

from tinyattn import InputError, Tensor, grad
from tinyattn.attention import find
from tinyattn.attention.key_value import NEAR, TITLE, WINDOW, hashed, merge, windows
from tinyattn.attention.memn2n import ages_of, noisy_ages, position_encoding
from tinyattn.gradcheck import check_function
from tinyattn.ops.broadcast import ShapeError

memory, memn2n, dmn, dmn_plus, key_value = map(find, ("memory", "memn2n", "dmn", "dmn_plus", "key_value"))


# ---------------------------------------------------------------------------------------------------------------------
# memn2n
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("J, D", [(1, 1), (3, 4), (7, 20)])
def test_the_codes_position_encoding_is_twice_the_papers_half_a_step_on(J, D):
    half = np.array([[(1 - (j - 0.5) / J) - (k - 0.5) / D * (1 - 2 * (j - 0.5) / J) for k in range(1, D + 1)]
                     for j in range(1, J + 1)])
    close(position_encoding(J, D, "code"), 2 * half)
    paper = [[(1 - j / J) - k / D * (1 - 2 * j / J) for k in range(1, D + 1)] for j in range(1, J + 1)]
    close(position_encoding(J, D), paper)


def test_rows_of_the_codes_encoding_average_1_and_those_of_the_paper_a_half():
    close(position_encoding(6, 20, "code").mean(1), np.ones(6))
    assert np.abs(position_encoding(6, 20).mean(1) - 0.5).max() < 0.03
    padded = position_encoding(2, 4, "paper", slots=5)
    close(padded[:2], position_encoding(2, 4))
    np.testing.assert_array_equal(padded[2:], 0)


def test_the_codes_time_is_a_word_in_the_last_slot(rng):
    a = example(memn2n)
    _, V, D = a["tables"].shape
    story, ages = a["story"].numpy(), ages_of(a["story"].numpy())
    words = np.concatenate([a["tables"].numpy(), a["times"].numpy()], 1)                   # (3, V + M, D)
    for w in words:
        w[0] = 0
    slots = np.concatenate([story, np.where((story != 0).any(-1), V + ages, 0)[..., None]], -1)  # (B, S, J + 1)
    share = position_encoding(slots.shape[-1], D, "code")
    u = (words[0][a["question"].numpy()] * share[:2]).sum(1)
    for hop in range(2):
        m, c = ((words[hop + n][slots] * share).sum(2) for n in (0, 1))
        p = np.exp((m @ u[..., None])[..., 0])
        u = u + ((p / p.sum(1, keepdims=True))[..., None] * c).sum(1)
    close(memn2n(**{**a, "mask": None}, encoding="code"), u)


def test_a_bag_of_words_is_blind_to_order():
    a = example(memn2n, mask=None)
    swapped = a["story"].numpy().copy()
    swapped[0, 0] = swapped[0, 0, ::-1]
    for encoding in ("bow", "paper", "code"):
        u, other = (memn2n(**{**a, "story": s}, encoding=encoding).numpy() for s in (a["story"], swapped))
        assert (np.abs(u[0] - other[0]).max() < 1e-12) == (encoding == "bow")
        close(u[1], other[1])


def test_adjacent_tying_shares_storage():
    a = example(memn2n)
    assert memn2n.shapes(L=3, V=7, D=5, M=4) == {"tables": (3, 7, 5), "times": (3, 4, 5)}  # 2 hops, 3 tables
    _, before = memn2n(**a, return_weights=True)
    other = a["tables"].numpy().copy()
    other[1] += 0.1  # C of hop 0 and A of hop 1 at once, B not
    out, after = memn2n(**{**a, "tables": Tensor(other)}, return_weights=True)
    close(before[:, 0], after[:, 0])
    assert np.abs(before.numpy() - after.numpy())[:, 1].max() > 1e-3
    separate = [Tensor(t, requires_grad=True) for t in a["tables"].numpy()]  # as a list, one Parameter each
    u = memn2n(**{**a, "tables": separate})
    close(u, memn2n(**a))
    assert all(g is not None for g in grad(u.sum(), separate))
    with pytest.raises(ShapeError, match="memn2n: .* 4 tables .* for 3 hops and adjacent tying, got .* 3 tables"):
        memn2n(**{**a, "hops": 3})


def layer_wise(a, h, hops):
    """By hand: tables A, C, B; every sentence as the paper has it."""
    def add_up(table, words):
        words = [w for w in words if w]
        return (table[words] * position_encoding(len(words), D)).sum(0) if words else np.zeros(D)

    tables, times, story, question = (a[n].numpy() for n in ("tables", "times", "story", "question"))
    ages, out, D = ages_of(story), [], len(h)
    for b in range(len(story)):
        m, c = np.array([[add_up(tables[n], s) + (times[n, age] if s.any() else 0)
                          for s, age in zip(story[b], ages[b], strict=True)] for n in (0, 1)])
        u = add_up(tables[2], question[b])
        for _ in range(hops):
            p = np.exp(m @ u)
            u = h @ u + p @ c / p.sum()
        out.append(u)
    return np.array(out)


def test_layer_wise_tying(rng):
    a = example(memn2n, mask=None, hops=4)
    a["times"], h = a["times"][:2], 0.5 * rng.normal(size=(5, 5))
    close(memn2n(**a, h=Tensor(h), tying="layer-wise"), layer_wise(a, h, 4))
    close(memn2n(**a, tying="layer-wise"), layer_wise(a, np.eye(5), 4))
    arrays = [a["tables"].numpy(), a["times"].numpy(), h]
    ids = a["story"], a["question"]
    show(check_function("layer-wise", lambda t, s, h: memn2n(*ids, t, s, h, tying="layer-wise"), arrays))


def test_empty_slots_take_their_share_unless_masked():
    a = example(memn2n)
    _, with_mask = memn2n(**a, return_weights=True)
    _, as_published = memn2n(**{**a, "mask": None}, return_weights=True)
    assert with_mask.shape == (2, 2, 4)
    np.testing.assert_array_equal(with_mask.numpy()[1, :, 3], 0)
    seen, empty = as_published.numpy()[1, :, :3], as_published.numpy()[1, :, 3]
    assert (empty > 0.01).all()
    close(seen[0] / seen[0].sum(), with_mask.numpy()[1, 0, :3])  # afterwards the two ask with other vectors
    story = a["story"].numpy().copy()
    story[1] = 0  # nothing but empty slots: scores 0, a mean of zeros
    _, weights = memn2n(**{**a, "mask": None, "story": story}, return_weights=True)
    close(weights.numpy()[1], np.full((2, 4), 0.25))


def test_the_row_of_nil_counts_nothing_and_learns_nothing():
    a = example(memn2n, mask=None)
    u = memn2n(**a)
    np.testing.assert_array_equal(grad(u.sum(), a["tables"])[0].numpy()[:, 0], 0)
    other = a["tables"].numpy().copy()
    other[:, 0] = 99
    close(memn2n(**{**a, "tables": Tensor(other)}), u)


def test_linear_start_drops_the_softmax_of_the_hops():
    a = example(memn2n, mask=None, hops=1)
    a["tables"], a["times"] = a["tables"][:2], a["times"][:2]
    a["story"] = np.array([[[1, 2, 3], [4, 5, 1], [1, 5, 6]]] * 2)  # three words a sentence, no empty slot
    t, s = a["tables"].numpy(), a["times"].numpy()
    m, c = ((t[n][a["story"][0]] * position_encoding(3, 5)).sum(1) + s[n][[2, 1, 0]] for n in (0, 1))
    u = (t[0][a["question"].numpy()[0]] * position_encoding(2, 5)).sum(0)
    out, p = memn2n(**a, softmax=False, return_weights=True)
    close(p.numpy()[0, 0], m @ u)
    close(out.numpy()[0], u + (m @ u) @ c)
    mask = np.array([True, False, True])[None, None].repeat(2, 0)
    _, p = memn2n(**{**a, "mask": mask}, softmax=False, return_weights=True)
    close(p.numpy()[0, 0], (m @ u) * [1, 0, 1])


def test_ages_and_noise():
    story = np.zeros((3, 25, 2), int)
    story[0, :25], story[1, :1], story[2, 3:7] = 1, 1, 1
    ages = ages_of(story)
    assert ages[0].tolist() == list(range(24, -1, -1))
    assert ages[1].tolist() == [0] * 25 and ages[2, 3:7].tolist() == [3, 2, 1, 0]
    greatest = set()
    for seed in range(40):
        noisy = noisy_ages(story, np.random.default_rng(seed), most=50)
        assert (np.diff(noisy[0]) < 0).all() and noisy[0].min() >= 0, "the order of the sentences stays"
        greatest.add(int(noisy[0].max()))
    assert max(greatest) == 24 + 3 and 24 in greatest  # up to ceil(10% of 25) blanks
    np.testing.assert_array_equal(noisy_ages(story, np.random.default_rng(0), 50, rate=0), ages)
    assert noisy_ages(story, np.random.default_rng(1), most=10).max() == 9


def test_noise_moves_the_ages_and_nothing_else():
    a = example(memn2n)
    given = np.array([[3, 2, 1, 0], [2, 1, 0, 0]])
    close(memn2n(**a, ages=given), memn2n(**a))
    given[0] = [3, 3, 2, 0]
    assert np.abs(memn2n(**a, ages=given).numpy() - memn2n(**a).numpy()).max() > 1e-3
    a["times"] = a["times"] * 0
    close(memn2n(**a, ages=given), memn2n(**a))


def test_memn2n_at_its_edges():
    a = example(memn2n, mask=None)
    one = memn2n(**{**a, "story": a["story"].numpy()[:1, :1, :1], "question": a["question"].numpy()[:1, :1]})
    assert one.shape == (1, 5)
    for shape in [(0, 4, 3), (2, 0, 3)]:
        for encoding in ("paper", "code", "bow"):
            assert memn2n(**{**a, "story": np.zeros(shape, int), "question": a["question"].numpy()[:shape[0]]},
                          encoding=encoding).shape == (shape[0], 5)
    for bad, error, message in [({"tying": "none"}, InputError, "memn2n: expected tying"),
                                ({"hops": 0}, ValueError, "memn2n: expected hops of at least 1"),
                                ({"story": np.ones((2, 3))}, ShapeError, "memn2n: expected story of integers"),
                                ({"story": np.ones((2, 4, 0), int)}, ShapeError, "memn2n: expected story"),
                                ({"story": np.full((2, 4, 3), 7)}, IndexError, "embedding: id 7"),
                                ({"ages": np.full((2, 4), 4)}, IndexError, "embedding: id 4")]:
        with pytest.raises(error, match=message):
            memn2n(**{**a, **bad})


# ---------------------------------------------------------------------------------------------------------------------
# dmn, dmn_plus
# ---------------------------------------------------------------------------------------------------------------------
def gates_at(a, score):
    """The same with every gate's score at a value."""
    return {**a, "w_2": a["w_2"] * 0, "b_2": Tensor(np.array(float(score)))}


def torch_gru(torch, a, prefix, x, h):
    """PyTorch's GRU over x (B, S, D) with the weights of one of our nets; (B, D)."""
    net = torch.nn.GRU(x.shape[2], h.shape[1], batch_first=True).double()
    with torch.no_grad():
        for name, own in [("weight_ih_l0", "ih"), ("weight_hh_l0", "hh"), ("bias_ih_l0", "b")]:
            getattr(net, name).copy_(torch.tensor(a[f"{prefix}_{own}"].numpy()))
        net.bias_hh_l0.zero_()
        return net(torch.tensor(x), torch.tensor(h)[None])[1][0].numpy()


def upside_down(a):
    """The same nets in the convention "write": sigmoid(-x) = 1 - sigmoid(x), so the weights of z change their sign."""
    sign = Tensor(np.repeat([1.0, -1.0, 1.0], a["e_hh"].shape[1]))
    return {n: x * (sign if x.ndim == 1 else sign[:, None]) if n[:2] in ("e_", "m_") else x for n, x in a.items()}


@pytest.mark.parametrize("update", ["keep", "write"])
def test_dmn_with_open_gates_is_a_plain_gru(update):
    torch = pytest.importorskip("torch")
    a = gates_at(example(dmn, mask=None, hops=1), 1000)
    facts, q = a["facts"].numpy(), a["question"].numpy()
    wanted = torch_gru(torch, a, "m", torch_gru(torch, a, "e", facts, q * 0)[:, None], q)
    close(dmn(**(a if update == "keep" else upside_down(a)), update=update), wanted)
    wrong = dmn(**a, update="write") if update == "keep" else dmn(**upside_down(a), update="keep")
    assert np.abs(wrong.numpy() - wanted).max() > 0.01


def test_dmn_with_closed_gates_keeps_its_state():
    torch = pytest.importorskip("torch")
    a = gates_at(example(dmn, mask=None, hops=1), -1000)
    q = a["question"].numpy()
    out = dmn(**a)
    close(out, torch_gru(torch, a, "m", np.zeros((2, 1, 3)), q))  # an episode of 0
    np.testing.assert_array_equal(grad(out.sum(), a["facts"])[0].numpy(), 0)


def test_gates_are_not_shared_out():
    a = example(dmn)
    _, g = dmn(**a, return_weights=True)
    assert g.shape == (2, 2, 4) and (np.abs(g.numpy().sum(-1) - 1) > 0.01).all()
    _, g = dmn(**gates_at(a, 2.0), return_weights=True)
    close(g.numpy()[0], np.full((2, 4), 1 / (1 + math.exp(-2))))


@pytest.mark.parametrize("variant", [dmn, dmn_plus])
def test_the_distance_to_a_fact_that_is_the_question_has_gradient_0(variant):
    a = example(variant, mask=None)
    facts = a["facts"].numpy().copy()
    facts[:, 1] = a["question"].numpy()
    a["facts"] = Tensor(facts, requires_grad=True)
    found = grad(variant(**a).sum(), [a["facts"], a["question"]])
    assert all(np.isfinite(g.numpy()).all() for g in found)
    z = variant.module.features(a["facts"], a["question"], a["question"], *([a["w"]] if variant is dmn else []))
    distance = slice(15, 18) if variant is dmn else slice(6, 9)            # |c - q|, of width 3, among the features
    close(z[:, 0, distance], np.abs(facts[:, 0] - facts[:, 1]))
    np.testing.assert_array_equal(z[:, 1, distance].numpy(), 0)
    np.testing.assert_array_equal(grad(z[:, 1, distance].sum(), a["question"])[0].numpy(), 0)


@pytest.mark.parametrize("variant", [dmn, dmn_plus])
def test_masked_facts_are_as_good_as_not_there(variant):
    a = example(variant)
    short = {**a, "facts": a["facts"][1:, :2], "question": a["question"][1:], "mask": None}
    close(variant(**a)[1:], variant(**short))
    hole = np.array([True, False, True, True])[None, None].repeat(2, 0)  # in the middle, which no length can say
    close(variant(**{**a, "mask": hole}), variant(**{**a, "facts": a["facts"][:, [0, 2, 3]], "mask": None}))


def test_dmn_plus_on_one_fact_takes_its_candidate_alone(rng):
    """g = 1 for one fact and 0 for the others: the state is n of that fact, from h = 0."""
    a = example(dmn_plus, mask=np.arange(4)[None, None].repeat(2, 0) == 2)
    D = 3
    only_c = np.concatenate([np.zeros((D, D)), np.eye(D), np.zeros((D, D))], 1)
    a["w_m"] = Tensor(np.stack([only_c, only_c]))                          # m = relu(c)
    a["b_m"] = a["b_m"] * 0
    x = a["facts"].numpy()[:, 2] @ a["a_ih"].numpy().T + a["a_b"].numpy()
    close(dmn_plus(**a), np.maximum(np.tanh(x[:, D:]), 0))


def test_dmn_plus_has_a_matrix_a_hop(rng):
    a = example(dmn_plus)
    _, g = dmn_plus(**a, return_weights=True)
    close(g.numpy().sum(-1), np.ones((2, 2)))
    once = dmn_plus(**{**a, "w_m": a["w_m"][:1], "b_m": a["b_m"][:1]}, return_weights=True)[1]
    close(once, g[:, :1])
    other = a["w_m"].numpy().copy()
    other[1] = 0
    close(dmn_plus(**{**a, "w_m": Tensor(other)}), np.maximum(a["b_m"].numpy()[1], 0)[None].repeat(2, 0))
    assert dmn_plus(**a).numpy().min() >= 0


@pytest.mark.parametrize("variant", [dmn, dmn_plus])
def test_dmn_at_its_edges(variant):
    a = example(variant, mask=None)
    for B, S in [(0, 4), (2, 0), (1, 1)]:
        assert variant(**{**a, "facts": a["facts"][:B, :S], "question": a["question"][:B]}).shape == (B, 3)
    with pytest.raises(ShapeError, match=f"{variant.name}: expected facts"):
        variant(**{**a, "question": a["question"][:1]})
    with pytest.raises(ValueError, match=f"{variant.name}: expected"):
        variant(**{**a, "w_1": a["w_1"][:, :-1]})


# ---------------------------------------------------------------------------------------------------------------------
# key_value
# ---------------------------------------------------------------------------------------------------------------------
TEXT = ["blade", "runner", "is", "a", "film", "by", "ridley", "scott", "with", "harrison", "ford"]
NAMES = ["blade runner", "ridley scott", "harrison ford", "ford", "film"]


def test_entities_are_merged_the_longest_first():
    assert merge(TEXT, NAMES) == ["blade runner", "is", "a", "film", "by", "ridley scott", "with", "harrison ford"]
    assert merge(["a", "b", "c", "d"], ["a b", "b c d"]) == ["a", "b c d"]
    assert merge(["x", "x", "x"], ["x x", ""]) == ["x x", "x"] and merge([], NAMES) == []


def test_windows_by_hand():
    tokens = merge(TEXT, NAMES)
    keys, values = windows(tokens, NAMES, 2)
    assert values == ["blade runner", "film", "ridley scott", "harrison ford"]
    assert keys[0] == ["blade runner", "1:is", "1:a"] and keys[2] == ["1:film", "1:by", "ridley scott", "1:with",
                                                                      "1:harrison ford"]
    keys, _ = windows(tokens, NAMES, 1, centre=False)
    assert keys == [["blade runner", "is"], ["a", "film", "by"], ["by", "ridley scott", "with"],
                    ["with", "harrison ford"]]
    keys, values = windows(tokens, NAMES, 1, title="blade runner")
    assert keys[0] == [NEAR + "blade runner", "blade runner", "1:is"] and values[0] == "blade runner"
    keys, values = windows(tokens, NAMES, 1, title="blade runner", inverse=True)
    assert values == ["blade runner", "film", "blade runner", "ridley scott", "blade runner", "harrison ford",
                      "blade runner"]
    assert keys[:3] == [[TITLE, "blade runner", "1:is"], [WINDOW, "1:blade runner", "1:a", "film", "1:by"],
                        [TITLE, "1:a", "film", "1:by"]]
    assert windows(tokens, [], 3) == ([], []) and windows(tokens, NAMES, 0)[0][1] == ["film"]
    with pytest.raises(ValueError, match="windows: expected a size of at least 0, and a title"):
        windows(tokens, NAMES, 1, inverse=True)


def test_memories_are_chosen_by_a_rare_word():
    keys = [["1:ridley scott", "film"], ["the", "1:film"], ["the", "ford"]]
    assert hashed(["who", "made", "the", "film"], keys, {"the": 9000, "film": 999}) == [0, 1]
    assert hashed(["the"], keys, {"the": 1000}) == [] and hashed([], keys, {}) == []


def test_one_hop_without_r_is_the_memory_loop():
    a = example(key_value)
    table = a["table"].numpy().copy()
    table[0] = 0
    q, k, v = (Tensor(table[a[n].numpy()].sum(-2)) for n in ("question", "keys", "values"))
    none = Tensor(np.zeros((0, 5, 5)))
    close(key_value(**{**a, "r": none}), q + memory(q[:, None], k, v, mask=a["mask"])[:, 0])
    same = Tensor(np.eye(5)[None].repeat(2, 0))  # R = I: nothing but sums
    out, weights = key_value(**{**a, "r": same}, return_weights=True)
    _, wanted = memory(q[:, None], k, v, hops=3, mask=a["mask"], return_weights=True)
    close(weights, wanted[:, :, 0])


def test_r_stands_between_hops_and_before_the_answer_only_if_asked():
    a = example(key_value)
    assert key_value(**a, return_weights=True)[1].shape == (2, 2, 4)  # one R, two hops
    none = {**a, "r": Tensor(np.zeros((0, 5, 5)))}
    out, weights = key_value(**a, last=True, return_weights=True)
    assert weights.shape == (2, 1, 4)
    close(out, key_value(**none).numpy() @ a["r"].numpy()[0].T)


def test_key_value_at_its_edges():
    a = example(key_value)
    values = a["values"].numpy()
    close(key_value(**{**a, "values": values[..., 0]}), key_value(**{**a, "values": values[..., :1]}))
    np.testing.assert_array_equal(grad(key_value(**a).sum(), a["table"])[0].numpy()[0], 0)
    for B, S in [(0, 4), (2, 0), (1, 1)]:
        b = {n: x.numpy()[:B, :S] for n, x in a.items() if n in ("keys", "values")}
        assert key_value(**{**a, **b, "question": a["question"].numpy()[:B], "mask": None}).shape == (B, 5)
    with pytest.raises(ShapeError, match="key_value: expected integers question"):
        key_value(**{**a, "r": a["r"][0]})
    with pytest.raises(ValueError, match="key_value: expected at least one matrix"):
        key_value(**{**a, "r": Tensor(np.zeros((0, 5, 5)))}, last=True)
