"""What makes `memory` and `ntm` themselves; the memory networks are in test_memory_networks.py.

(That each equals its slow reference, with gradients to second order, is in test_attention.py.)
"""
import runpy
from pathlib import Path

import numpy as np
import pytest

from tinyattn import Tensor, grad
from tinyattn.attention import find
from tinyattn.attention.ntm import sharpened, shifted
from tinyattn.attention.properties import leaves
from tinyattn.gradcheck import check_function
from tinyattn.ops.broadcast import ShapeError

memory, ntm = map(find, ("memory", "ntm"))


def example(variant, seed=0, **changes):
    """The mechanism's example as Tensors."""
    return leaves({**variant.part("example")(np.random.default_rng(seed)), **changes})


def close(got, wanted, tolerance=1e-11):
    got = got.numpy() if isinstance(got, Tensor) else got
    wanted = wanted.numpy() if isinstance(wanted, Tensor) else wanted
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def tensors(rng, *shapes):
    return [Tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]


def show(reports):
    assert all(r.ok for r in reports), "\n".join(map(str, reports))


# ---------------------------------------------------------------------------------------------------------------------
# memory
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("score, shapes", [("dot", {}), ("general", {"w": (4, 4)}),
                                           ("additive", {"w_q": (3, 4), "w_k": (3, 4), "v_a": (3,)})])
def test_one_hop_without_maps_is_basic_attention(rng, score, shapes):
    q, k = tensors(rng, (2, 3, 4), (2, 5, 4))
    a = {name: Tensor(rng.normal(size=shape)) for name, shape in shapes.items()}
    mask = Tensor(rng.random((2, 3, 5)) > 0.4)
    close(memory(q, k, k, score=score, mask=mask, **a), find(score)(q, k, k, mask=mask, **a))


def test_one_hop_of_dot_products_is_pytorchs_attention(rng):
    torch = pytest.importorskip("torch")
    q, k, v = tensors(rng, (2, 3, 4), (2, 5, 4), (2, 5, 6))
    wanted = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(x.numpy()) for x in (q, k, v)), scale=1.0)
    close(memory(q, k, v), wanted.numpy())


def test_the_story_of_figure_3(capsys, monkeypatch):
    lesson = Path(__file__).parent.parent / "examples" / "08_hops.py"
    monkeypatch.syspath_prepend(lesson.parent)
    monkeypatch.setattr("sys.argv", [str(lesson)])
    script = runpy.run_path(str(lesson))
    assert "Hop 1 lands on 'Sam drops the apple', hop 2 on 'Sam walks into the bedroom'." in capsys.readouterr().out
    keys, values = script["memories"]()
    same = np.eye(len(values[0]) + 1)[:, :-1]  # what is read is added as it is
    _, weights = memory(*(Tensor(x[None]) for x in (script["query"]()[None], keys, values)), phi_v=Tensor(same), hops=2,
                        return_weights=True)
    assert weights.numpy()[0, :, 0].argmax(-1).tolist() == [3, 3], "without a map, the second hop stays at the apple"


def test_the_example_is_that_story():
    (questions, sentences, _), (_, weights) = memory.part("labels")(), memory(**example(memory), return_weights=True)
    landed = [[sentences[i] for i in row] for row in weights.numpy()[0].argmax(-1).T]
    assert dict(zip(questions, landed, strict=True)) == {
        "where is the apple?": ["Sam drops the apple", "Sam walks into the bedroom"],
        "where is Sam?": ["Sam walks into the bedroom"] * 2}


