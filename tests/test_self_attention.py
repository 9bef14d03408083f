"""Self-attention in all its forms against PyTorch, its own identities, and itself word by word with a cache."""
import tracemalloc

import numpy as np
import pytest

from tinyattn import Tensor, grad, random
from tinyattn.attention import find, mask
from tinyattn.attention.cache import Cache
from tinyattn.attention.heads import attend
from tinyattn.attention.linear_attention import BLOCK, feature, running
from tinyattn.attention.properties import leaves
from tinyattn.autograd import capture, enable_grad, fused, no_grad
from tinyattn.nn.attention import MultiHeadAttention
from tinyattn.ops.broadcast import ShapeError

F64 = np.float64
HEADED = ["multi_head", "grouped_query", "multi_query", "linear_attention", "rope", "alibi", "shaw", "distance"]
CACHED = ["multi_head", "grouped_query", "multi_query", "linear_attention", "rope", "alibi"]


def close(a, b, tolerance=1e-10):
    a, b = (x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def example(name, seed=0, **changes):
    """The mechanism and its example as Tensors, without a mask unless one is given."""
    arrays = find(name).part("example")(np.random.default_rng(seed))
    arrays = {k: a for k, a in arrays.items() if k not in ("mask", "causal")}
    return find(name), leaves({**arrays, **changes})


def words(name, B, T, seed=1):
    """x for the example of a mechanism, of another size."""
    D = find(name).part("example")(np.random.default_rng(0))["x"].shape[2]
    return np.random.default_rng(seed).normal(size=(B, T, D))


def with_grads(f, inputs, seed=2):
    """The output of f and the gradients of a random mixture of it in its float inputs."""
    inputs = [Tensor(np.array(a), requires_grad=True) for a in inputs]
    out = f(*inputs)
    found = grad([out], inputs, [Tensor(np.random.default_rng(seed).normal(size=out.shape))], allow_unused=True)
    return [out.numpy(), *(np.zeros(t.shape) if g is None else g.numpy() for g, t in zip(found, inputs, strict=True))]


# ---------------------------------------------------------------------------------------------------------------------
# masks
# ---------------------------------------------------------------------------------------------------------------------
def test_masks_by_hand():
    """Three queries at the places 1, 2, 3 of four keys, and five queries of which the first stands before all keys."""
    by_hand = {"causal": [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
               "forward": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]],
               "backward": [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
               "diagonal": [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]}
    for name, rows in by_hand.items():
        made = getattr(mask, name)(3, 4)
        assert made.dtype == np.bool_ and made.numpy().astype(int).tolist() == rows, name
    assert mask.window(3, 4, before=1).numpy().astype(int).tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert mask.window(2, before=0, after=None).numpy().astype(int).tolist() == [[1, 1], [0, 1]]
    assert mask.causal(3, 1).numpy().astype(int).tolist() == [[0], [0], [1]]
    for T, S in [(1, 1), (4, 2), (0, 3), (3, 0)]:
        np.testing.assert_array_equal(mask.window(T, S, None, 0).numpy(), mask.causal(T, S).numpy())
        np.testing.assert_array_equal((mask.forward(T, S) | mask.backward(T, S)).numpy(), mask.diagonal(T, S).numpy())
        assert mask.causal(T, S).shape == (T, S)
    assert mask.from_lengths([], 3).shape == (0, 1, 3) and mask.from_lengths([0, 0]).shape == (2, 1, 0)


def test_masks_combine():
    both = mask.both(mask.causal(2), mask.from_lengths([1, 2]))
    assert both.numpy().astype(int).tolist() == [[[1, 0], [1, 0]], [[1, 0], [1, 1]]]
    assert mask.both(None, both) is both and mask.both(both, None) is both and mask.both(None, None) is None


def test_wrong_masks():
    for call, message in [(lambda: mask.causal(-1), "mask.causal: expected T and S.*T = -1"),
                          (lambda: mask.window(2, before=-1), "mask.window: expected before"),
                          (lambda: mask.diagonal(2.5), "mask.diagonal.*2.5"),
                          (lambda: mask.from_lengths([3], 2), "between 0 and S = 2, got 3")]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="mask.from_lengths: expected whole numbers.*float64"):
        mask.from_lengths([1.5])
    with pytest.raises(TypeError, match="multi_head: expected a mask of bools.*float64"):
        mask.fit("multi_head", np.ones((2, 2)), 1, 2, 2)
    for shape in [(3,), (2, 3), (3, 1), (3, 1, 4), (2, 2, 4), (2, 2, 3, 4), (1, 2, 2, 3, 4)]:
        with pytest.raises(ShapeError, match=r"rope: expected a mask \(T, S\).*B = 2, T = 3, S = 4, got \("):
            mask.fit("rope", np.ones(shape, bool), 2, 3, 4, 5)
    for shape, fitted in [((3, 4), (3, 4)), ((1, 4), (1, 4)), ((2, 1, 4), (2, 1, 1, 4)), ((1, 3, 4), (1, 1, 3, 4)),
                          ((2, 5, 3, 4), (2, 5, 3, 4))]:
        assert mask.fit("rope", np.ones(shape, bool), 2, 3, 4, 5).shape == fitted
    with pytest.raises(ShapeError, match="got .2, 5, 3, 4."):
        mask.fit("pairwise", np.ones((2, 5, 3, 4), bool), 2, 3, 4)


