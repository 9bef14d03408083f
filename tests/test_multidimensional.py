"""Attention with more than one weight a token: Lin's rows and their penalty, DiSAN's features, CMLA's coupled pair."""
import numpy as np
import pytest

from tinyattn import InputError, Tensor, capture, grad, no_grad
from tinyattn.attention import find, mask, properties
from tinyattn.attention.cmla import cmla
from tinyattn.attention.disan import disan
from tinyattn.attention.properties import leaves
from tinyattn.attention.source2token import source2token
from tinyattn.attention.structured_self import penalty, structured_self
from tinyattn.attention.token2token import token2token
from tinyattn.functional import cross_entropy, linear
from tinyattn.gradcheck import check_function
from tinyattn.ops.broadcast import ShapeError
from tinyattn.optim import Adam


def arrays_of(name, seed=0):
    return find(name).part("example")(np.random.default_rng(seed))


def assert_right(name, arrays):
    """Value against the slow reference, and gradients to second order, on other inputs than the example."""
    report = properties.value(find(name), arrays)
    assert report.ok, str(report)
    names = list(arrays)

    def call(*values):
        return find(name)(**dict(zip(names, values, strict=True)))

    for report in check_function(name, call, list(arrays.values()), 2, 0, names=names):
        assert report.ok, str(report)


# ---------------------------------------------------------------------------------------------------------------------
# structured self-attention and its penalty
# ---------------------------------------------------------------------------------------------------------------------
def test_penalty_of_distinct_one_hot_rows_is_0():
    for scale in ("sum", "mean", "norm"):
        assert penalty(Tensor(np.eye(3, 5)), scale).item() == 0
        assert penalty(Tensor(np.eye(5)[[[4, 0, 2], [1, 3, 0]]]), scale).item() == 0


def test_penalty_of_uniform_rows_in_its_three_scales():
    """5 rows over 10 tokens: A A^T is 0.1 everywhere, so 5 x 0.81 + 20 x 0.01 = 4.25."""
    a = Tensor(np.full((5, 10), 0.1))
    for scale, expected in (("sum", 4.25), ("mean", 0.17), ("norm", 4.25 ** 0.5)):
        assert penalty(a, scale).item() == pytest.approx(expected, rel=1e-12)


def test_penalty_is_the_mean_over_the_batch_and_leaves_padding_out():
    """Uniform over 10 tokens gives 4.25, all rows on one token 20 (overlaps of 1), and padding, A = 0, gives 5."""
    one = np.zeros((5, 10))
    one[:, 3] = 1
    a = Tensor(np.stack([np.full((5, 10), 0.1), one, np.zeros((5, 10))]))
    assert penalty(a[:2]).item() == pytest.approx((4.25 + 20) / 2)
    assert penalty(a).item() == pytest.approx((4.25 + 20 + 5) / 3)
    assert penalty(a, "sum", Tensor([True, True, False])).item() == pytest.approx((4.25 + 20) / 2)
    assert penalty(a, "norm").item() == pytest.approx((4.25 ** 0.5 + 20 ** 0.5 + 5 ** 0.5) / 3)
    assert penalty(Tensor(np.zeros((0, 2, 3)))).item() == 0
    assert penalty(a, "sum", Tensor([False, False, False])).item() == 0


def test_more_rows_than_tokens_cannot_all_be_apart():
    """With 3 rows on 2 tokens at least two share one, so the overlap is there twice: P >= 2 for one-hot rows."""
    best = min(penalty(Tensor(np.eye(2)[[i, j, k]])).item() for i in (0, 1) for j in (0, 1) for k in (0, 1))
    assert best == 2


def test_penalty_compares_rows_not_tokens():
    """Eq. 11 says columns: the penalty of A^T compares tokens with tokens, and is not 0 where every row is alone."""
    a = np.eye(2, 4)
    assert penalty(Tensor(a)).item() == 0 and penalty(Tensor(a.T)).item() == 2  # two tokens that nobody looks at