@pytest.mark.parametrize("update", ["rnn", "gru"])
def test_the_recurrent_updates_are_pytorchs_cells(rng, update):
    torch = pytest.importorskip("torch")
    q, k, v = tensors(rng, (2, 3, 4), (2, 5, 4), (2, 5, 6))
    cell = {"rnn": torch.nn.RNNCell, "gru": torch.nn.GRUCell}[update](6, 4).double()
    w = [Tensor(p.detach().numpy()) for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    first = torch.tensor(memory(q, k, v).numpy()).reshape(6, 6)
    asked = cell(first, torch.tensor(q.numpy()).reshape(6, 4)).reshape(2, 3, 4).detach().numpy()
    close(memory(q, k, v, hops=2, update=update, cell=w), memory(Tensor(asked), k, v))
    arrays = [x.numpy() for x in (q, k, v, *w)]
    show(check_function(update, lambda q, k, v, *w: memory(q, k, v, hops=2, update=update, cell=w), arrays))


def test_concat_widens_the_query_and_any_function_may_update(rng):
    q, k, v, w0, w1 = tensors(rng, (1, 2, 3), (1, 4, 5), (1, 4, 6), (3, 5), (9, 5))
    c, weights = memory(q, k, v, phi_k=[w0, lambda k: k @ w1.T], hops=2, update="concat", return_weights=True)
    first = memory(q, k @ w0.T, v)
    asked = np.concatenate([q.numpy(), first.numpy()], -1)
    close(c, memory(Tensor(asked), k @ w1.T, v))
    assert weights.shape == (1, 2, 2, 4)
    close(memory(q, k, v, phi_k=w0, phi_v=lambda v: v * 2, hops=3, update=lambda q, c: q), first * 2)


def test_memory_at_its_edges(rng):
    for B, T, S in [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1)]:
        q, k, v = tensors(rng, (B, T, 4), (B, S, 4), (B, S, 4))
        out = memory(q, k, v, hops=2)
        assert out.shape == (B, T, 4)
        if S == 0:
            np.testing.assert_array_equal(out.numpy(), 0)
    q, k, v = tensors(rng, (2, 3, 4), (2, 5, 4), (2, 5, 4))
    strided = Tensor(np.asfortranarray(k.numpy()))
    close(memory(q, strided, v, hops=2), memory(q, k, v, hops=2))
    out = memory(q * 1e4, k, v, hops=2)
    assert np.isfinite(out.numpy()).all()
    for bad, error, message in [
            ({"hops": 0}, ValueError, "memory: expected hops of at least 1"),
            ({"update": "add"}, ValueError, "memory: .*one of sum, concat, rnn, gru"),
            ({"hops": 2, "update": "gru"}, ValueError, "memory: expected cell"),
            ({"v": v[:, 1:]}, ShapeError, r"memory: expected q \(B, T, Q\), k \(B, S, K\), v \(B, S, E\), got"),
            ({"hops": 2, "phi_k": [None]}, ValueError, "memory: expected one phi_k a hop, got 1 for hop 1"),
            ({"hops": 2, "phi_v": lambda v: v[:, :, :2]}, ShapeError, "memory: expected q and c of one shape")]:
        with pytest.raises(error, match=message):
            memory(**{"q": q, "k": k, "v": v, **bad})


# ---------------------------------------------------------------------------------------------------------------------
# content + location: the third way to update
# ---------------------------------------------------------------------------------------------------------------------
def located(rng, hops=3, g=None, shift=None):
    """Arguments of `memory` with the update "content+location", two stories of 5 slots, three queries."""
    q, k, v, raw = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5, 2)), rng.normal(size=(2, 3, 3))
    s = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True) if shift is None else np.eye(3)[np.full((2, 3), shift + 1)]
    g = rng.random((2, 3)) if g is None else np.full((2, 3), float(g))
    gamma = np.ones((2, 3)) if shift is not None else 1 + rng.random((2, 3))
    return {"q": Tensor(q), "k": Tensor(k), "v": Tensor(v), "hops": hops, "update": "content+location", "score": "cosine",
            "beta": Tensor(np.array(2.0)), "location": tuple(map(Tensor, (g, s, gamma)))}


def test_content_and_location_are_the_addressing_of_ntm_hop_by_hop(rng):
    a = located(rng)
    g, s, gamma = a["location"]
    c, weights = memory(**a, return_weights=True)
    w = find("cosine")(a["q"], a["k"], a["v"], a["beta"], return_weights=True)[1]
    close(weights[:, 0], w)
    for hop in (1, 2):
        beta = Tensor(np.full((2, 3), 2.0))
        w = ntm(a["k"], a["q"], beta, g, s, gamma, w, return_weights=True)[1]
        close(weights[:, hop], w)
    close(c, w @ a["v"])