# ---------------------------------------------------------------------------------------------------------------------
# one head
# ---------------------------------------------------------------------------------------------------------------------
def test_static_every_row_has_the_same_arg_max():
    """Hu 2018 eq. 19. Also: no weight is more than e^2 = 7.39 times another; without the tanh all rows are equal."""
    static, arrays = example("static")
    for seed in range(5):
        arrays["x"] = Tensor(3 * words("static", 2, 6, seed))
        w = static(**arrays, return_weights=True)[1].numpy()
        assert (w.argmax(-1) == w.argmax(-1)[:, :1]).all()
        assert (w.max(-1) / w.min(-1)).max() <= np.exp(2) + 1e-12
        assert not np.allclose(w, w[:, :1])
        plain = static(**arrays, return_weights=True, outer=False)[1].numpy()
        close(plain, np.broadcast_to(plain[:, :1], plain.shape))
    arrays = {"w_1": Tensor([0.0]), "w_2": Tensor([1.0]), "b": Tensor(0.0), "x": Tensor([[[99.0], [-99.0]]])}
    assert static(**arrays, return_weights=True)[1].numpy()[0, 0, 0] == pytest.approx(1 / (1 + np.exp(-2)))


def test_a_tanh_inside_lets_each_word_choose():
    """Eq. 8, with the same ingredients as eq. 19: the arg-max need not be the same."""
    pairwise, arrays = example("pairwise")
    arrays["x"] = Tensor(3 * words("pairwise", 4, 6))
    w = pairwise(**arrays, return_weights=True)[1].numpy()
    assert (w.argmax(-1) != w.argmax(-1)[:, :1]).any()


def test_pairwise_takes_any_score_and_normalises_over_j():
    x = Tensor(words("pairwise", 2, 4))
    general = Tensor(np.random.default_rng(3).normal(size=(3, 3)))
    e = x.numpy() @ general.numpy() @ x.numpy().swapaxes(1, 2)             # e_ij
    expected = np.exp(e) / np.exp(e).sum(2, keepdims=True)
    out, w = find("pairwise")(x, "general", w=general, return_weights=True)
    close(w, expected)
    close(out, expected @ x.numpy())
    close(find("pairwise")(x, lambda q, k: q @ k.transpose()), find("pairwise")(x, "dot"))


def test_rows_of_a_v_are_means_and_those_of_the_printed_a_transposed_v_are_not():
    """Eq. 21 as printed takes A^T. Values in one dimension: a mean lies between the smallest and the largest."""
    function, arrays = example("self_attention", w_v=np.ones((1, 5)))
    arrays["x"] = Tensor(words("self_attention", 3, 6))
    out, a = (t.numpy() for t in function(**arrays, return_weights=True))
    v = arrays["x"].numpy().sum(2, keepdims=True)
    close(a.sum(-1), np.ones((3, 6)))
    close(out, a @ v)
    assert (v.min(1) <= out.min(1)).all() and (out.max(1) <= v.max(1)).all()
    printed = a.swapaxes(1, 2)
    assert np.abs(printed.sum(-1) - 1).max() > 0.3
    moved = [(m @ (v + 10) - m @ v) - 10 for m in (a, printed)]            # a mean moves with its values
    close(moved[0], np.zeros_like(v))
    assert np.abs(moved[1]).max() > 3