@pytest.mark.parametrize("scale", ["sum", "mean", "norm"])
def test_penalty_sends_gradients_through_the_weights(scale):
    arrays = arrays_of("structured_self")

    def loss(x, w_1, w_2, mask):
        return penalty(structured_self(x, w_1, w_2, mask, return_weights=True)[1], scale)

    for report in check_function("penalty", loss, [arrays[n] for n in ("x", "w_1", "w_2", "mask")]):
        assert report.ok, str(report)


def test_penalty_errors():
    with pytest.raises(InputError, match="penalty: expected scale to be one of sum, mean, norm, got 'square'"):
        penalty(Tensor(np.eye(2)), "square")
    with pytest.raises(ShapeError, match=r"penalty: expected a \(..., R, T\)"):
        penalty(Tensor(np.zeros((3, 2, 2))), "sum", Tensor([True, False]))


def test_structured_self_is_pytorchs():
    torch = pytest.importorskip("torch")
    a = arrays_of("structured_self")
    x, w_1, w_2 = (torch.tensor(a[n], requires_grad=True) for n in ("x", "w_1", "w_2"))
    scores = (torch.tanh(x @ w_1.T) @ w_2.T).transpose(1, 2).masked_fill(~torch.tensor(a["mask"]), -torch.inf)
    weights = scores.softmax(-1)
    theirs = weights @ x
    gap = weights @ weights.transpose(1, 2) - torch.eye(2, dtype=torch.float64)
    loss = (theirs ** 3).sum() + (gap ** 2).sum((1, 2)).mean()
    loss.backward()
    ours = leaves(a)
    m, w = structured_self(**ours, return_weights=True)
    mine = (m * m * m).sum() + penalty(w)
    np.testing.assert_allclose(m.numpy(), theirs.detach().numpy(), atol=1e-10)
    for g, p in zip(grad(mine, [ours[n] for n in ("x", "w_1", "w_2")]), (x, w_1, w_2), strict=True):
        np.testing.assert_allclose(g.numpy(), p.grad.numpy(), atol=1e-10)


def test_each_row_of_a_is_a_query_of_its_own():
    a = arrays_of("structured_self")
    x, w_1, w_2 = (Tensor(a[n]) for n in ("x", "w_1", "w_2"))
    both = structured_self(x, w_1, w_2).numpy()
    np.testing.assert_array_equal(structured_self(x, w_1, w_2[[1, 0]]).numpy(), both[:, [1, 0]])
    np.testing.assert_allclose(structured_self(x, w_1, w_2[:1]).numpy(), both[:, :1], atol=1e-15)
    a["mask"] = np.array([[[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]], [[1, 0, 0, 0, 0], [1, 1, 1, 0, 1]]], bool)  # one a row
    assert_right("structured_self", a)
    w = structured_self(**leaves(a), return_weights=True)[1].numpy()
    assert (w[~a["mask"]] == 0).all()


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 1, 2), (2, 0, 2)])
def test_structured_self_of_no_sentence_one_token_no_token(shape):
    x, w_1, w_2 = (Tensor(np.random.default_rng(0).normal(size=s)) for s in (shape, (4, 2), (3, 4)))
    m = structured_self(x, w_1, w_2).numpy()
    assert m.shape == (shape[0], 3, 2)
    np.testing.assert_array_equal(m, np.zeros(m.shape) if shape[1] == 0 else np.repeat(x.numpy(), 3, 1)[:, :3])


# ---- does the penalty do what it is for?
V, T, UNITS = 8, 6, 8


def sentences(rng, n):
    """Fillers 4 .. 7, one of the tokens 0, 1 and one of 2, 3 at any places: four classes, two tokens to be found."""
    ids, label = rng.integers(4, V, size=(n, T)), rng.integers(0, 2, size=(n, 2))
    for row, (first, second) in zip(ids, label, strict=True):
        i, j = rng.choice(T, 2, replace=False)
        row[i], row[j] = first, 2 + second
    return Tensor(np.eye(V)[ids]), label[:, 0] * 2 + label[:, 1]


