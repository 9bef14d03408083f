"""The decoder with additive attention as one op: against loops, its twin, one thread; and inside the translator."""
import math

import numpy as np
import pytest

from tinyattn import Tensor, device
from tinyattn.autograd import capture, fused, grad, no_grad
from tinyattn.models.seq2seq import Decoder, Seq2Seq
from tinyattn.ops.attention_decoder import AttentionDecoder
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.gru import GRUScan
from tinyattn.program import Program

KINDS = [(reset, update) for reset in ("before", "after") for update in ("write", "keep")]
every_kind = pytest.mark.parametrize("kind", KINDS, ids="-".join)
NAMES = "x", "s0", "h", "k", "w_q", "v", "w_c", "w_hh"


def problem(b, t, s, n, a, e, dtype=np.float64, seed=0):
    """The float inputs, a mask, gradients of both outputs."""
    rng = np.random.default_rng(seed)
    shapes = (b, t, 3 * n), (b, n), (b, s, e), (b, s, a), (a, n), (a,), (3 * n, e), (3 * n, n)
    arrays = [rng.normal(size=shape) / (math.sqrt(shape[-1]) if len(shape) == 2 else 1) for shape in shapes]
    mask = np.arange(s) < rng.integers(1, s + 1, (b, 1, 1))
    return [x.astype(dtype) for x in arrays], mask, [rng.normal(size=(b, t, w)).astype(dtype) for w in (n, e)]


def run(kind, arrays, mask, gs):
    """Both outputs and the gradients of all float inputs, as arrays. (What the last step writes, nobody reads: with one
    step the twin has no gradient for x.)"""
    inputs = [Tensor(a, requires_grad=True) for a in arrays]
    outs = AttentionDecoder(*kind)(*inputs, None if mask is None else Tensor(mask))
    grads = grad(list(outs), inputs, [Tensor(g) for g in gs], allow_unused=True)
    return [o.numpy() for o in outs] + [np.zeros_like(a) if g is None else g.numpy() for a, g in zip(arrays, grads)]


def loops(kind, x, s0, h, k, w_q, v, w_c, w_hh, mask):
    """Sentence by sentence, word by word, unit by unit, from the formulas."""
    def sigmoid(z):
        return 1 / (1 + math.exp(-z))

    (b_end, t_end), n = x.shape[:2], s0.shape[1]
    before, contexts = np.zeros((b_end, t_end, n)), np.zeros((b_end, t_end, h.shape[2]))
    for b in range(b_end):
        state = list(s0[b])
        for t in range(t_end):
            before[b, t] = state
            allowed = [s for s in range(k.shape[1]) if mask is None or mask[b, 0, s]]
            scores = [sum(v[a] * math.tanh(sum(w_q[a, i] * state[i] for i in range(n)) + k[b, s, a]) for a in range(len(v)))
                      for s in allowed]
            total = sum(math.exp(e) for e in scores)
            for s, e in zip(allowed, scores):
                contexts[b, t] += math.exp(e) / total * h[b, s]
            pre = [[x[b, t, g * n + j] + sum(w_c[g * n + j, i] * c for i, c in enumerate(contexts[b, t])) for j in range(n)]
                   for g in range(3)]

            def inner(gate, j, from_):
                return sum(w_hh[gate * n + j, i] * from_[i] for i in range(n))
            r, z = ([sigmoid(pre[g][j] + inner(g, j, state)) for j in range(n)] for g in (0, 1))
            if kind[0] == "after":
                new = [math.tanh(pre[2][j] + r[j] * inner(2, j, state)) for j in range(n)]
            else:
                new = [math.tanh(pre[2][j] + inner(2, j, [p * q for p, q in zip(r, state)])) for j in range(n)]
            z = z if kind[1] == "keep" else [1 - p for p in z]
            state = [z[j] * state[j] + (1 - z[j]) * new[j] for j in range(n)]
    return before, contexts