def test_order_is_invisible_without_positions():
    function, arrays = example("self_attention")
    x = words("self_attention", 2, 5)
    turn = np.array([3, 0, 4, 1, 2])
    close(function(**{**arrays, "x": Tensor(x[:, turn])}), function(**{**arrays, "x": Tensor(x)}).numpy()[:, turn])


@pytest.mark.parametrize("shape", [(2, 3, 5, 5, 4, 4), (1, 2, 3, 7, 2, 5), (2, 1, 1, 1, 1, 1), (1, 2, 70, 131, 8, 8)])
@pytest.mark.parametrize("masked", ["no", "bools", "causal"])
@pytest.mark.parametrize("wanted", [False, True])
def test_scaled_dot_product_is_pytorchs(shape, masked, wanted):
    """Both paths, the fused one and the one that returns weights; values and gradients."""
    torch = pytest.importorskip("torch")
    B, H, T, S, D, E = shape
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(B, H, n, w)) for n, w in ((T, D), (S, D), (S, E))]
    if masked == "causal" and T != S:  # PyTorch aligns at the start there
        return
    allowed = rng.random((B, 1, T, S)) < 0.6
    allowed[..., 0] = True  # PyTorch gives nan for an empty row
    allowed = allowed if masked == "bools" else None
    mine = with_grads(lambda q, k, v: attend(q, k, v, None if allowed is None else Tensor(allowed), masked == "causal",
                                             return_weights=wanted)[0], inputs)
    ts = [torch.tensor(a, requires_grad=True) for a in inputs]
    out = torch.nn.functional.scaled_dot_product_attention(*ts, None if allowed is None else torch.tensor(allowed),
                                                           is_causal=masked == "causal")
    out.backward(torch.tensor(np.random.default_rng(2).normal(size=out.shape)))
    for a, b in zip(mine, [out.detach(), *(t.grad for t in ts)], strict=True):
        close(a, b.numpy())


# ---------------------------------------------------------------------------------------------------------------------
# several heads
# ---------------------------------------------------------------------------------------------------------------------
def twins(bias, width=8, heads=4, seed=0):
    """Our layer and PyTorch's with the same random weights."""
    torch = pytest.importorskip("torch")
    mine = MultiHeadAttention(width, heads, bias=bias).to(F64)
    rng = np.random.default_rng(seed)
    state = {k: rng.normal(size=a.shape) for k, a in mine.state_dict().items()}
    mine.load_state_dict(state)
    theirs = torch.nn.MultiheadAttention(width, heads, bias=bias, batch_first=True, dtype=torch.float64)
    loaded = {"in_proj_weight": np.concatenate([state[f"{p}_proj.weight"] for p in "qkv"]),
              "out_proj.weight": state["out_proj.weight"]}
    if bias:
        loaded |= {"in_proj_bias": np.concatenate([state[f"{p}_proj.bias"] for p in "qkv"]),
                   "out_proj.bias": state["out_proj.bias"]}
    theirs.load_state_dict({k: torch.tensor(a) for k, a in loaded.items()})
    return mine, theirs, torch


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["plain", "padding", "causal", "pairs", "cross"])
def test_multi_head_is_pytorchs(kind, bias):
    """Output, weights per head, and the gradients of x, memory and every parameter."""
    mine, theirs, torch = twins(bias)
    rng = np.random.default_rng(1)
    x, memory = rng.normal(size=(3, 5, 8)), rng.normal(size=(3, 7 if kind == "cross" else 5, 8))
    lengths = mask.from_lengths([memory.shape[1], 2, 1], memory.shape[1])
    pairs = rng.random((5, 5)) < 0.5
    np.fill_diagonal(pairs, True)
    allowed = {"plain": None, "causal": mask.causal(5), "pairs": Tensor(pairs)}.get(kind, lengths)
    given = {}
    if allowed is not None:  # True = may not be attended to, there
        forbidden = torch.tensor(~allowed.numpy())
        given = {"attn_mask": forbidden} if allowed.ndim == 2 else {"key_padding_mask": forbidden[:, 0]}
    tx, tm = (torch.tensor(a, requires_grad=True) for a in (x, memory))
    keys = tm if kind == "cross" else tx
    ty, tw = theirs(tx, keys, keys, average_attn_weights=False, **given)
    g = rng.normal(size=ty.shape)
    ty.backward(torch.tensor(g))
    for wanted in (False, True):
        mx, mm = (Tensor(a, requires_grad=True) for a in (x, memory))
        mine.zero_grad()
        with capture() as seen:
            result = mine(mx, mm if kind == "cross" else None, allowed, kind == "causal", return_weights=wanted)
        y = result[0] if wanted else result
        y.backward(Tensor(g))
        close(y, ty.detach().numpy())
        close(mx.grad, tx.grad.numpy())
        if kind == "cross":
            close(mm.grad, tm.grad.numpy())
        for w in [*seen["weights"], *result[1:]] if wanted else seen["weights"]:
            assert w.shape == (3, 4, 5, memory.shape[1])
            close(w, tw.detach().numpy())
        grads = {n: p.grad.numpy() for n, p in mine.named_parameters()}
        close(np.concatenate([grads[f"{p}_proj.weight"] for p in "qkv"]), theirs.in_proj_weight.grad.numpy())
        close(grads["out_proj.weight"], theirs.out_proj.weight.grad.numpy())
        if bias:
            close(np.concatenate([grads[f"{p}_proj.bias"] for p in "qkv"]), theirs.in_proj_bias.grad.numpy())
            close(grads["out_proj.bias"], theirs.out_proj.bias.grad.numpy())