def test_without_content_each_hop_steps_to_the_next_slot(rng):
    _, weights = memory(**located(rng, hops=6, g=0, shift=1), return_weights=True)
    for hop in range(1, 6):
        close(weights[:, hop], np.roll(weights.numpy()[:, 0], hop, -1))
    close(weights[:, 5], weights[:, 0])  # five slots: once around


def test_gradients_of_content_and_location(rng):
    a = located(rng, hops=2)
    def call(q, k, v, g, s, gamma):
        return memory(**a | {"q": q, "k": k, "v": v, "location": (g, s, gamma)})
    show(check_function("content+location", call, [a[n].numpy() for n in "qkv"] + [t.numpy() for t in a["location"]], 2))


def test_location_and_its_update_belong_together(rng):
    a = located(rng)
    for change in ({"update": "sum"}, {"location": None}, {"mask": np.ones((2, 1, 5), bool)}):
        with pytest.raises(ValueError, match="memory: location = .* goes with update 'content.location' and no mask"):
            memory(**a | change)
    with pytest.raises(ValueError, match="memory: expected g in 0 .. 1 and gamma of at least 1"):
        memory(**a | {"location": (a["location"][0] + 2, *a["location"][1:])})


# ---------------------------------------------------------------------------------------------------------------------
# ntm
# ---------------------------------------------------------------------------------------------------------------------
def head(N=5, shift=0, g=0.0, gamma=1.0, before=None, rng=None, R=3):
    """The arguments of one head that steps by `shift`."""
    rng = rng or np.random.default_rng(0)
    s = np.zeros((1, 1, R))
    s[..., R // 2 + shift] = 1
    before = rng.dirichlet(np.ones(N)) if before is None else np.asarray(before, float)
    arrays = {"m": rng.normal(size=(1, N, 4)), "k": rng.normal(size=(1, 1, 4)), "beta": [[2.0]], "g": [[g]], "s": s,
              "gamma": [[gamma]], "before": before[None, None]}
    return {n: Tensor(np.array(x), requires_grad=True) for n, x in arrays.items()}


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_without_content_and_sharpening_the_weights_go_round(shift):
    a = head(shift=shift, R=5)
    place = a["before"].numpy()[0, 0]
    for step in range(1, 6):
        _, w = ntm(**a, return_weights=True)
        close(w.numpy()[0, 0], np.roll(place, shift * step))
        a["before"] = Tensor(w.numpy())
    close(w.numpy()[0, 0], place)  # N steps are the identity


def test_the_shift_is_a_circular_convolution(rng):
    for N, R in [(6, 3), (4, 5), (1, 3), (7, 1)]:
        w, s = rng.random((2, 3, N)), rng.random((2, 3, R))
        kernel = np.zeros((2, 3, N))
        for n in range(R):
            kernel[..., (n - R // 2) % N] += s[..., n]
        wanted = np.fft.ifft(np.fft.fft(w) * np.fft.fft(kernel)).real
        close(shifted(Tensor(w), Tensor(s)), wanted)
        close(shifted(Tensor(w), Tensor(s)).numpy().sum(-1), w.sum(-1) * s.sum(-1))  # nothing falls off an end


def test_zero_to_the_power_of_gamma_has_no_nan():
    for gamma in (1.0, 1.5, 3.0):
        a = head(gamma=gamma, shift=1, before=[0.6, 0.4, 0, 0, 0])
        r, w = ntm(**a, return_weights=True)
        p = np.array([0, 0.6, 0.4, 0, 0]) ** gamma
        close(w.numpy()[0, 0], p / p.sum())
        g = np.arange(5.0)
        found = grad([w], [a["before"], a["gamma"]], [Tensor(g[None, None])], create_graph=True)
        at_w = gamma * np.array([float(gamma == 1), 0.6 ** (gamma - 1), 0.4 ** (gamma - 1), *[float(gamma == 1)] * 2])
        close(found[0].numpy()[0, 0], np.roll(at_w * (g - g @ p / p.sum()) / p.sum(), -1))
        log = np.log([1, 0.6, 0.4, 1, 1])
        close(found[1].numpy()[0, 0], (p / p.sum()) @ ((g - g @ p / p.sum()) * log))
        found = grad(r.sum(), list(a.values()), allow_unused=True)
        assert all(np.isfinite(x.numpy()).all() for x in found if x is not None)


def test_sharpening_stays_finite_and_ends_at_the_greatest():
    w = Tensor(np.array([[[0.2, 0.3, 0.5], [1e-200, 2e-200, 0]]]), requires_grad=True)
    close(sharpened(w, Tensor(np.array([[1.0, 1.0]]))), [[[0.2, 0.3, 0.5], [1 / 3, 2 / 3, 0]]])
    sharp = sharpened(w, Tensor(np.array([[5000.0, 5000.0]])))
    close(sharp, [[[0, 0, 1], [0, 1, 0]]])
    assert np.isfinite(grad(sharp[0, 0, 2], w)[0].numpy()).all()


def test_content_is_found_by_its_angle(rng):
    a = head(N=6, g=1.0)
    a["k"], a["beta"] = a["m"][:, 4:5] * 0.01, Tensor(np.array([[200.0]]))  # the length does not count
    _, w = ntm(**a, return_weights=True)
    assert w.numpy()[0, 0, 4] > 0.99
    empty = Tensor(np.zeros((1, 6, 4)), requires_grad=True)  # a new memory
    r, w = ntm(**{**a, "m": empty}, return_weights=True)
    close(w.numpy()[0, 0], np.full(6, 1 / 6))
    assert np.isfinite(grad(r.sum() + w[0, 0, 0], [empty])[0].numpy()).all()


def test_erase_first_then_add(rng):
    a = head(before=[0, 0, 1, 0, 0])
    add = rng.normal(size=(1, 1, 4))
    r, m = ntm(**a, erase=Tensor(np.ones((1, 1, 4))), add=Tensor(add))
    wanted = a["m"].numpy().copy()
    close(r.numpy()[0, 0], wanted[0, 2])  # read before it is written
    wanted[0, 2] = add[0, 0]
    close(m, wanted)


def test_a_sequence_written_step_by_step_is_read_back(rng):
    """The copy task as a program: step by one and write; go back to the start; step by one and read."""
    words = rng.normal(size=(4, 4))
    a, one = head(shift=1, before=[0, 0, 0, 0, 1]), Tensor(np.ones((1, 1, 4)))
    for word in words:
        _, a["m"], a["before"] = ntm(**a, erase=one, add=Tensor(word[None, None]), return_weights=True)
    a["before"] = head(before=[0, 0, 0, 0, 1])["before"]
    for word in words:
        r, a["before"] = ntm(**a, return_weights=True)
        close(r.numpy()[0, 0], word)


@pytest.mark.parametrize("bad, error, message", [
    ({"gamma": 0.5}, ValueError, "ntm: expected g in 0 .. 1 and gamma of at least 1, got .* gamma from 0.5"),
    ({"g": 1.5}, ValueError, "ntm: expected g in 0 .. 1"),
    ({"R": 4}, ValueError, "ntm: expected an odd number of shifts"),
    ({"before": [1, 0]}, ShapeError, r"ntm: expected m \(B, N, D\)")])
def test_ntm_with_bad_input(bad, error, message):
    with pytest.raises(error, match=message):
        ntm(**head(**bad))
    with pytest.raises(ValueError, match="ntm: expected erase and add, or neither, got add alone"):
        ntm(**head(), add=Tensor(np.zeros((1, 1, 4))))


def test_ntm_at_its_edges(rng):
    for B, T, N in [(0, 1, 3), (2, 0, 3), (1, 1, 1), (2, 3, 0)]:
        m, k, erase = tensors(rng, (B, N, 4), (B, T, 4), (B, T, 4))
        one, s, before = Tensor(np.ones((B, T))), Tensor(np.ones((B, T, 3)) / 3), Tensor(np.ones((B, T, N)) / max(N, 1))
        r, after = ntm(m, k, one, one, s, one, before, erase, erase)
        assert r.shape == (B, T, 4) and after.shape == (B, N, 4)