# ---------------------------------------------------------------------------------------------------------------------
# the op (gradients to order 2, layouts and dtypes stand in test_ops.py, for all ops)
# ---------------------------------------------------------------------------------------------------------------------
@every_kind
def test_by_loops(kind):
    arrays, mask, gs = problem(3, 4, 5, 3, 2, 4)
    for m in (mask, None):
        for found, expected in zip(run(kind, arrays, m, gs), loops(kind, *arrays, m), strict=False):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@every_kind
@pytest.mark.parametrize("size", [(5, 4, 3, 9, 17, 20), (33, 3, 6, 70, 30, 140), (1, 1, 1, 1, 1, 1)])
def test_fused_is_its_twin(kind, size):
    """Values and gradients; a chunk that is not full, widths that do not fill a tile, a sentence without words."""
    if not device.JIT and size[0] > 5:
        pytest.skip("slow without the JIT")
    arrays, mask, gs = problem(*size)
    mask[0] = False
    fast = run(kind, arrays, mask, gs)
    with fused("never"):
        for found, expected in zip(run(kind, arrays, mask, gs), fast, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert not fast[1][0].any() and all(np.isfinite(x).all() for x in fast)


@every_kind
def test_float32_is_as_exact_as_the_twin(kind):
    arrays, mask, gs = problem(4, 7, 6, 20, 20, 40)
    gold = run(kind, arrays, mask, gs)
    arrays, gs = [a.astype(np.float32) for a in arrays], [g.astype(np.float32) for g in gs]
    fast = run(kind, arrays, mask, gs)
    with fused("never"):
        twin = run(kind, arrays, mask, gs)
    for f, t, exact in zip(fast, twin, gold, strict=True):
        assert f.dtype == np.float32
        room = 4 * np.finfo(np.float32).eps * np.abs(exact).max()
        assert np.abs(f - exact).max() <= 3 * np.abs(t - exact).max() + room


def test_one_thread_and_two_give_the_same_bits():
    if not device.JIT or device.get_num_threads() < 2:
        pytest.skip("needs two threads")
    arrays, mask, gs = problem(37, 5, 7, 64, 60, 70, np.float32)
    assert device.PARALLEL_ABOVE < 37 * 5 * 60 * (64 + 70)
    two, threads = run(KINDS[0], arrays, mask, gs), device.get_num_threads()
    try:
        device.set_num_threads(1)
        one = run(KINDS[0], arrays, mask, gs)
    finally:
        device.set_num_threads(threads)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_the_mask_hides_counts_nothing_and_gets_no_gradient():
    arrays, mask, gs = problem(2, 3, 4, 3, 3, 4)
    mask[...] = [True, False, True, False]
    found = run(KINDS[0], arrays, mask, gs)
    for i in (2, 3):
        arrays[i][:, 1::2] = 1e3
        assert not found[2 + i][:, 1::2].any() and found[2 + i][:, ::2].any()
    for a, b in zip(run(KINDS[0], arrays, mask, gs), found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_scores_overflow_nothing(size):
    arrays, mask, gs = problem(2, 2, 4, 3, 3, 4, np.float32)
    arrays[NAMES.index("v")] *= size
    arrays[NAMES.index("k")][:] = [[-9], [9], [0], [1]]
    outs = run(KINDS[0], arrays, mask, gs)
    assert all(np.isfinite(x).all() for x in outs[:2])


def test_only_what_is_asked_for_is_computed():
    arrays, mask, gs = problem(2, 3, 4, 3, 3, 4)
    whole = run(KINDS[0], arrays, mask, gs)[2:]
    for i in range(len(arrays)):
        inputs = [Tensor(a, requires_grad=j == i) for j, a in enumerate(arrays)]
        outs = AttentionDecoder()(*inputs, Tensor(mask))
        found, = grad(list(outs), [inputs[i]], [Tensor(g) for g in gs])
        np.testing.assert_array_equal(found.numpy(), whole[i])


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_types_are_checked(name):
    arrays, mask, _ = problem(2, 3, 4, 3, 5, 6)
    wrong = list(arrays)
    wrong[NAMES.index(name)] = wrong[NAMES.index(name)][..., :-1]
    with pytest.raises(ShapeError, match=r"attention_decoder: expected x \(B,T,3N\).*got x"):
        AttentionDecoder()(*map(Tensor, wrong), Tensor(mask))
    wrong[NAMES.index(name)] = arrays[NAMES.index(name)].astype(np.float32)
    with pytest.raises(TypeError, match=f"attention_decoder: .*{name} float"):
        AttentionDecoder()(*[Tensor(a, dtype=a.dtype) for a in wrong], Tensor(mask))


def test_masks_and_conventions_are_checked():
    arrays, mask, _ = problem(2, 3, 4, 3, 5, 6)
    with pytest.raises(ShapeError, match=r"mask \(2, 4\)"):
        AttentionDecoder()(*map(Tensor, arrays), Tensor(mask[:, 0]))
    with pytest.raises(TypeError, match="a mask is boolean"):
        AttentionDecoder()(*map(Tensor, arrays), Tensor(mask.astype(int)))
    with pytest.raises(ValueError, match="reset"):
        AttentionDecoder(reset="never")
    with pytest.raises(ValueError, match="update"):
        AttentionDecoder(update="always")


# ---------------------------------------------------------------------------------------------------------------------
# inside the translator
# ---------------------------------------------------------------------------------------------------------------------
def sentences():
    rng = np.random.default_rng(2)
    return [Tensor(a) for a in (rng.integers(1, 9, (3, 5)), np.array([5, 2, 4]), rng.integers(1, 9, (3, 4)))]


def names_of(model, *inputs):
    return [i.op for i in Program.of(model(*inputs)).instructions]


def test_the_translator_takes_it_where_it_means_the_same():
    assert names_of(Seq2Seq(9, 9, 4, 3), *sentences()).count("attention_decoder") == 1
    for options in ({"attention": "general"}, {"cell": "lstm"}, {"cell": "rnn"}, {"attention": "none"}):
        assert "attention_decoder" not in names_of(Seq2Seq(9, 9, 4, 3, **options), *sentences())
    with fused("never"):
        assert "attention_decoder" not in names_of(Seq2Seq(9, 9, 4, 3), *sentences())


@every_kind
def test_it_is_the_loop_over_steps(kind, monkeypatch):
    """The same logits, gradients, and weights for pictures."""
    model = Seq2Seq(9, 9, 4, 3)
    model.to(np.float64)
    monkeypatch.setattr(model.decoder, "gru", dict(zip(("reset", "update"), kind)))
    seen = []
    for paths in (Decoder.paper_steps, Decoder.steps):
        monkeypatch.setattr(Decoder, "paper_steps", paths)
        with capture() as taps:
            logits = model(*sentences())
        parameters = list(model.parameters())
        grads = grad(logits.tanh().sum(), parameters)
        seen.append([logits, *grads])
        weights = [np.concatenate([t.numpy() for t in taps[name]], 1) for name in ("scores", "weights")]  # (B, T, S)
        seen[-1] = [t.numpy() for t in seen[-1]] + weights
        assert all(path.endswith(("additive/scores", "additive/mask", "additive/weights")) for path, _ in taps.taps)
        assert weights[1].shape == (3, 4, 5) and np.allclose(weights[1].sum(2), 1) and not weights[1][1, :, 2:].any()
    for one, other in zip(*seen, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_the_paper_has_the_gate_of_reset_before_the_product():
    """The conventions of both halves of the translator, from the graph."""
    program = Program.of(Seq2Seq(9, 9, 4, 3)(*sentences()))
    kinds = [i.attributes for i in program.instructions if i.op in (GRUScan.name, AttentionDecoder.name)]
    assert len(kinds) == 3 and all((k["reset"], k["update"]) == ("before", "write") for k in kinds)


def test_without_recording_it_gives_the_same():
    model = Seq2Seq(9, 9, 4, 3)
    with no_grad():
        quiet = model(*sentences()).numpy()
    np.testing.assert_array_equal(model(*sentences()).numpy(), quiet)