def test_weights_are_per_head_and_averaged_on_request():
    mine = MultiHeadAttention(8, 4, kv_heads=2).to(F64)
    x = Tensor(np.random.default_rng(0).normal(size=(2, 3, 8)))
    y, w = mine(x, return_weights=True)
    z, mean = mine(x, return_weights=True, average=True)
    assert w.shape == (2, 4, 3, 3) and not np.allclose(w.numpy()[:, 0], w.numpy()[:, 1])
    close(mean, w.numpy().mean(1))
    close(y, z)


def test_dropout_acts_on_weights_in_training_alone():
    """What is dropped or doubled are the weights; those that are shown and returned sum to 1."""
    function, arrays = example("multi_head", w_v=np.eye(4), w_o=np.eye(4), x=np.ones((2, 4, 4)), w_q=np.zeros((4, 4)),
                               w_k=np.zeros((4, 4)), b_q=np.zeros(4), b_k=np.zeros(4), b_v=np.zeros(4), b_o=np.zeros(4))
    close(function(**arrays, dropout=0.5), np.ones((2, 4, 4)))
    random.manual_seed(1)
    for options in ({}, {"return_weights": True}):
        with capture() as seen:
            result = function(**arrays, dropout=0.5, training=True, **options)
        out = result[0] if options else result
        assert set(np.unique(out.numpy())) <= {0, 0.5, 1, 1.5, 2} and len(np.unique(out.numpy())) > 2
        for w in [*seen["weights"], *result[1:]] if options else seen["weights"]:
            close(w, np.full((2, 2, 4, 4), 0.25))
    layer = MultiHeadAttention(4, 2, dropout=0.9)
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    assert not np.array_equal(layer(x).numpy(), layer(x).numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x).numpy(), layer(x).numpy())


@pytest.mark.parametrize("wanted", [False, True])
def test_shared_keys_are_repeated_weights(wanted):
    """multi_query = grouped_query with one group = multi_head with W_k and W_v repeated; likewise two groups."""
    query, arrays = example("multi_query", x=words("multi_query", 2, 5))
    H = arrays["heads"]
    groups = {k: a for k, a in arrays.items() if k != "heads"}
    repeated = {k: Tensor(np.tile(a.numpy(), (H, 1))) if k in ("w_k", "w_v") else a for k, a in groups.items()}
    for options in ({}, {"causal": True}, {"mask": mask.from_lengths([5, 2])}, {"mask": mask.forward(5)}):
        options = {**options, "return_weights": wanted}
        results = [query(**arrays, **options), find("grouped_query")(**groups, heads=H, groups=1, **options),
                   find("multi_head")(**repeated, heads=H, **options)]
        for other in results[1:]:
            for a, b in zip(*((r if wanted else [r]) for r in (results[0], other)), strict=True):
                close(a, b, 1e-12)
    grouped, arrays = example("grouped_query")
    spread = {**arrays, "w_k": np.repeat(arrays["w_k"].numpy().reshape(2, 2, 5), 3, 0).reshape(12, 5),
              "w_v": np.repeat(arrays["w_v"].numpy(), 3, 0), "b_v": np.repeat(arrays["b_v"].numpy(), 3),
              "b_k": np.repeat(arrays["b_k"].numpy().reshape(2, 2), 3, 0).reshape(12)}
    spread = {k: Tensor(a) if isinstance(a, np.ndarray) else a for k, a in spread.items() if k != "groups"}
    per_head = Tensor(np.random.default_rng(0).random((2, 6, 3, 3)) < 0.6)
    with capture() as seen:
        close(grouped(**arrays, mask=per_head), find("multi_head")(**spread, mask=per_head), 1e-12)
    assert seen["weights"][0].shape == (2, 6, 3, 3) and seen["mask"][0].shape == (2, 6, 3, 3)
    close(*seen["weights"], 1e-12)


