"""Structured inference against enumeration: every path of a chain, every projective tree. See `ops/linear_chain.py`."""
import itertools
import math

import numpy as np
import pytest

from tinyattn import device
from tinyattn.autograd import fused, grad, no_grad
from tinyattn.gradcheck import gradcheck, gradgradcheck
from tinyattn.ops import linear_chain, sum_product
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.eisner import Eisner
from tinyattn.ops.linear_chain import LinearChain
from tinyattn.tensor import Tensor

INF = math.inf
MODES = ["force", "never"]


# ---------------------------------------------------------------------------------------------------------------------
# enumeration
# ---------------------------------------------------------------------------------------------------------------------
def paths(T, C):
    """For every path the list of its parts: ("u", t, c) and ("w", i, j)."""
    for z in itertools.product(range(C), repeat=T):
        yield [("u", t, c) for t, c in enumerate(z)] + [("w", i, j) for i, j in itertools.pairwise(z)]


def head_vectors(N):
    """Every choice of a head for each of N words that is a tree: -1 is the root. All words lead to the root."""
    for heads in itertools.product(range(-1, N), repeat=N):
        def reaches_root(d, heads=heads):
            for _ in range(N):
                d = heads[d]
                if d == -1:
                    return True
            return False
        if all(reaches_root(d) for d in range(N)):
            yield heads


def is_projective(heads):
    """Each word between a head and its dependent descends from that head."""
    for d, h in enumerate(heads):
        for between in range(min(h, d) + 1, max(h, d)) if h >= 0 else ():
            while between not in (h, -1):
                between = heads[between]
            if between == -1:
                return False
    return True


def trees(N, single_root):
    """For every projective tree the list of its parts: ("p", h, d) and ("r", 0, d)."""
    for heads in head_vectors(N):
        if is_projective(heads) and (not single_root or heads.count(-1) == 1):
            yield [("r", 0, d) if h == -1 else ("p", h, d) for d, h in enumerate(heads)]


def enumerate_all(structures, scores, g=None, g_logz=0.0):
    """(marginals, log Z, gradients) by visiting each structure. scores and g: {letter: matrix}. The gradient of
    sum_b g_b p_b at score a is sum_b g_b (P(a and b) - p_a p_b) = E[n_a G] - p_a E[G], G the sum of g in one."""
    structures = list(structures)
    totals = [sum(float(scores[k][i, j]) for k, i, j in s) for s in structures]
    high = max(totals, default=-INF)
    if high == -INF:
        nothing = {k: np.zeros(x.shape) for k, x in scores.items()}
        return nothing, -INF, nothing
    weights = [math.exp(t - high) for t in totals]
    Z = math.fsum(weights)
    p, mixed = ({k: np.zeros(x.shape) for k, x in scores.items()} for _ in range(2))
    mean = 0.0
    for s, weight in zip(structures, weights, strict=True):
        G = sum(float(g[k][i, j]) for k, i, j in s if k in g) if g else 0.0
        mean += weight / Z * G
        for k, i, j in s:
            p[k][i, j] += weight / Z
            mixed[k][i, j] += weight / Z * G
    return p, high + math.log(Z), {k: mixed[k] - p[k] * mean + g_logz * p[k] for k in p}