def trained(strength, seed):
    """(accuracy, mean cosine of the two rows of A) on fresh sentences, trained with `strength` times the penalty."""
    rng, shapes = np.random.default_rng(seed), ((UNITS, V), (2, UNITS), (4, 2 * V), (4,))
    w_1, w_2, w, b = (Tensor(0.02 * rng.normal(size=s), requires_grad=True) for s in shapes)

    def run(x):
        m, a = structured_self(x, w_1, w_2, return_weights=True)
        return linear(m.reshape(len(x), 2 * V), w, b), a

    optimiser = Adam([w_1, w_2, w, b], lr=0.03)
    for _ in range(250):
        x, y = sentences(rng, 32)
        logits, a = run(x)
        loss = cross_entropy(logits, y) + strength * penalty(a)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, y = sentences(rng, 200)
    with no_grad():
        logits, a = run(x)
    a = a.numpy()
    cosine = (a[:, 0] * a[:, 1]).sum(-1) / np.sqrt((a ** 2).sum(-1).prod(-1))
    return (logits.numpy().argmax(-1) == y).mean(), cosine.mean()


@pytest.mark.parametrize("seed", [0, 3])
def test_rows_collapse_without_the_penalty_and_not_with_it(seed):
    """Both learn the task. Without it both rows are the same, half on each marked token; with it each has its own."""
    accuracy, overlap = trained(0.0, seed)
    assert accuracy > 0.97 and overlap > 0.95
    accuracy, overlap = trained(1.0, seed)
    assert accuracy > 0.97 and overlap < 0.05


# ---------------------------------------------------------------------------------------------------------------------
# feature-wise attention
# ---------------------------------------------------------------------------------------------------------------------
def test_scores_are_bounded_by_c_whatever_the_input():
    a = arrays_of("token2token")
    for scale, c in ((1, 5.0), (1e3, 5.0), (1e3, 0.5)):
        with capture() as seen:
            out = token2token(Tensor(a["x"] * scale), *(Tensor(a[n]) for n in ("w_1", "w_2", "b")), c=c)
        scores = seen["scores"][0].numpy()
        assert np.abs(scores).max() <= c and np.isfinite(out.numpy()).all()
        assert scale == 1 or np.abs(scores).max() > 0.99 * c


def test_every_feature_has_weights_of_its_own():
    """P differs by feature, each feature sums to 1, and feature d of the output is feature d of P on feature d of x."""
    a = arrays_of("token2token")
    out, p = token2token(**leaves(a), return_weights=True)
    p = p.numpy()                                                          # (B, D, T, T)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-12)
    assert min(np.abs(p[:, d] - p[:, e]).max() for d, e in ((0, 1), (0, 2), (1, 2))) > 0.05
    np.testing.assert_allclose(out.numpy(), np.einsum("bdts,bsd->btd", p, a["x"]), atol=1e-12)
    mixed = find("token2token")(**leaves({**a, "x": np.roll(a["x"], 1, -1)})).numpy()
    assert np.abs(mixed - np.roll(out.numpy(), 1, -1)).max() > 0.05        # features are not alike


def test_c_is_inside_the_tanh_and_outside():
    """For a very large c the bound is not felt: scores are W_1 x_j + W_2 x_i + b themselves, and the query cancels."""
    a = arrays_of("token2token")
    w_1, w_2, b = (Tensor(a[n]) for n in ("w_1", "w_2", "b"))
    wide = token2token(Tensor(a["x"]), w_1, w_2, b, c=1e5, return_weights=True)[1].numpy()
    plain = np.exp(a["x"] @ a["w_1"].T)
    plain = (plain / plain.sum(1, keepdims=True)).transpose(0, 2, 1)       # (B, D, S)
    np.testing.assert_allclose(wide, np.broadcast_to(plain[:, :, None], wide.shape), atol=1e-8)
    for bad in (0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="token2token: expected a finite c > 0"):
            token2token(Tensor(a["x"]), w_1, w_2, b, c=bad)


def test_fused_and_returned_weights_take_the_same_gradients():
    for name in ("token2token", "disan"):
        a, found = arrays_of(name), []
        for whole in (False, True):
            tensors = leaves(a)
            out = find(name)(**tensors, return_weights=whole)
            out = out[0] if whole else out
            g = Tensor(np.random.default_rng(1).normal(size=out.shape))
            floats = [t for t in tensors.values() if isinstance(t, Tensor) and t.requires_grad]
            found.append([out.numpy(), *(x.numpy() for x in grad(out, floats, g))])
        for mine, twin in zip(*found, strict=True):
            np.testing.assert_allclose(mine, twin, atol=1e-11)