def test_nothing_as_large_as_the_scores_is_in_memory():
    """T = 512: 8 heads of T x T would be 16 MB; repeated keys for 8 heads 1 MB each way."""
    layer = MultiHeadAttention(64, 8, kv_heads=1)
    x = Tensor(np.random.default_rng(0).normal(size=(1, 512, 64)).astype(np.float32), requires_grad=True)
    for causal in (False, True):
        layer(x, causal=causal).sum().backward()
        tracemalloc.start()
        layer(x, causal=causal).sum().backward()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4e6


def test_a_query_that_may_attend_to_nothing():
    """Fused, composed, with weights, and where two masks combine: the output is b_o alone, and nothing is sent."""
    rng = np.random.default_rng(0)
    padding = Tensor(np.array([[[True, True, False]], [[False] * 3]]))     # the second sentence is empty
    backward = mask.backward(3)                                            # row 2 sees nothing; row 1 padding alone
    for mode in ("auto", "never", "force"):
        for wanted in (False, True):
            for allowed, dead in [(padding, [[0, 0, 0], [1, 1, 1]]), (padding & backward, [[0, 1, 1], [1, 1, 1]])]:
                function, arrays = example("multi_head", x=words("multi_head", 2, 3))
                with fused(mode):
                    result = function(**arrays, mask=allowed, return_weights=wanted)
                    out, dead = result[0] if wanted else result, np.array(dead, bool)
                    assert (out.numpy()[dead] == arrays["b_o"].numpy()).all()
                    assert not np.allclose(out.numpy()[~dead], arrays["b_o"].numpy())
                    g = rng.normal(size=out.shape)
                    g[~dead] = 0
                    leaf = [arrays[n] for n in ("x", "w_q", "w_k", "w_v", "b_v")]
                    for x in grad(out, leaf, Tensor(g), allow_unused=True):
                        assert x is None or not x.numpy().any()
                    if wanted:
                        assert not result[1].numpy()[np.broadcast_to(dead[:, None], (2, 2, 3))].any()
    layer = MultiHeadAttention(4, 2, bias=False).to(F64)
    assert not layer(np.ones((2, 3, 4)), mask=Tensor(np.zeros((2, 1, 3), bool))).numpy().any()


@pytest.mark.parametrize("name", HEADED)
def test_sizes_zero_and_one_and_scores_of_ten_thousand(name):
    function, arrays = example(name)
    for B, T in [(0, 3), (1, 1), (2, 0), (1, 2)]:
        x = Tensor(words(name, B, T), requires_grad=True)
        y = function(**{**arrays, "x": x})
        assert y.shape[:2] == (B, T) and grad(y, x, Tensor(np.ones(y.shape)))[0].shape == x.shape
    x = Tensor(1e4 * words(name, 2, 4), requires_grad=True)
    y = function(**{**arrays, "x": x})
    (g,) = grad(y, x, Tensor(np.ones(y.shape)))
    assert np.isfinite(y.numpy()).all() and np.isfinite(g.numpy()).all()


@pytest.mark.parametrize("name", HEADED)
def test_inputs_that_do_not_lie_in_order(name):
    function, arrays = example(name)
    x = words(name, 3, 4)
    turned = Tensor._wrap(np.asfortranarray(x), None, 0, False)
    close(function(**{**arrays, "x": turned}), function(**{**arrays, "x": Tensor(x)}), 1e-13)


