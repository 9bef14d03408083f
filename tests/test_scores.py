"""Score functions, their two-dimensional lifts, and pattern attention: what makes each of them itself."""
import math

import numpy as np
import pytest

from tinyattn import InputError, Tensor, capture, grad
from tinyattn.attention import find, mask, scores_of, weigh, weights_of
from tinyattn.autograd import fused
from tinyattn.functional import linear
from tinyattn.gradcheck import check_function
from tinyattn.ops.broadcast import ShapeError

SCORES = ["additive", "biaffine", "cosine", "dot", "general", "location", "mlp", "scaled_dot"]
LIFTED = {"additive_2d": "additive", "mlp_2d": "mlp", "tensor": "general"}
NORMALISERS = ["softmax", "sparsemax", "entmax15", "raw", "sigmoid"]
B, T, S, E = 2, 3, 5, 4
ONE_WIDTH = ("dot", "scaled_dot", "cosine")


def tensor(array, grad=True):
    return Tensor(np.asarray(array, np.float64), requires_grad=grad)


def inputs(name, B=B, T=T, S=S, seed=0, scale=1.0, **sizes):
    """(q, k, v, parameters) as arrays for a mechanism of this file."""
    rng = np.random.default_rng(seed)
    sizes = {"A": 3, "Q": 4, "K": 4 if name in ONE_WIDTH else 6, "L": 7, "M": 2, **sizes}
    q, k, v = (rng.normal(size=s) for s in ((B, T, sizes["Q"]), (B, S, sizes["K"]), (B, S, E)))
    return scale * q, scale * k, v, {p: rng.normal(size=s) for p, s in find(name).shapes(**sizes).items()}


def on_tensors(name, q, k, v, parameters, **more):
    q, k, v = map(tensor, (q, k, v))
    parameters = {p: tensor(x) for p, x in parameters.items()}
    return find(name)(q, k, v, **parameters, **more), [q, k, v, *parameters.values()]


def scores(name, q, k, parameters):
    return scores_of(name, tensor(q), tensor(k), {p: tensor(x) for p, x in parameters.items()}).numpy()