def test_source2token_without_scores_is_the_mean_and_b2_cancels():
    a = arrays_of("source2token")
    x = a["x"]
    s = find("source2token")(**leaves({**a, "w_2": np.zeros((3, 5))})).numpy()
    np.testing.assert_allclose(s, [x[0].mean(0), x[1, :2].mean(0)], atol=1e-12)
    moved = find("source2token")(**leaves({**a, "b_2": a["b_2"] + np.array([3.0, -2.0, 50.0])})).numpy()
    np.testing.assert_allclose(moved, find("source2token")(**leaves(a)).numpy(), atol=1e-12)
    p = source2token(**leaves(a), return_weights=True)[1].numpy()          # (B, D, 1, T)
    assert np.abs(p[:, 0] - p[:, 1]).max() > 0.05 and (p[1, :, :, 2:] == 0).all()
    third = Tensor(np.arange(4) == 2).reshape(1, 4)
    one = source2token(*(Tensor(a[n]) for n in ("x", "w_1", "b_1", "w_2", "b_2")), third)
    np.testing.assert_array_equal(one.numpy(), x[:, 2])


def gate_only(h, a):
    """What the gate makes of a token that saw nothing."""
    return h / (1 + np.exp(-(h @ a["w_f1"].T + a["b_f"])))


@pytest.mark.parametrize("direction, lonely", [("forward", 0), ("backward", -1)])
def test_disan_token_that_sees_nothing_is_the_gate_alone(direction, lonely):
    a = {**arrays_of("disan"), "mask": None, "direction": direction}
    z = a["x"] @ a["w_h"].T + a["b_h"]
    h = np.where(z > 0, z, np.exp(np.minimum(z, 0)) - 1)
    u, weights = find("disan")(**leaves(a), return_weights=True)
    np.testing.assert_allclose(u.numpy()[:, lonely], gate_only(h, a)[:, lonely], atol=1e-12)
    assert (weights.numpy()[:, :, lonely] == 0).all()
    np.testing.assert_allclose(np.delete(weights.numpy().sum(-1), lonely % 4, -1), 1, atol=1e-12)
    assert np.abs(u.numpy() - gate_only(h, a))[:, 1:3].max() > 0.01        # the others see something


@pytest.mark.parametrize("direction", ["forward", "backward", "diagonal"])
def test_disan_directions(direction):
    a = {**arrays_of("disan", 1), "direction": direction}
    assert_right("disan", a)
    weights = find("disan")(**leaves({**a, "mask": None}), return_weights=True)[1].numpy()
    i, j = np.indices((4, 4))
    allowed = {"forward": j < i, "backward": j > i, "diagonal": j != i}[direction]
    assert (weights[:, :, ~allowed] == 0).all() and (weights[:, :, allowed] > 0).all()


def test_backward_is_forward_read_from_the_other_end():
    a = {**arrays_of("disan"), "mask": None}
    forward = find("disan")(**leaves(a)).numpy()
    backward = find("disan")(**leaves({**a, "x": a["x"][:, ::-1], "direction": "backward"})).numpy()
    np.testing.assert_allclose(forward, backward[:, ::-1], atol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "diagonal"])
def test_disan_is_the_same_in_pytorch(direction):
    torch = pytest.importorskip("torch")
    a = {**arrays_of("disan", 2), "direction": direction}
    p = {n: torch.tensor(v, requires_grad=v.dtype.kind == "f") for n, v in a.items() if isinstance(v, np.ndarray)}
    h = torch.nn.functional.elu(p["x"] @ p["w_h"].T + p["b_h"])
    f = 5 * torch.tanh(((h @ p["w_1"].T)[:, None] + (h @ p["w_2"].T)[:, :, None] + p["b"]) / 5)  # (B, T, S, D)
    i, j = np.indices((4, 4))
    seen = torch.tensor(j < i if direction == "forward" else j != i) & p["mask"]
    weights = torch.nan_to_num(f.masked_fill(~seen[..., None], -torch.inf).softmax(2)) * seen[..., None]
    s = (weights * h[:, None]).sum(2)
    gate = torch.sigmoid(h @ p["w_f1"].T + s @ p["w_f2"].T + p["b_f"])
    theirs = gate * h + (1 - gate) * s
    np.testing.assert_allclose(find("disan")(**leaves(a)).numpy(), theirs.detach().numpy(), atol=1e-10)