@pytest.mark.parametrize("name", [*HEADED, "self_attention", "sinusoid", "learned_positions", "static", "pairwise"])
def test_errors_begin_with_the_mechanisms_name(name):
    function, arrays = example(name)
    for change in ({"x": Tensor(np.zeros((2, 3)))}, {"mask": Tensor(np.ones((1, 9), bool))},
                   {"x": Tensor(np.zeros((2, 3, 9)))},
                   {"w_v": Tensor(np.zeros((6, 4, 1)))}, {"heads": 7}, {"heads": 0}, {"w_o": Tensor(np.zeros((5, 9)))}):
        if set(change) <= {*arrays, "mask"} and (name, *change) != ("pairwise", "x"):  # that is the score's to say
            with pytest.raises(ValueError, match=f"^{name}: expected") as error:
                function(**{**arrays, **change})
            assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match=f"{name}: expected a mask of bools"):
        function(**arrays, mask=np.ones((1, arrays["x"].shape[1])))
    for bad in ((8, 3), (8, 4, 3), (8, 0)):
        with pytest.raises(ValueError, match="MultiHeadAttention: expected"):
            MultiHeadAttention(*bad)


# ---------------------------------------------------------------------------------------------------------------------
# linear attention
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("T", [1, 5, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_linear_attention_is_its_quadratic_form(T):
    function, arrays = example("linear_attention", x=words("linear_attention", 2, T))
    lengths = mask.from_lengths([T, (T + 1) // 2])
    for options in ({}, {"causal": True}, {"mask": lengths}, {"mask": lengths, "causal": True}):
        y, w = function(**arrays, **options, return_weights=True)
        close(function(**arrays, **options), y, 1e-12)
        with capture() as seen:
            function(**arrays, **options)
        close(seen["weights"][0], w, 1e-12)
        close(w.sum(-1), np.ones((2, 2, T)))
    fast = with_grads(lambda x: function(**{**arrays, "x": x}, causal=True), [arrays["x"].numpy()])
    slow = with_grads(lambda x: function(**{**arrays, "x": x}, mask=mask.causal(T)), [arrays["x"].numpy()])
    for a, b in zip(fast, slow, strict=True):
        close(a, b, 1e-11)


def test_linear_attention_causal_sums_do_not_look_ahead():
    function, arrays = example("linear_attention")
    x = words("linear_attention", 1, BLOCK + 9)
    before = function(**{**arrays, "x": Tensor(x)}, causal=True).numpy()
    for t in (0, 3, BLOCK - 1, BLOCK, BLOCK + 8):
        later = x.copy()
        later[:, t] += 1
        after = function(**{**arrays, "x": Tensor(later)}, causal=True).numpy()
        np.testing.assert_array_equal(before[:, :t], after[:, :t])
        assert not np.allclose(before[:, t], after[:, t])


def test_the_feature_map_and_the_running_sums_by_hand():
    close(feature(Tensor([-1e4, -1.0, 0.0, 2.0], dtype=F64)), [0, np.exp(-1), 1, 3])
    ones = Tensor(np.ones((1, 1, 3, 1)))
    y, end = running(ones, ones, Tensor(np.array([1.0, 2, 4]).reshape(1, 1, 3, 1)), Tensor(np.full((1, 1, 1, 1), 10.0)))
    assert y.numpy().ravel().tolist() == [11, 13, 17] and end.item() == 17


def test_linear_attention_memory_is_linear():
    w = np.ones((8, 3))
    function, arrays = example("linear_attention", w_q=w, w_k=w, w_v=w, w_o=w.T)
    peaks = []
    for T in (1024, 2048, 4096):
        x = Tensor(words("linear_attention", 1, T), requires_grad=True)
        tracemalloc.start()
        function(**{**arrays, "x": x}, causal=True).sum().backward()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 2.3 * peaks[1] < 2.3 * 2.3 * peaks[0] and peaks[2] < 4096 * 4096 * 8 / 4


# ---------------------------------------------------------------------------------------------------------------------
# decoding step by step
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("steps", [[1] * 9, [4, 1, 3, 1], [9]])
def test_decoding_with_a_cache_is_the_full_forward(name, steps):
    function, arrays = example(name)
    x = words(name, 3, sum(steps))
    options = {} if name == "alibi" else {"causal": True}
    whole = function(**{**arrays, "x": Tensor(x)}, **options)
    cache, done = Cache(capacity=2), 0
    for n in steps:
        with no_grad():
            y = function(**{**arrays, "x": Tensor(x[:, done:done + n])}, cache=cache)
        close(y, whole.numpy()[:, done:done + n], 1e-12)
        done += n
        assert cache.length == done


@pytest.mark.parametrize("name", CACHED)
def test_decoding_with_padding_and_with_beams(name):
    """Row 1 of the batch ignores its first word; in the middle the beams change places."""
    function, arrays = example(name)
    x, allowed = words(name, 2, 6), np.ones((2, 1, 6), bool)
    allowed[1, 0, 0] = False
    options = {} if name == "alibi" else {"causal": True}
    whole = function(**{**arrays, "x": Tensor(x)}, mask=Tensor(allowed), **options).numpy()
    cache, rows = Cache(), np.array([1, 1, 0])
    with no_grad():
        for t in range(3):
            y = function(**{**arrays, "x": Tensor(x[:, t:t + 1])}, mask=Tensor(allowed[:, :, :t + 1]), cache=cache)
            close(y, whole[:, t:t + 1], 1e-12)
        cache.reorder(rows)
        for t in range(3, 6):
            seen = Tensor(allowed[rows, :, :t + 1])
            y = function(**{**arrays, "x": Tensor(x[rows, t:t + 1])}, mask=seen, cache=cache)
            close(y, whole[rows, t:t + 1], 1e-12)


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_refuses_what_it_cannot_do(name):
    function, arrays = example(name)
    with pytest.raises(RuntimeError, match=r"Cache: the new words.*need a gradient.*no_grad\(\)"):
        function(**arrays, cache=Cache())
    cache = Cache()
    with no_grad():
        function(**arrays, cache=cache)
        with pytest.raises(ShapeError, match=f"{name}: expected a mask"):
            function(**arrays, mask=Tensor(np.ones((1, arrays["x"].shape[1]), bool)), cache=cache)
        assert cache.length == arrays["x"].shape[1]  # nothing was added
        other = "multi_head" if name == "linear_attention" else "linear_attention"
        wrong, others = example(other)
        with pytest.raises(ValueError, match="another mechanism"):
            wrong(**others, cache=cache)
        with pytest.raises(ValueError, match="expected"):
            function(**{**arrays, "x": Tensor(words(name, 5, 1))}, cache=cache)
        if "memory" in function.arguments:
            with pytest.raises(ValueError, match=f"{name}: a cache"):
                function(**arrays, memory=arrays["x"], cache=cache)
    if name == "linear_attention":
        for option in ({"return_weights": True}, {"mask": mask.causal(5)}):
            with pytest.raises(ValueError, match="linear_attention: a cache holds two sums"):
                function(**arrays, cache=Cache(), **option)


def test_the_cache_grows_by_doubling_and_keeps_what_it_gave():
    cache, given, memories = Cache(capacity=2), [], set()
    for t in range(40):
        k, v = (Tensor(np.full((2, 1, 1, w), float(t))) for w in (3, 2))
        given.append(cache.append(k, v))
        memories.add(id(cache._buffers[0]))
    assert len(memories) <= 6 and cache._buffers[0].shape == (2, 1, 64, 3) and repr(cache) == "Cache(length=40)"
    for t, (k, v) in enumerate(given, 1):
        assert k.shape == (2, 1, t, 3) and v.shape == (2, 1, t, 2)
        np.testing.assert_array_equal(k.numpy()[1, 0, :, 0], np.arange(t))
        np.testing.assert_array_equal(v.numpy()[0, 0, :, 1], np.arange(t))


def test_wrong_caches():
    cache = Cache()
    k, v = Tensor(np.zeros((2, 1, 3, 4))), Tensor(np.zeros((2, 1, 3, 5)))
    cache.append(k, v)
    for a, b in [(k, Tensor(np.zeros((2, 1, 2, 5)))), (Tensor(np.zeros((3, 4))), v),
                 (k, Tensor(np.zeros((2, 1, 3, 6))))]:
        with pytest.raises(ShapeError, match="Cache.append: expected"):
            cache.append(a, b)
    with pytest.raises(TypeError, match="Cache.append: expected k of float64 as before, got float32"):
        cache.append(k.float(), v.float())
    with pytest.raises(IndexError, match="Cache.reorder: expected rows 0 .. 1, got 0 to 2"):
        cache.reorder([0, 2])
    with pytest.raises(TypeError, match="Cache.reorder: expected whole numbers"):
        cache.reorder([0.5])
    with pytest.raises(ValueError, match="Cache: expected a capacity"):
        Cache(0)
    with enable_grad(), pytest.raises(RuntimeError, match="gradient"):
        cache.append(Tensor(k.numpy(), requires_grad=True), v)
    with pytest.raises(TypeError, match="Cache.state: expected words of float64 as before, got float32"):
        sums = Cache()
        sums.replace(k, 3)
        sums.state(k.shape, np.float32)
    assert cache.length == 3