def run(op, arrays, lengths=None, gs=None, mode="auto", create_graph=False):
    """(outputs, gradients) of one call as arrays; gs are the gradients that arrive at the outputs."""
    ts = [Tensor(a, requires_grad=True) for a in arrays]
    with fused(mode):
        outs = op(*ts, None if lengths is None else Tensor(np.array(lengths)))
    if gs is None:
        return [o.numpy() for o in outs], None
    pairs = [(o, Tensor(np.asarray(g, o.dtype))) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
    found = grad([o for o, _ in pairs], ts, [g for _, g in pairs], create_graph=create_graph, allow_unused=True)
    grads = [np.zeros(t.shape) if d is None else d.numpy() for d, t in zip(found, ts, strict=True)]
    return [o.numpy() for o in outs], grads


def chain_arrays(B, T, C, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return ([rng.normal(size=(B, T, C)) * scale, rng.normal(size=(C, C)) * scale],
            [rng.normal(size=(B, T, C)), rng.normal(size=B)])


def tree_arrays(B, N, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return ([rng.normal(size=(B, N, N)) * scale, rng.normal(size=(B, N)) * scale],
            [rng.normal(size=(B, N, N)), rng.normal(size=(B, N)), rng.normal(size=B)])


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------------------------------
# the chain
# ---------------------------------------------------------------------------------------------------------------------
def test_chain_by_hand():
    """Paths 00, 01, 10, 11 weigh 1*1*3, 1*5*1, 2*1*3, 2*1*1: Z = 16."""
    u, w = np.log([[[1.0, 2.0], [3.0, 1.0]]]), np.log([[1.0, 5.0], [1.0, 1.0]])
    (p, logz), _ = run(LinearChain(), [u, w])
    close(p, [[[8 / 16, 8 / 16], [9 / 16, 7 / 16]]])
    close(logz, [math.log(16)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("T, C", [(1, 2), (2, 3), (3, 1), (5, 3), (8, 2), (3, 9)])
def test_chain_is_the_sum_over_all_paths(T, C, mode):
    (u, w), (g, g_logz) = chain_arrays(2, T, C)
    (p, logz), (du, dw) = run(LinearChain(), [u, w], None, [g, g_logz], mode)
    dw_expected = np.zeros((C, C))
    for b in range(2):
        marginals, total, slopes = enumerate_all(paths(T, C), {"u": u[b], "w": w}, {"u": g[b]}, g_logz[b])
        close(p[b], marginals["u"])
        close(logz[b], total)
        close(du[b], slopes["u"])
        dw_expected += slopes["w"]
    close(dw, dw_expected)


def test_chain_counts_each_unary_score_once():
    """The potential as Kim et al. print it, theta_i + theta_i+1 + b an edge, is another model, and it would be seen."""
    (u, w), _ = chain_arrays(1, 4, 2)
    once, _, _ = enumerate_all(paths(4, 2), {"u": u[0], "w": w})
    twice, _, _ = enumerate_all(paths(4, 2), {"u": u[0] * [[1], [2], [2], [1]], "w": w})
    (p, _), _ = run(LinearChain(), [u, w])
    close(p[0], once["u"])
    assert np.abs(p[0] - twice["u"]).max() > 0.01


@pytest.mark.parametrize("mode", MODES)
def test_chain_marginals_are_the_gradient_of_log_z(mode):
    (u, w), (g, _) = chain_arrays(3, 6, 4)
    (p, _), (du, _) = run(LinearChain(), [u, w], [6, 2, 0], [np.zeros_like(g), np.ones(3)], mode)
    close(p, du)
    close(p.sum(-1), [[1] * 6, [1, 1, 0, 0, 0, 0], [0] * 6])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind, through_table", [("plain", 0), ("large u", 0), ("wide w", 3), ("forbidden", 0),
                                                 ("forbidden and large u", 1), ("nothing but forbidden", 3)])
def test_chain_by_matrices_and_by_table(kind, through_table, dtype, monkeypatch):
    """Plain numbers where they are safe, the table elsewhere, with the same result. `through_table` of 3 go there."""
    (u, w), (g, g_logz) = chain_arrays(3, 4, 3)
    if kind == "large u":
        u *= 3000
    if kind == "wide w":
        w *= 200
    if "forbidden" in kind:
        w[0, 1] = w[2, 2] = -INF
    if kind == "forbidden and large u":
        u[1, 1] = [0, -5000, 0]  # state 1 is hopeless at t = 1, but state 2 cannot be had at t = 2 but from it or 0
        u[1, 2] = [-9000, -9000, 0]
    if kind == "nothing but forbidden":
        w[:] = -INF
    u, w, g, g_logz = (x.astype(dtype) for x in (u, w, g, g_logz))
    seen = []
    monkeypatch.setattr(linear_chain, "infer", lambda x, *rest: seen.append(len(x)) or sum_product.infer(x, *rest))
    (p, logz), (du, dw) = run(LinearChain(), [u, w], None, [g, g_logz])
    assert sum(seen) == through_table
    expected = [enumerate_all(paths(4, 3), {"u": u[b], "w": w}, {"u": g[b]}, float(g_logz[b])) for b in range(3)]
    tolerance = 1e-12 if dtype == np.float64 and "large" not in kind else 1e-9 if dtype == np.float64 else 1e-6
    for b, (marginals, total, slopes) in enumerate(expected):
        close(p[b], marginals["u"], tolerance)
        close(logz[b], total, tolerance)
        close(du[b], slopes["u"], 10 * tolerance)
    close(dw, sum(slopes["w"] for _, _, slopes in expected), 10 * tolerance)


def test_chain_is_pytorchs():
    torch = pytest.importorskip("torch")
    arrays, (g, g_logz) = chain_arrays(2, 30, 5)
    u, w = (torch.tensor(a, requires_grad=True) for a in arrays)
    forward = u[:, 0]
    for t in range(1, 30):
        forward = u[:, t] + torch.logsumexp(forward[:, :, None] + w, 1)
    logz = torch.logsumexp(forward, 1)
    (p,) = torch.autograd.grad(logz.sum(), u, create_graph=True)
    ((p * torch.tensor(g)).sum() + (logz * torch.tensor(g_logz)).sum()).backward()
    outs, grads = run(LinearChain(), arrays, None, [g, g_logz])
    for mine, theirs in zip([*outs, *grads], [p.detach(), logz.detach(), u.grad, w.grad], strict=True):
        close(mine, theirs.numpy(), 1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# trees
# ---------------------------------------------------------------------------------------------------------------------
def test_the_enumerator():
    """How many projective trees there are is known: with one word at the root 1, 2, 7, 30; with any 1, 3, 12, 55."""
    assert [len(list(trees(N, True))) for N in (1, 2, 3, 4)] == [1, 2, 7, 30]
    assert [len(list(trees(N, False))) for N in (1, 2, 3, 4)] == [1, 3, 12, 55]
    assert len(list(head_vectors(4))) == 125  # (N+1)^(N-1), Cayley
    crossing = (2, 3, -1, 2)
    assert crossing in head_vectors(4) and not is_projective(crossing)


@pytest.mark.parametrize("N", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("single_root", [True, False])
def test_log_z_counts_the_trees(N, single_root):
    (_, _, logz), _ = run(Eisner(single_root), [np.zeros((1, N, N)), np.zeros((1, N))])
    assert math.exp(logz[0]) == pytest.approx([1, 2, 7, 30, 143][N - 1] if single_root else [1, 3, 12, 55, 273][N - 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("N", [1, 2, 3, 4])
def test_eisner_is_the_sum_over_all_projective_trees(N, single_root, mode):
    (theta, root), (gp, gr, g_logz) = tree_arrays(2, N)
    (p, r, logz), (d_theta, d_root) = run(Eisner(single_root), [theta, root], None, [gp, gr, g_logz], mode)
    for b in range(2):
        scores, g = {"p": theta[b], "r": root[b][None]}, {"p": gp[b], "r": gr[b][None]}
        marginals, total, slopes = enumerate_all(trees(N, single_root), scores, g, g_logz[b])
        close(p[b], marginals["p"])
        close(r[b], marginals["r"][0])
        close(logz[b], total)
        close(d_theta[b], slopes["p"])
        close(d_root[b], slopes["r"][0])
    assert not p[:, range(N), range(N)].any() and not d_theta[:, range(N), range(N)].any()


@pytest.mark.parametrize("single_root", [True, False])
def test_every_word_has_one_head(single_root):
    (theta, root), _ = tree_arrays(3, 17, scale=3.0)
    (p, r, _), _ = run(Eisner(single_root), [theta, root])
    close(p.sum(1) + r, np.ones((3, 17)))
    assert (p >= 0).all() and p.max() <= 1 + 1e-12
    if single_root:
        close(r.sum(1), np.ones(3))
    else:
        assert (r.sum(1) > 1).all()


@pytest.mark.parametrize("single_root", [True, False])
def test_eisner_is_its_twin_on_longer_sentences(single_root):
    arrays, gs = tree_arrays(3, 8)
    for a, b in zip(*[sum(run(Eisner(single_root), arrays, [8, 5, 7], gs, mode), []) for mode in MODES], strict=True):
        close(a, b, 1e-11)


def test_root_symbol_as_first_token():
    """Kim's form: scores s over N + 1 tokens, the first of which is the root symbol, which has no head."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(1, 4, 4))
    (p, r, _), _ = run(Eisner(single_root=False), [s[:, 1:, 1:], s[:, 0, 1:]])
    weights, marginals = 0.0, np.zeros((4, 4))
    for heads in itertools.product(range(4), repeat=3):
        heads = (None, *heads)
        arcs = [(heads[d], d) for d in (1, 2, 3)]
        crossing = any(min(a) < min(b) < max(a) < max(b) for a in arcs for b in arcs)
        chains = [d for d in (1, 2, 3) if 0 in (heads[d], heads[heads[d]] if heads[d] else 0,
                                                 heads[heads[heads[d]]] if heads[d] and heads[heads[d]] else 0)]
        if not crossing and len(chains) == 3:
            weight = math.exp(sum(s[0, h, d] for h, d in arcs))
            weights += weight
            for arc in arcs:
                marginals[arc] += weight
    close(p[0], marginals[1:, 1:] / weights)
    close(r[0], marginals[0, 1:] / weights)


# ---------------------------------------------------------------------------------------------------------------------
# both
# ---------------------------------------------------------------------------------------------------------------------
CASES = [pytest.param(LinearChain, {}, chain_arrays, (3,), id="chain"),
         pytest.param(Eisner, {"single_root": True}, tree_arrays, (), id="one root"),
         pytest.param(Eisner, {"single_root": False}, tree_arrays, (), id="several")]


@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_whole_jacobian(cls, attributes, make, width):
    arrays, _ = make(1, 3, *width)

    def call(a, b):
        return cls(**attributes)(a, b, None)

    gradcheck(call, arrays, mode="full").raise_if_wrong()
    gradgradcheck(call, [a[..., :2] if a.ndim == 3 else a[:2, :2] for a in arrays] if width else arrays,
                  mode="full").raise_if_wrong()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_padding_equals_each_alone(cls, attributes, make, width, mode):
    lengths = [4, 1, 0, 3, 4, 2, 2, 1, 4, 3, 0]  # more than one group of lanes
    arrays, gs = make(len(lengths), 4, *width)
    outs, grads = run(cls(**attributes), arrays, lengths, gs, mode)
    own = [len(a) == len(lengths) for a in arrays]  # w of the chain belongs to all
    total = [np.zeros_like(a) for a in arrays]

    def cut(x, b, n):
        return x[b:b + 1][(slice(None), *(slice(n),) * (1 if width else x.ndim - 1))] if x.ndim > 1 else x[b:b + 1]

    for b, n in enumerate(lengths):
        alone = run(cls(**attributes), [cut(a, b, n) if o else a for a, o in zip(arrays, own, strict=True)], None,
                    [cut(g, b, n) for g in gs])
        for whole, part in zip(outs, alone[0], strict=True):
            close(cut(whole, b, n), part)
            assert np.count_nonzero(whole[b]) <= part.size
        for t, d, whole, o in zip(total, alone[1], grads, own, strict=True):
            if o:
                close(cut(whole, b, n), d)
                assert np.count_nonzero(whole[b]) <= d.size
            else:
                t += d
    for t, whole, o in zip(total, grads, own, strict=True):
        if not o:
            close(whole, t)


@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_large_scores(cls, attributes, make, width, dtype, scale):
    """Exact where e^score is far beyond any float, also in float32: the loops' numbers have exponents of their own."""
    n = 4
    arrays, gs = make(1, n, *width, seed=1, scale=scale)
    arrays, gs = [a.astype(dtype) for a in arrays], [g.astype(dtype) for g in gs]
    arrays[0][0, 1, 0] = arrays[0][0, 1, 2]  # a tie, so that not every marginal is 0 or 1
    keys = "uw" if width else "pr"
    every = paths(n, *width) if width else trees(n, attributes["single_root"])
    matrices = dict(zip(keys, [arrays[0][0], arrays[1]], strict=True))
    g = {"u": gs[0][0]} if width else {"p": gs[0][0], "r": gs[1]}
    p, logz, slopes = enumerate_all(every, matrices, g, float(gs[-1][0]))
    outs, grads = run(cls(**attributes), arrays, None, gs)
    tolerance = 3e-7 if dtype == np.float32 else 1e-9
    close(outs[0][0], p[keys[0]], tolerance)
    close(outs[-1][0], logz, tolerance)
    for d, k in zip(grads, keys, strict=True):
        assert d.dtype == dtype and np.isfinite(d).all()
        np.testing.assert_allclose(d.reshape(slopes[k].shape), slopes[k], rtol=tolerance, atol=10 * tolerance)


def test_a_way_that_is_hopeless_at_first_may_win():
    """What a recursion with plain numbers, rescaled at each step, loses: state 1 is e^-10000 behind until the last."""
    u = np.array([[[0.0, -1e4], [0.0, 0.0], [-2e4, 0.0]]])
    w = np.where(np.eye(2) == 1, 0.0, -INF)
    (p, logz), _ = run(LinearChain(), [u, w])
    close(p, [[[0, 1]] * 3])
    close(logz, [-1e4])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_forbidden_parts(cls, attributes, make, width, mode):
    """Score -inf: marginal 0, gradient 0, the rest as by enumeration; a sentence without any way: 0, -inf and 0."""
    arrays, gs = make(2, 4, *width)
    arrays[0][0, 1, 2] = arrays[0][0, 3, 0] = arrays[1][0, 1] = -INF
    arrays[0][1, ..., 1] = -INF
    if width:
        arrays[0][1, 2] = -INF
    else:
        arrays[1][1, 1] = -INF  # nobody can be the head of word 1
    outs, grads = run(cls(**attributes), arrays, None, gs, mode)
    every = paths(4, *width) if width else trees(4, attributes["single_root"])
    scores = {"u": arrays[0][0], "w": arrays[1]} if width else {"p": arrays[0][0], "r": arrays[1][:1]}
    g = {"u": gs[0][0]} if width else {"p": gs[0][0], "r": gs[1][:1]}
    p, logz, slopes = enumerate_all(every, scores, g, gs[-1][0])
    close(outs[0][0], next(iter(p.values())))
    close(outs[-1], [logz, -INF])
    close(grads[0][0], next(iter(slopes.values())))
    close(grads[1] if width else grads[1][:1], list(slopes.values())[1])
    for x in [*outs[:-1], grads[0]]:
        assert not x[1].any()
    assert outs[0][0, 1, 2] == outs[0][0, 3, 0] == grads[0][0, 1, 2] == grads[0][0, 3, 0] == grads[1][0, 1] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
@pytest.mark.parametrize("B, n", [(0, 3), (2, 0), (2, 1), (0, 0)])
def test_nothing_and_one(cls, attributes, make, width, mode, B, n):
    arrays, gs = make(B, n, *width)
    outs, grads = run(cls(**attributes), arrays, None, gs, mode)
    for o, g in zip(outs, gs, strict=True):
        assert o.shape == g.shape
    for d, a in zip(grads, arrays, strict=True):
        assert d.shape == a.shape and np.isfinite(d).all()
    if n == 0:
        close(outs[-1], np.zeros(B))
    elif n == 1 and not width:
        assert not outs[0].any() and (outs[1] == 1).all()
        close(outs[2], arrays[1][:, 0])


@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_float32_is_as_accurate_as_the_twin(cls, attributes, make, width):
    arrays, gs = make(3, 6, *width)
    arrays, gs = [a.astype(np.float32) for a in arrays], [g.astype(np.float32) for g in gs]
    mine, twin = (sum(run(cls(**attributes), arrays, [6, 4, 5], gs, mode), []) for mode in MODES)
    gold = sum(run(cls(**attributes), [a.astype(np.float64) for a in arrays], [6, 4, 5], gs, "never"), [])
    for a, b, true in zip(mine, twin, gold, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert np.abs(a - true).max() <= 3 * np.abs(b - true).max() + 4 * np.spacing(np.float32(np.abs(true).max()))


@pytest.mark.skipif(not device.JIT or device.numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads")
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_one_and_two_threads_give_the_same_bits(cls, attributes, make, width, monkeypatch):
    arrays, gs = make(45, 6, *width)
    arrays, results, before = [a.astype(np.float32) for a in arrays], [], device.get_num_threads()
    for threads, above in ((1, device.PARALLEL_ABOVE), (2, -1)):
        monkeypatch.setattr(device, "PARALLEL_ABOVE", above)
        device.set_num_threads(threads)
        try:
            results.append(sum(run(cls(**attributes), arrays, [1 + b % 6 for b in range(45)], gs), []))
        finally:
            device.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_without_recording(cls, attributes, make, width, mode):
    """Eisner's twin differentiates log Z; that shows neither under no_grad nor for constant inputs."""
    arrays, _ = make(2, 3, *width)
    expected, _ = run(cls(**attributes), arrays)
    with fused(mode):
        assert not any(o.requires_grad for o in cls(**attributes)(*map(Tensor, arrays), None))
        with no_grad():
            outs = cls(**attributes)(*[Tensor(a, requires_grad=True) for a in arrays], None)
    assert not any(o.requires_grad for o in outs)
    for o, e in zip(outs, expected, strict=True):
        close(o.numpy(), e)


@pytest.mark.parametrize("cls, attributes, make, width", CASES)
def test_only_what_is_needed(cls, attributes, make, width):
    arrays, gs = make(2, 3, *width)
    _, both = run(cls(**attributes), arrays, None, gs)
    for i in (0, 1):
        ts = [Tensor(a, requires_grad=i == k) for k, a in enumerate(arrays)]
        (d,) = grad(list(cls(**attributes)(*ts, None)), [ts[i]], [Tensor(g) for g in gs])
        np.testing.assert_array_equal(d.numpy(), both[i])


def test_memory_of_the_loops():
    """What a sentence of N words needs in a loop: a number an item, and the table; both are quadratic in N."""
    for N in (20, 40):
        table, items = Eisner()._table(N)
        assert items < 5 * N * N and len(table) < 3 * N * N
    table, items = LinearChain()._table(50, 4)
    assert items < 50 * 4 * 3 + 16 + 60 and len(table) < 50 * 9


def test_a_wrong_table_is_found():
    """The tests can fail: one step in one row of the table changed gives other marginals."""
    (theta, root), _ = tree_arrays(1, 4)
    table, items = Eisner()._table(4)
    scores = np.concatenate([theta.reshape(1, 16), root], axis=1)
    none, lengths = np.empty(0), np.array([4])
    expected, _, _ = enumerate_all(trees(4, True), {"p": theta[0], "r": root})
    right, _ = sum_product.infer(scores, none, lengths, table, items)
    close(right[0, :16].reshape(4, 4), expected["p"])
    row = int(np.argmax(table[:, sum_product.COUNT] == 3))
    table[row, sum_product.COUNT] = 2
    wrong, _ = sum_product.infer(scores, none, lengths, table, items)
    assert np.abs(wrong - right).max() > 1e-3


def test_errors():
    u, w, theta, root = (Tensor(np.zeros(s)) for s in ((2, 3, 4), (4, 4), (2, 3, 3), (2, 3)))
    with pytest.raises(ShapeError, match=r"linear_chain: expected u \(B,T,C\), w \(C,C\) .* got u \(2, 3, 4\), w \(3,"):
        LinearChain()(u, Tensor(np.zeros((3, 4))), None)
    with pytest.raises(ShapeError, match=r"eisner: expected theta \(B,N,N\), root \(B,N\), got theta \(2, 3, 4\)"):
        Eisner()(u, root, None)
    for op, a, b, name in ((LinearChain, u, w, "linear_chain"), (Eisner, theta, root, "eisner")):
        with pytest.raises(TypeError, match=f"{name}: .*float64 and float32"):
            op()(a, b.float(), None)
        with pytest.raises(TypeError, match=f"{name}: .*int64"):
            op()(a.long(), b, None)
        with pytest.raises(TypeError, match=f"{name}: expected integer lengths, got float64"):
            op()(a, b, Tensor(np.array([1.0, 2.0])))
        with pytest.raises(ShapeError, match=rf"{name}: expected lengths \(B,\) = \(2,\), got \(3,\)"):
            op()(a, b, Tensor(np.array([1, 2, 3])))
        with pytest.raises(ValueError, match=f"{name}: expected lengths between 0 and [TN] = 3, got 1 to 4"):
            op()(a, b, Tensor(np.array([1, 4])))