@pytest.mark.parametrize("name", ["token2token", "source2token", "disan"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 1), (2, 0)])
def test_feature_wise_attention_of_no_sentence_one_token_no_token(name, shape):
    a = arrays_of(name)
    x = np.random.default_rng(3).normal(size=(*shape, a["x"].shape[2]))
    out = find(name)(**leaves({**a, "x": x, "mask": None})).numpy()
    assert len(out) == shape[0] and np.isfinite(out).all()
    if shape[1] == 1 and name != "disan":
        np.testing.assert_allclose(out.reshape(x.shape), x, atol=1e-15)


def test_feature_wise_errors():
    x, w, b = Tensor(np.zeros((2, 4, 3))), Tensor(np.zeros((3, 3))), Tensor(np.zeros(3))
    with pytest.raises(ShapeError, match=r"token2token: expected x \(B, T, D\), w_1 \(D, D\)"):
        token2token(x, Tensor(np.zeros((2, 3))), w, b)
    with pytest.raises(ShapeError, match=r"source2token: expected x \(B, T, D\), w_1 \(A, D\)"):
        source2token(x, w, Tensor(np.zeros(2)), w, b)
    with pytest.raises(ShapeError, match="source2token: expected a mask"):
        source2token(x, w, b, w, b, mask.causal(4))
    with pytest.raises(InputError, match="expected direction to be one of forward, backward, diagonal, got 'up'"):
        disan(x, w, b, w, w, b, w, w, b, direction="up")
    with pytest.raises(ShapeError, match=r"disan: expected x \(B, T, D\), w_h \(U, D\)"):
        disan(x, w, b, w, w, b, w, w, Tensor(np.zeros(4)))
    with pytest.raises(ShapeError, match=r"structured_self: expected x \(B, T, D\), w_1 \(A, D\), w_2 \(R, A\)"):
        structured_self(x, w, Tensor(np.zeros((2, 4))))