def softmax(e):
    e = np.exp(e - e.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------------
# what relates one score to another
# ---------------------------------------------------------------------------------------------------------------------
def test_general_with_the_identity_is_the_dot_product():
    q, k, _, _ = inputs("dot")
    np.testing.assert_allclose(scores("general", q, k, {"w": np.eye(4)}), scores("dot", q, k, {}), rtol=1e-14)
    w = np.eye(4)
    w[0, 1] = 0.1
    assert np.abs(scores("general", q, k, {"w": w}) - scores("dot", q, k, {})).max() > 1e-3


def test_additive_is_eq_8_on_the_concatenation():
    q, k, _, p = inputs("additive")
    w_1 = np.concatenate([p["w_q"], p["w_k"]], axis=1)                     # (A, Q + K)
    want = np.zeros((B, T, S))
    for b, t, s in np.ndindex(B, T, S):
        want[b, t, s] = p["v_a"] @ np.tanh(w_1 @ np.concatenate([q[b, t], k[b, s]]))
    np.testing.assert_allclose(scores("additive", q, k, p), want, rtol=1e-12)


def test_mlp_is_eq_9_on_the_concatenation():
    q, k, _, p = inputs("mlp")
    w_1 = np.concatenate([p["w_q"], p["w_k"]], axis=1)
    want = np.zeros((B, T, S))
    for b, t, s in np.ndindex(B, T, S):
        inner = p["v_a"] @ np.tanh(w_1 @ np.concatenate([q[b, t], k[b, s]]) + p["b_1"]) + p["b_2"]
        want[b, t, s] = 1 / (1 + math.exp(-inner))
    np.testing.assert_allclose(scores("mlp", q, k, p), want, rtol=1e-12)


def test_scaled_dot_keeps_the_spread_of_the_scores_whatever_the_width():
    rng = np.random.default_rng(0)
    for D in (4, 400):
        q, k = rng.normal(size=(1, 60, D)), rng.normal(size=(1, 60, D))
        e = scores("scaled_dot", q, k, {})
        np.testing.assert_allclose(e * math.sqrt(D), scores("dot", q, k, {}), rtol=1e-12)
        assert 0.85 < e.std() < 1.15


def test_biaffine_is_bilinear_plus_a_prior_of_the_keys():
    q, k, _, p = inputs("biaffine")
    want = np.einsum("bsk,kq,btq->bts", k, p["u_1"], q) + np.einsum("bsk,k->bs", k, p["u_2"])[:, None]
    np.testing.assert_allclose(scores("biaffine", q, k, p), want, rtol=1e-12)
    prior = scores("biaffine", q, k, {**p, "u_1": 0 * p["u_1"]})
    np.testing.assert_array_equal(prior, np.broadcast_to(prior[:, :1], prior.shape))  # the same whoever asks
    bilinear = scores("biaffine", q, k, {**p, "u_2": 0 * p["u_2"]})
    np.testing.assert_allclose(bilinear, scores("general", q, k, {"w": p["u_1"].T}), rtol=1e-12)


def test_the_outer_sigmoid_bounds_the_ratio_of_two_weights_by_e():
    q, k, v, p = inputs("mlp", S=40, scale=50.0)
    p = {**p, "v_a": 100 * p["v_a"]}  # scores as far apart as they get
    weights = on_tensors("mlp", q, k, v, p, return_weights=True)[0][1].numpy()
    ratio = weights.max(-1) / weights.min(-1)
    assert ratio.max() <= math.e * (1 + 1e-12) and ratio.max() > 2.6
    sharp = on_tensors("additive", q, k, v, {n: p[n] for n in ("w_q", "w_k", "v_a")}, return_weights=True)[0][1].numpy()
    assert (sharp.max(-1) / np.maximum(sharp.min(-1), 1e-300)).max() > 1e6


def test_ten_keys_under_mlp_never_give_one_a_weight_of_24_percent():
    """As the docstring says: at most e / (e + 9)."""
    e = np.zeros(10)
    e[0] = 1.0
    assert softmax(e).max() < 0.24 and abs(softmax(e).max() - math.e / (math.e + 9)) < 1e-15


def test_the_softmax_cancels_the_last_bias_only_without_the_outer_sigmoid():
    q, k, v, p = inputs("mlp")
    (out, tensors), g = on_tensors("mlp", q, k, v, p), np.random.default_rng(1).normal(size=(B, T, E))
    assert abs(grad([out], [tensors[-1]], [Tensor(g)])[0].item()) > 1e-4

    def inner(b_2):
        e = scores_of("additive", tensor(q), tensor(k), {n: tensor(p[n]) for n in ("w_q", "w_k", "v_a")})
        return weigh(e + b_2, tensor(v))

    b_2 = tensor(p["b_2"])
    assert abs(grad([inner(b_2)], [b_2], [Tensor(g)])[0].item()) < 1e-14


# ---------------------------------------------------------------------------------------------------------------------
# cosine
# ---------------------------------------------------------------------------------------------------------------------
def test_cosine_does_not_see_lengths_and_beta_sharpens():
    q, k, _, _ = inputs("cosine")
    lengths = np.random.default_rng(1).uniform(0.01, 100, size=(B, S, 1))
    e = scores("cosine", q, k, {"beta": 1.0})
    np.testing.assert_allclose(scores("cosine", 7 * q, lengths * k, {"beta": 1.0}), e, rtol=1e-12)
    np.testing.assert_allclose(scores("cosine", -q, k, {"beta": 1.0}), -e, rtol=1e-12)
    assert np.abs(e).max() <= 1 + 1e-15
    np.testing.assert_allclose(scores("cosine", q, k, {"beta": 3.0}), 3 * e, rtol=1e-14)
    for beta, sharp in ((1.0, False), (1e4, True)):
        weights = softmax(scores("cosine", q, k, {"beta": beta}))
        assert (weights.max(-1) > 0.999).all() == sharp
        np.testing.assert_array_equal(weights.argmax(-1), e.argmax(-1))


def test_cosine_is_pytorchs():
    torch = pytest.importorskip("torch")
    q, k, _, _ = inputs("cosine")
    want = torch.nn.functional.cosine_similarity(torch.tensor(q)[:, :, None], torch.tensor(k)[:, None], dim=-1)
    np.testing.assert_allclose(scores("cosine", q, k, {"beta": 1.0}), want.numpy(), rtol=1e-10)


def test_beta_may_be_one_a_query():
    q, k, v, _ = inputs("cosine")
    beta = np.random.default_rng(1).uniform(0.5, 3, size=(B, T, 1))
    e = scores("cosine", q, k, {"beta": 1.0})
    np.testing.assert_allclose(scores("cosine", q, k, {"beta": beta}), beta * e, rtol=1e-14)
    assert find("cosine")(tensor(q), tensor(k), tensor(v), beta=2.0).shape == (B, T, E)
    with pytest.raises(ShapeError, match=r"cosine: expected .*beta \(..., T, 1\), got .*beta \(2, 4, 1\)"):
        scores("cosine", q, k, {"beta": np.ones((B, T + 1, 1))})


def test_a_vector_of_zeros_has_no_direction_and_no_gradient():
    q, k, v, p = inputs("cosine")
    q[0, 1], k[1, 2] = 0, 0
    e = scores("cosine", q, k, p)
    assert np.isfinite(e).all() and not e[0, 1].any() and not e[1, :, 2].any()
    out, tensors = on_tensors("cosine", q, k, v, p)
    g = Tensor(np.random.default_rng(1).normal(size=out.shape))
    for create_graph in (False, True):
        dq, dk = grad([out], tensors[:2], [g], create_graph=create_graph)
        assert np.isfinite(dq.numpy()).all() and np.isfinite(dk.numpy()).all()
        assert not dq.numpy()[0, 1].any() and not dk.numpy()[1, 2].any()
        assert np.abs(dq.numpy()[0, 0]).min() > 0
    second = grad([(dq * dq).sum()], tensors[:2])
    assert all(np.isfinite(x.numpy()).all() for x in second)


# ---------------------------------------------------------------------------------------------------------------------
# location
# ---------------------------------------------------------------------------------------------------------------------
def test_location_ignores_the_keys():
    q, k, _, p = inputs("location")
    e = scores("location", q, k, p)
    np.testing.assert_array_equal(scores("location", q, 100 * k + 1, p), e)
    np.testing.assert_allclose(e, np.einsum("btq,lq->btl", q, p["w"])[..., :S], rtol=1e-12)  # the top rows of W


def test_location_loses_the_tail_of_a_longer_sentence():
    q, k, v, p = inputs("location", L=3)
    (out, weights), tensors = on_tensors("location", q, k, v, p, return_weights=True)
    np.testing.assert_array_equal(weights.numpy()[..., 3:], 0)
    np.testing.assert_allclose(weights.numpy()[..., :3], softmax(q @ p["w"].T), rtol=1e-12)
    grads = grad([out], [tensors[0], *tensors[2:]], [Tensor(np.ones(out.shape))])
    assert all(np.isfinite(g.numpy()).all() for g in grads) and not grads[1].numpy()[:, 3:].any()
    short, _ = on_tensors("location", q, k[:, :3], v[:, :3], p)
    np.testing.assert_allclose(out.numpy(), short.numpy(), rtol=1e-12)
    tail = Tensor(np.arange(S)[None] >= 3)  # only places that W does not know
    np.testing.assert_array_equal(on_tensors("location", q, k, v, p, mask=tail)[0].numpy(), 0)


def test_gradients_of_location_where_the_sentence_is_longer():
    q, k, v, p = inputs("location", L=3)
    def call(q, v, w):
        return find("location")(q, tensor(k, False), v, w)

    reports = check_function("location", call, [q, v, p["w"]], 2, 0)
    assert all(r.ok for r in reports), "\n".join(map(str, reports))


# ---------------------------------------------------------------------------------------------------------------------
# scaled dot product, fused
# ---------------------------------------------------------------------------------------------------------------------
MASKS = {"none": None, "keys": np.arange(S) < np.array([5, 2])[:, None, None],
         "each": np.random.default_rng(7).random((B, T, S)) < 0.5}


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_fused_is_its_scores_weighed(which, causal):
    q, k, v, _ = inputs("scaled_dot")
    allowed = np.ones((B, T, S), bool) if MASKS[which] is None else np.broadcast_to(MASKS[which], (B, T, S))
    allowed = allowed & (np.arange(S) <= np.arange(T)[:, None] + S - T if causal else True)
    e = np.where(allowed, scores("scaled_dot", q, k, {}), -np.inf)
    want = np.zeros((B, T, S))
    for b, t in np.ndindex(B, T):
        if allowed[b, t].any():
            want[b, t] = softmax(e[b, t])
    more = {"mask": None if MASKS[which] is None else Tensor(MASKS[which]), "causal": causal}
    g = np.random.default_rng(1).normal(size=(B, T, E))
    found = []
    for mode in ("force", "never"):
        with fused(mode), capture() as taps:
            out, tensors = on_tensors("scaled_dot", q, k, v, {}, **more)
        np.testing.assert_allclose(out.numpy(), want @ v, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(taps["weights"][-1].numpy(), want, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(taps["weights"][-1].numpy()[~allowed], 0)
        assert ("mask" in taps) == (causal or which != "none")
        assert (out.op.name == "attention") == (mode == "force")  # a capture does not change the path
        found.append(grad([out], tensors, [Tensor(g)]))
    out, tensors = on_tensors("scaled_dot", q, k, v, {}, return_weights=True, **more)
    np.testing.assert_allclose(out[1].numpy(), want, rtol=1e-12, atol=1e-14)
    found.append(grad([out[0]], tensors, [Tensor(g)]))
    for dq, dk, dv in zip(*found, strict=True):
        np.testing.assert_allclose(dq.numpy(), dk.numpy(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(dq.numpy(), dv.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_is_pytorchs(causal):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q, k, v, g = rng.normal(size=(4, 2, 3, 7, 5))
    allowed = None if causal else rng.random((2, 1, 7, 7)) < 0.7
    if allowed is not None:
        allowed[..., 0] = True  # PyTorch gives nan for a row that may attend to nothing
    theirs = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(*theirs, attn_mask=None if causal else torch.tensor(allowed), is_causal=causal)
    want.backward(torch.tensor(g))
    ours = [tensor(x) for x in (q, k, v)]
    out = find("scaled_dot")(*ours, mask=None if causal else Tensor(allowed), causal=causal)
    np.testing.assert_allclose(out.numpy(), want.detach().numpy(), rtol=1e-10, atol=1e-12)
    for mine, their in zip(grad([out], ours, [Tensor(g)]), theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), their.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_a_loss_on_the_weights_reaches_queries_and_keys():
    q, k, v, _ = inputs("scaled_dot")
    (_, weights), tensors = on_tensors("scaled_dot", q, k, v, {}, return_weights=True)
    dq, dk = grad([(weights * weights).sum()], tensors[:2])
    assert np.abs(dq.numpy()).min() > 0 and np.abs(dk.numpy()).min() > 0


# ---------------------------------------------------------------------------------------------------------------------
# the two-dimensional lifts
# ---------------------------------------------------------------------------------------------------------------------
def lifted(name, p):
    """The parameters of the plain score as those of the lifted one with M = 1."""
    names = {"v_a": "w_2"} if name != "tensor" else {}
    return {names.get(n, n): x[None] if n in ("v_a", "w", "b_2") else x for n, x in p.items()}


@pytest.mark.parametrize("name", LIFTED)
def test_one_weighting_is_the_plain_score(name):
    q, k, v, p = inputs(LIFTED[name])
    plain = {"tanh": False} if name == "tensor" else {}
    (one, weights), _ = on_tensors(name, q, k, v, lifted(name, p), return_weights=True, **plain)
    want, alpha = on_tensors(LIFTED[name], q, k, v, p, return_weights=True)[0]
    np.testing.assert_allclose(weights.numpy()[:, 0], alpha.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(one.numpy()[:, :, 0], want.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", LIFTED)
def test_weightings_do_not_mix(name):
    """M weightings at once are M calls with one each, in that order; their parameters are separate."""
    q, k, v, p = inputs(name)
    allowed = Tensor(np.random.default_rng(3).random((B, T, S)) < 0.6)
    out, weights = on_tensors(name, q, k, v, p, mask=allowed, return_weights=True)[0]
    assert out.shape == (B, T, 2, E) and weights.shape == (B, 2, T, S)
    for m in range(2):
        one = {n: x[m:m + 1] if n in ("w", "w_2", "b_2") else x for n, x in p.items()}
        alone = on_tensors(name, q, k, v, one, mask=allowed)[0].numpy()
        np.testing.assert_allclose(alone[:, :, 0], out.numpy()[:, :, m], rtol=1e-12, atol=1e-14)


def test_eq_10_has_a_tanh_that_bounds_the_ratio_of_weights():
    q, k, v, p = inputs("tensor", scale=30.0)
    flat = on_tensors("tensor", q, k, v, p, return_weights=True)[0][1].numpy()
    assert (flat.max(-1) / flat.min(-1)).max() <= math.exp(2) * (1 + 1e-12)
    sharp = on_tensors("tensor", q, k, v, p, return_weights=True, tanh=False)[0][1].numpy()
    assert sharp.max() > 0.999
    e = np.einsum("btq,mqk,bsk->bmts", q / 30, p["w"], k / 30)
    _, weights = on_tensors("tensor", q / 30, k / 30, v, p, return_weights=True)[0]
    np.testing.assert_allclose(weights.numpy(), softmax(np.tanh(e)), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# scores by name
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("score", SCORES)
def test_every_score_by_name(score):
    """Through `scores_of`, its own mechanism, a mechanism that takes it by name, and as a function of one's own."""
    q, k, v, p = inputs(score)
    e = scores(score, q, k, p)
    assert e.shape == (B, T, S)
    np.testing.assert_allclose(on_tensors(score, q, k, v, p)[0].numpy(), softmax(e) @ v, rtol=1e-11, atol=1e-13)
    for name in ("sigmoid", "sparsemax"):
        want = weights_of(tensor(e), None, name).numpy() @ v
        np.testing.assert_allclose(on_tensors(name, q, k, v, p, score=score)[0].numpy(), want, rtol=1e-11, atol=1e-13)
    u, tensors = q[0, 0], {n: tensor(x) for n, x in p.items()}
    want = softmax(scores(score, np.tile(u, (B, 1, 1)), k, p)) @ k         # (B, 1, K)
    by_name = find("pattern")(tensor(k), tensor(u), score=score, **tensors)
    mine = find("pattern")(tensor(k), tensor(u), score=lambda q, k: scores_of(score, q, k, tensors))
    for out in (by_name, mine):
        np.testing.assert_allclose(out.numpy(), want[:, 0], rtol=1e-11, atol=1e-13)
    assert find(score).part("scores") and np.isfinite(e).all()


def test_a_score_in_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tinyattn.attention.core import variant, weigh\n\n"
                    "def prepare(k, w):\n    return k * w\n\n"
                    "def scores(q, prepared, c):\n    return c * (q @ prepared.transpose())\n\n"
                    "@variant(params={'w': 'K', 'c': ''})\n"
                    "def weighted(q, k, v, w, c, mask=None):\n"
                    "    return weigh(scores(q, prepare(k, w), c), v, mask)\n\n"
                    "@variant()\ndef other(q, k, v, mask=None):\n    return v\n")
    q, k, v, _ = inputs("dot")
    p = {"w": np.arange(1.0, 5.0), "c": np.array(0.5)}
    want = 0.5 * q @ (k * p["w"]).swapaxes(1, 2)
    np.testing.assert_allclose(scores(f"{file}:weighted", q, k, p), want, rtol=1e-12)
    out = on_tensors("sigmoid", q, k, v, p, score=f"{file}:weighted")[0]
    np.testing.assert_allclose(out.numpy(), 1 / (1 + np.exp(-want)) @ v, rtol=1e-12)
    np.testing.assert_allclose(scores(find(f"{file}:weighted"), q, k, p), want, rtol=1e-12)
    with pytest.raises(InputError, match="weighted"):
        scores(f"{file}:nothing", q, k, p)


def test_errors_of_scores_by_name():
    q, k, v, p = inputs("general")
    for score, parameters, message in [
            ("euclid", {}, r"attention: expected one of additive, .*, or FILE.py:NAME, got 'euclid'"),
            ("pattern", {}, r"score: pattern is no score function; expected one of additive, .*scaled_dot"),
            ("sparsemax", {}, r"score: sparsemax is no score function"),
            ("tensor", p, r"score: tensor is no score function"),
            ("general", {}, r"score general: expected the parameters w, got none"),
            ("mlp", p, r"score mlp: expected the parameters w_q, w_k, b_1, v_a, b_2, got w"),
            ("dot", p, r"score dot: expected the parameters none, got w")]:
        with pytest.raises(InputError, match=message):
            scores(score, q, k, parameters)
        with pytest.raises(InputError, match=message):
            on_tensors("sparsemax", q, k, v, parameters, score=score)
    assert all(find(s).part("scores") for s in SCORES)
    assert not any(find(s).part("scores") for s in [*LIFTED, *NORMALISERS[1:], "pattern"])


@pytest.mark.parametrize("name", [*SCORES[1:], *LIFTED])
def test_shapes_that_do_not_fit_are_one_clear_line(name):
    q, k, v, p = inputs(name)
    for bad in [(q[0, 0], k, v), (q, k[:1].repeat(3, 0), v), (q, k, v[:, :2]), (q[..., :3], k, v)]:
        with pytest.raises(ShapeError, match=rf"^{name}: expected q \(.*\), k .*, got q \(") as error:
            on_tensors(name, *bad, p)
        assert "\n" not in str(error.value)
    if name not in ("dot", "scaled_dot"):
        first = next(iter(p))
        with pytest.raises(ShapeError, match=rf"^{name}: expected .*{first} .*got"):
            on_tensors(name, q, k, v, {**p, first: np.ones((2, 9, 9, 9))})
    with pytest.raises(TypeError, match=rf"^{name}: expected a Tensor for q, got ndarray"):
        find(name)(q, tensor(k), tensor(v), **{n: tensor(x) for n, x in p.items()})


# ---------------------------------------------------------------------------------------------------------------------
# every mechanism here: odd shapes, empty rows, large scores, leading axes
# ---------------------------------------------------------------------------------------------------------------------
ALL = [*SCORES[1:], *LIFTED, "sparsemax", "entmax15", "sigmoid", "raw"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 7), (1, 4, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_sizes_1_and_0(name, sizes):
    n, t, s = sizes
    q, k, v, p = inputs(name, n, t, s, **{"K": 4} if find(name).score == "dot" else {})
    M = (2,) if name in LIFTED else ()
    (out, weights), tensors = on_tensors(name, q, k, v, p, return_weights=True)
    assert out.shape == (n, t, *M, E) and weights.shape == (n, *M, t, s)
    grads = grad([out], tensors, [Tensor(np.ones(out.shape))], allow_unused=True)
    for x, g in zip(tensors, grads, strict=True):
        assert g is None or (g.shape == x.shape and np.isfinite(g.numpy()).all())
    if s == 0:
        assert not out.numpy().any()
    if s == 1 and find(name).sums == 1.0:
        np.testing.assert_allclose(weights.numpy(), 1)
    np.testing.assert_allclose(on_tensors(name, q, k, v, p)[0].numpy(), out.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_one_query_that_sees_nothing(name):
    q, k, v, p = inputs(name, **{"K": 4} if find(name).score == "dot" else {})
    allowed = np.random.default_rng(2).random((B, T, S)) < 0.7
    allowed[1, 2], allowed[0, 0], allowed[:, :, 0] = False, True, True
    allowed[1, 2] = False
    for more in ({}, {"return_weights": True}):
        out, tensors = on_tensors(name, q, k, v, p, mask=Tensor(allowed), **more)
        out = out[0] if more else out
        assert not out.numpy()[1, 2].any() and out.numpy()[1, 1].any()
        g = np.zeros(out.shape)
        g[1, 2] = 1.0
        for found in grad([out], tensors, [Tensor(g)], allow_unused=True):
            assert found is None or not found.numpy().any()


@pytest.mark.parametrize("name", [*SCORES, *LIFTED])
def test_scores_of_ten_thousand_stay_finite(name):
    q, k, v, p = inputs(name, scale=1e3)
    out, tensors = on_tensors(name, q, k, v, p, mask=mask.from_lengths([5, 0], S))
    assert np.isfinite(out.numpy()).all() and not out.numpy()[1].any()
    for found in grad([out], tensors, [Tensor(np.ones(out.shape))], allow_unused=True):
        assert found is None or np.isfinite(found.numpy()).all()


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "general", "cosine", "biaffine", "location"])
def test_leading_axes(name):
    """Heads in front of the queries: each head by itself. Inputs that are views of other layouts."""
    q, k, v, p = inputs(name, B=6)
    want = on_tensors(name, q, k, v, p)[0].numpy()
    heads = [tensor(np.moveaxis(x.reshape(2, 3, *x.shape[1:]), 1, 2).copy()).transpose(1, 2) for x in (q, k, v)]
    out = find(name)(*heads, **{n: tensor(x) for n, x in p.items()})
    np.testing.assert_allclose(out.numpy().reshape(want.shape), want, rtol=1e-12, atol=1e-14)


def test_scaled_dot_with_keys_that_heads_share():
    q, k, v, _ = inputs("scaled_dot")
    heads = np.random.default_rng(1).normal(size=(B, 3, T, 4))
    for more in ({}, {"return_weights": True}):
        out = find("scaled_dot")(tensor(heads), tensor(k[:, None]), tensor(v[:, None]), causal=True, **more)
        out = out[0] if more else out
        for h in range(3):
            want = find("scaled_dot")(tensor(heads[:, h]), tensor(k), tensor(v), causal=True)
            np.testing.assert_allclose(out.numpy()[:, h], want.numpy(), rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# pattern
# ---------------------------------------------------------------------------------------------------------------------
def test_pattern_is_cross_attention_with_one_learned_query():
    x, u = np.random.default_rng(0).normal(size=(B, S, 4)), np.random.default_rng(1).normal(size=4)
    allowed = mask.from_lengths([3, 5], S)
    out, weights = find("pattern")(tensor(x), tensor(u), mask=allowed, return_weights=True)
    want = find("dot")(tensor(np.tile(u, (B, 1, 1))), tensor(x), tensor(x), mask=allowed)
    np.testing.assert_allclose(out.numpy(), want.numpy()[:, 0], rtol=1e-13)
    assert out.shape == (B, 4) and weights.shape == (B, 1, S)
    average = find("pattern")(tensor(x), tensor(np.zeros(4)), mask=allowed).numpy()
    np.testing.assert_allclose(average[0], x[0, :3].mean(0), rtol=1e-12)
    empty = find("pattern")(tensor(x), tensor(u), mask=mask.from_lengths([0, 5], S)).numpy()
    assert not empty[0].any() and empty[1].any()
    with pytest.raises(ShapeError, match=r"^pattern: expected x \(B, S, D\), u \(Q,\), got x \(2, 5, 4\), u \(1, 4\)"):
        find("pattern")(tensor(x), tensor(u[None]))
    with pytest.raises(ShapeError, match=r"^dot: expected q .* got q \(2, 1, 3\)"):
        find("pattern")(tensor(x), tensor(u[:3]))


def test_pattern_with_additive_scores_is_pooling_with_a_hidden_layer():
    """Yang 2016: v_a^T tanh(W x + b), where b = W_q u."""
    x, (_, _, _, p) = np.random.default_rng(0).normal(size=(B, S, 6)), inputs("additive")
    u = np.random.default_rng(1).normal(size=4)
    out = find("pattern")(tensor(x), tensor(u), score="additive", **{n: tensor(a) for n, a in p.items()})
    hidden = linear(tensor(x), tensor(p["w_k"]), tensor(p["w_q"] @ u)).tanh()
    alpha = (hidden @ tensor(p["v_a"])).softmax(-1)                        # (B, S)
    np.testing.assert_allclose(out.numpy(), (alpha.unsqueeze(1) @ tensor(x)).numpy()[:, 0], rtol=1e-12)