# ---------------------------------------------------------------------------------------------------------------------
# CMLA
# ---------------------------------------------------------------------------------------------------------------------
def larger(seed=0, B=2, T=3, K=2, D=3):
    """Inputs with K = 2 and no mask."""
    rng, C = np.random.default_rng(seed), 2 * K
    shapes = {"x": (B, T, D), "own": (2, K, D, D), "crossed": (2, K, D, D), "u": (2, D), "m": (2, D, D), "v": (2, C),
              "r0": (2, C), "w_ih": (2, 3 * C, C), "w_hh": (2, 3 * C, C)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("layers, tanh", [(1, True), (2, False), (3, True)])
def test_cmla_in_its_forms(layers, tanh):
    report = properties.value(find("cmla"), {**larger(), "mask": None, "layers": layers, "tanh": tanh})
    assert report.ok, str(report)


def test_crossed_terms_couple_the_two_sides():
    """Without them the aspects are a model of their own: nothing of the opinions' prototype reaches them."""
    for size in (0.0, 1.0):
        a = leaves({k: v * (size if k == "crossed" else 1) for k, v in larger().items()})
        aspects = cmla(**a, layers=3)[:, 0]
        g_u, g_v = grad((aspects * aspects).sum(), [a["u"], a["v"]])
        assert np.abs(g_u.numpy()[0]).max() > 1e-3
        assert (np.abs(g_u.numpy()[1]).max() > 1e-3) == (np.abs(g_v.numpy()[1]).max() > 1e-6) == bool(size)


def test_the_sides_have_tensors_of_their_own_and_swap_roles():
    a = larger()
    both = cmla(**leaves(a)).numpy()
    swapped = cmla(**leaves({k: v if k == "x" else v[::-1] for k, v in a.items()})).numpy()
    np.testing.assert_allclose(swapped, both[:, ::-1], atol=1e-12)
    assert np.abs(both[:, 0] - both[:, 1]).max() > 0.1


def test_prototypes_move_by_the_printed_rule():
    """u <- tanh(u^T M) + sum alpha x, the residue outside the tanh: layer 2 alone, started from there by hand."""
    a = larger(B=1)
    _, weights = cmla(**leaves(a), layers=1, return_weights=True)
    alpha = weights.numpy()[0, 0]                                          # (2, T)
    moved = np.array([np.tanh(a["u"][p] @ a["m"][p]) + alpha[p] @ a["x"][0] for p in (0, 1)])
    first, second = cmla(**leaves(a), layers=1).numpy(), cmla(**leaves({**a, "u": moved}), layers=1).numpy()
    np.testing.assert_allclose(cmla(**leaves(a), layers=2).numpy(), first + second, atol=1e-12)


def test_the_grus_update_gate_writes():
    """With all its weights 0 the gates are 1/2 and the candidate is 0: r halves at each word, whatever the scores."""
    a = {**larger(), "w_ih": np.zeros((2, 12, 4)), "w_hh": np.zeros((2, 12, 4))}
    out = cmla(**leaves(a), layers=2).numpy()
    for t in range(3):
        np.testing.assert_allclose(out[:, :, t], np.broadcast_to(2 * a["r0"] * 0.5 ** (t + 1), (2, 2, 4)), atol=1e-15)


def test_tanh_is_on_the_scores_before_the_gru():
    """Scores of +-1e3 are +-1 to a GRU behind the tanh, and saturate one that reads them raw."""
    a = larger()
    a["w_hh"] = a["w_hh"] * 0
    large = {**a, "x": a["x"] * 1e6}
    signs = np.sign(np.concatenate([np.einsum("pkde,pe,btd->bptk", a[n], u, a["x"]) for n, u in
                                    (("own", a["u"]), ("crossed", a["u"][::-1]))], -1))  # (B, 2, T, C)
    gates = np.einsum("pgc,bptc->bptg", a["w_ih"], signs)
    write, new = 1 / (1 + np.exp(-gates[..., 4:8])), np.tanh(gates[..., 8:])
    first = (1 - write[:, :, 0]) * a["r0"] + write[:, :, 0] * new[:, :, 0]
    np.testing.assert_allclose(cmla(**leaves(large), layers=1).numpy()[:, :, 0], first, atol=1e-9)
    assert np.abs(cmla(**leaves(large), layers=1, tanh=False).numpy()[:, :, 0] - first).max() > 0.1


def test_a_padded_sentence_is_the_sentence_alone():
    a = larger(T=4)
    padded = cmla(**leaves(a), mask=mask.from_lengths([4, 2], 4)).numpy()
    alone = cmla(**leaves({**a, "x": a["x"][1:, :2]})).numpy()
    np.testing.assert_allclose(padded[1:, :, :2], alone, atol=1e-12)
    assert (padded[1, :, 2:] == 0).all()


@pytest.mark.parametrize("B, T", [(0, 3), (2, 1), (2, 0)])
def test_cmla_of_no_sentence_one_word_no_word(B, T):
    out = cmla(**leaves(larger(B=B, T=T)))
    assert out.shape == (B, 2, T, 4) and np.isfinite(out.numpy()).all()


def test_cmla_errors():
    a = leaves(larger())
    with pytest.raises(ValueError, match="cmla: expected at least one layer"):
        cmla(**a, layers=0)
    with pytest.raises(ValueError, match="cmla: expected a mask that is True from the start"):
        cmla(**a, mask=Tensor(np.array([[[True, False, True]]] * 2)))
    with pytest.raises(ShapeError, match=r"cmla: expected x \(B, T, D\), own \(2, K, D, D\)"):
        cmla(**{**a, "u": a["m"]})
    with pytest.raises(ShapeError, match="cmla: expected C = 2 K"):
        cmla(**{**a, "own": a["own"][:, :1], "crossed": a["crossed"][:, :1]})
