"""Attention of section 3.5: PageRank of sentences, marginals of a chain, marginals of trees."""
import itertools
import math

import numpy as np
import pytest
from test_multidimensional import arrays_of, assert_right

from tinyattn import Tensor, grad
from tinyattn.attention import find, mask, properties
from tinyattn.attention.dependency import dependency, is_projective, is_tree
from tinyattn.attention.pagerank import pagerank, ranks
from tinyattn.attention.properties import leaves
from tinyattn.attention.segmentation import marginals, segmentation
from tinyattn.functional import solve
from tinyattn.ops.broadcast import ShapeError
from tinyattn.ops.eisner import Eisner
from tinyattn.ops.linear_chain import LinearChain


# ---------------------------------------------------------------------------------------------------------------------
# PageRank
# ---------------------------------------------------------------------------------------------------------------------
def transitions(x, p):
    """W D^-1 of one document: exp(x_i^T P x_j), each column divided by its sum."""
    w = np.exp(np.einsum("id,de,je->ij", x, p, x))
    return w / w.sum(0)


def test_ranks_sum_to_1_and_solve_equals_iteration():
    a = arrays_of("pagerank")
    tensors = leaves(a)
    f = ranks(tensors["x"], tensors["p"], None, None, 0.9).numpy()[:, 0]   # (B, N)
    np.testing.assert_allclose(f.sum(-1), 1, atol=1e-12)
    for b in range(2):
        m, alpha = transitions(a["x"][b], a["p"]), np.eye(4)[0]
        np.testing.assert_allclose(m.sum(0), 1, atol=1e-12)
        for _ in range(500):
            alpha = 0.9 * m @ alpha + 0.1 / 4
        np.testing.assert_allclose(f[b], alpha, atol=1e-12)
        by_solve = solve(Tensor(np.eye(4) - 0.9 * m), Tensor(np.full(4, 0.1 / 4)))
        np.testing.assert_allclose(f[b], by_solve.numpy(), atol=1e-12)


def test_topic_sensitive_ranks_start_at_the_query():
    """One graph a query: N sentences and the query, on which all of y sits. What is missing to 1 is its rank."""
    a = arrays_of("pagerank")
    tensors = leaves({**a, "mask": None, "distraction": False})
    f = ranks(tensors["x"], tensors["p"], tensors["q"], None, 0.8).numpy()
    weights = pagerank(**tensors, return_weights=True)[1].numpy()
    for b, t in np.ndindex(2, 3):
        alpha = np.full(5, 0.2)
        for _ in range(300):
            alpha = 0.8 * transitions(np.vstack([a["x"][b], a["q"][b, t]]), a["p"]) @ alpha + 0.2 * np.eye(5)[4]
        np.testing.assert_allclose(alpha.sum(), 1, atol=1e-12)
        np.testing.assert_allclose(f[b, t], alpha[:4], atol=1e-12)
        np.testing.assert_allclose(weights[b, t], alpha[:4] / alpha[:4].sum(), atol=1e-12)


@pytest.mark.parametrize("query, distraction", [(False, False), (True, False), (False, True)])
def test_pagerank_in_its_forms(query, distraction):
    a = arrays_of("pagerank", 1)
    assert_right("pagerank", {**a, "q": a["q"] if query else None, "distraction": distraction})


def test_distraction_looks_at_what_grew():
    a = arrays_of("pagerank")
    tensors = leaves({**a, "mask": None})
    f = ranks(tensors["x"], tensors["p"], tensors["q"], None, 0.8).numpy()
    weights = pagerank(**tensors, return_weights=True)[1].numpy()
    np.testing.assert_allclose(weights[:, 0], f[:, 0] / f[:, 0].sum(-1, keepdims=True), atol=1e-12)  # f_0 = 0
    for t in (1, 2):
        grew = np.maximum(f[:, t] - f[:, t - 1], 0)
        np.testing.assert_allclose(weights[:, t], grew / grew.sum(-1, keepdims=True), atol=1e-12)
    assert (weights[:, 1:] == 0).any()                                     # something shrank


def test_distraction_where_nothing_grew_gives_0_and_no_nan():
    """The same query twice: the difference is 0 throughout, and so is its sum."""
    a = arrays_of("pagerank")
    a["q"] = np.repeat(a["q"][:, :1], 2, axis=1)
    tensors = leaves(a)
    out, weights = pagerank(**tensors, return_weights=True)
    assert (weights.numpy()[:, 1] == 0).all() and (out.numpy()[:, 1] == 0).all()
    found = grad(out.sum(), [tensors[n] for n in ("x", "p", "q")])
    assert all(np.isfinite(g.numpy()).all() for g in found)
    report = properties.value(find("pagerank"), a)
    assert report.ok, str(report)


def test_raw_bilinear_scores_make_no_distribution():
    """With W = x P x^T, as the survey prints it, eq. 31 has a solution with negative ranks, and eq. 30 runs away."""
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=(5, 3)), rng.normal(size=(3, 3))
    w = x @ p @ x.T
    m = w / w.sum(0)
    np.testing.assert_allclose(m.sum(0), 1, atol=1e-12)                    # the columns do sum to 1
    alpha = solve(Tensor(np.eye(5) - 0.9 * m), Tensor(np.full(5, 0.1 / 5))).numpy()
    assert alpha.min() < -0.1 and alpha.sum() == pytest.approx(1)
    assert 0.9 * np.abs(np.linalg.eigvals(m)).max() > 1
    step = np.full(5, 0.2)
    for _ in range(300):
        step = 0.9 * m @ step + 0.1 / 5
    assert np.abs(step).max() > 1e3
    f = ranks(Tensor(x[None]), Tensor(p), None, None, 0.9).numpy()
    assert f.min() > 0 and f.sum() == pytest.approx(1)


def test_graphs_without_preference_and_without_damping_are_uniform():
    a = leaves({**arrays_of("pagerank"), "q": None, "mask": None, "distraction": False})
    flat = pagerank(**{**a, "p": a["p"] * 0}, return_weights=True)[1].numpy()
    still = pagerank(**{**a, "damping": 0.0}, return_weights=True)[1].numpy()
    np.testing.assert_allclose(flat, 0.25, atol=1e-15)
    np.testing.assert_allclose(still, 0.25, atol=1e-15)


def test_masked_sentences_are_not_in_the_graph():
    a = arrays_of("pagerank")
    out, weights = pagerank(**leaves(a), return_weights=True)
    short = pagerank(**leaves({**a, "x": a["x"][1:, :3], "q": a["q"][1:], "mask": None})).numpy()
    np.testing.assert_allclose(out.numpy()[1:], short, atol=1e-12)
    assert (weights.numpy()[1, :, 3] == 0).all()


@pytest.mark.parametrize("B, N", [(0, 3), (2, 1), (2, 0)])
@pytest.mark.parametrize("T", [None, 0, 2])
def test_pagerank_of_no_document_one_sentence_no_sentence_no_query(B, N, T):
    rng = np.random.default_rng(0)
    x, p = Tensor(rng.normal(size=(B, N, 2))), Tensor(rng.normal(size=(2, 2)))
    out = pagerank(x, p, None if T is None else Tensor(rng.normal(size=(B, T, 2)))).numpy()
    assert out.shape == (B, 1 if T is None else T, 2)
    expected = np.zeros(out.shape) if N == 0 else np.broadcast_to(x.numpy()[:, :1], out.shape)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_pagerank_of_large_scores_and_errors():
    """A query that keeps to itself (q^T P q far above all q^T P x) sends the sentences nothing: they get 0, not nan."""
    a = leaves({**arrays_of("pagerank"), "distraction": False})
    for query in (a["q"], None):
        large = {**a, "p": a["p"] * 1e5, "q": query}
        out, weights = pagerank(**large, return_weights=True)
        total = weights.numpy().sum(-1)
        assert (np.minimum(np.abs(total), np.abs(total - 1)) < 1e-9).all()
        assert query is not None or (total > 0.5).all()
        assert all(np.isfinite(g.numpy()).all() for g in grad(out.sum(), [large["x"], a["p"]]))
    for bad in (1.0, -0.1):
        with pytest.raises(ValueError, match="pagerank: expected a damping"):
            pagerank(a["x"], a["p"], damping=bad)
    with pytest.raises(ShapeError, match=r"pagerank: expected x \(B, N, D\), p \(D, D\), q \(B, T, D\)"):
        pagerank(a["x"], a["p"], a["q"][:, :, :1])
    with pytest.raises(ShapeError, match="pagerank: expected a mask"):
        pagerank(a["x"], a["p"], a["q"], mask.causal(4))


# ---------------------------------------------------------------------------------------------------------------------
# segmentation
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("S", [1, 2, 5, 8])
def test_marginals_of_a_chain_are_those_of_all_ways_to_pick(S):
    rng = np.random.default_rng(S)
    theta, b = rng.normal(size=(2, 1, S)), rng.normal(size=(2, 2))
    p = marginals(Tensor(theta), Tensor(b)).numpy()
    for n in range(2):
        expected, z = np.zeros(S), 0.0
        for picks in itertools.product((0, 1), repeat=S):
            score = sum(theta[n, 0, i] for i in range(S) if picks[i]) + sum(b[i, j] for i, j in zip(picks, picks[1:]))
            weight = math.exp(score)
            expected += weight * np.array(picks)
            z += weight
        np.testing.assert_allclose(p[n, 0], expected / z, atol=1e-12)


def test_marginals_are_the_gradient_of_log_z():
    rng = np.random.default_rng(0)
    theta, b = Tensor(rng.normal(size=(2, 1, 6)), requires_grad=True), Tensor(rng.normal(size=(2, 2)))
    states = Tensor.stack([theta * 0, theta], -1).reshape(2, 6, 2)
    slope = grad(LinearChain()(states, b, None)[1].sum(), theta)[0]
    np.testing.assert_allclose(slope.numpy(), marginals(theta, b).numpy(), atol=1e-12)


def test_without_neighbours_every_word_decides_by_itself():
    a = {**arrays_of("segmentation"), "mask": None, "b": np.zeros((2, 2))}
    theta = a["q"] @ a["w"] @ a["k"].transpose(0, 2, 1)
    p = 1 / (1 + np.exp(-theta))
    weights = segmentation(**leaves(a), return_weights=True)[1].numpy()
    np.testing.assert_allclose(weights, 2 * p / p.sum(-1, keepdims=True), atol=1e-12)


def test_neighbours_that_like_each_other_make_runs():
    """One word is wanted much, the others a little not. b[1, 1] > 0 pulls the near ones in, more than the far ones."""
    theta = Tensor(np.array([[[-1.0, -1.0, -1.0, 4.0, -1.0, -1.0, -1.0]]]))
    alone, runs = (marginals(theta, Tensor(np.array([[0.0, 0.0], [0.0, x]]))).numpy()[0, 0] for x in (0.0, 1.5))
    assert runs[2] > 2 * alone[2] and runs[2] > runs[1] > runs[0] > alone[0]
    np.testing.assert_allclose(runs, runs[::-1], atol=1e-12)


@pytest.mark.parametrize("total", [2.0, 1.0, 5.0])
def test_weights_sum_to_lambda(total):
    a = {**arrays_of("segmentation"), "total": total}
    weights = segmentation(**leaves(a), return_weights=True)[1].numpy()
    np.testing.assert_allclose(weights.sum(-1), total, atol=1e-12)
    assert (weights[1, :, 3:] == 0).all()
    report = properties.value(find("segmentation"), a)
    assert report.ok, str(report)


def test_a_chain_under_a_causal_mask_is_a_chain_of_the_words_so_far():
    rng = np.random.default_rng(4)
    q, k, v = (Tensor(rng.normal(size=s)) for s in ((1, 4, 3), (1, 4, 2), (1, 4, 2)))
    w, b = Tensor(rng.normal(size=(3, 2))), Tensor(rng.normal(size=(2, 2)))
    whole = segmentation(q, k, v, w, b, mask.causal(4)).numpy()
    for t in range(4):
        so_far = segmentation(q[:, t:t + 1], k[:, :t + 1], v[:, :t + 1], w, b).numpy()
        np.testing.assert_allclose(whole[:, t:t + 1], so_far, atol=1e-12)


@pytest.mark.parametrize("B, T, S", [(0, 2, 3), (2, 0, 3), (2, 2, 0), (1, 1, 1)])
def test_segmentation_of_nothing_and_of_one_word(B, T, S):
    rng = np.random.default_rng(0)
    q, k, v = (Tensor(rng.normal(size=s)) for s in ((B, T, 3), (B, S, 2), (B, S, 4)))
    out = segmentation(q, k, v, Tensor(rng.normal(size=(3, 2))), Tensor(rng.normal(size=(2, 2)))).numpy()
    np.testing.assert_allclose(out, np.zeros((B, T, 4)) if S != 1 else 2 * v.numpy(), atol=1e-12)


def test_segmentation_of_large_scores_and_errors():
    a = leaves(arrays_of("segmentation"))
    big = {**a, "w": a["w"] * 1e4}
    out = segmentation(**big)
    assert np.isfinite(out.numpy()).all()
    assert all(np.isfinite(g.numpy()).all() for g in grad(out.sum(), [big["q"], big["k"], big["v"], a["b"]]))
    with pytest.raises(ValueError, match="segmentation: expected a positive total"):
        segmentation(**{**a, "total": 0.0})
    with pytest.raises(ValueError, match="segmentation: expected a mask that is True from the start"):
        segmentation(**{**a, "mask": Tensor(np.array([True, False, True, True, True]) & np.ones((2, 1, 5), bool))})
    with pytest.raises(ShapeError, match=r"segmentation: expected q \(B, T, Q\).*b \(2, 2\)"):
        segmentation(**{**a, "b": Tensor(np.zeros((3, 3)))})


# ---------------------------------------------------------------------------------------------------------------------
# trees
# ---------------------------------------------------------------------------------------------------------------------
def test_the_enumeration_finds_as_many_trees_as_there_are():
    """C(3n, n) / (2n + 1) projective trees of n words, with any number of words on the root: 1, 3, 12, 55."""
    for n in range(1, 5):
        trees = [h for h in itertools.product(range(n + 1), repeat=n) if is_tree(h) and is_projective(h)]
        assert len(trees) == math.comb(3 * n, n) // (2 * n + 1)
    assert not is_tree((2, 1)) and not is_tree((1,)) and is_tree((0, 1)) and not is_projective((3, 4, 0, 3))


@pytest.mark.parametrize("single_root", [True, False])
def test_marginals_of_trees_are_those_of_the_enumeration(single_root):
    assert_right("dependency", {**arrays_of("dependency", 1), "single_root": single_root})
    assert_right("dependency", {**arrays_of("dependency", 2), "mask": None, "single_root": single_root})


def test_every_word_has_one_head_and_no_word_is_its_own():
    """Column j of p, with the root's row, sums to 1; seen through x. The columns of p are the rows of the weights."""
    a = arrays_of("dependency")
    a |= {"x": np.ones((2, 4, 2)), "root_x": np.ones(2)}
    out, weights = dependency(**leaves(a), return_weights=True)
    np.testing.assert_allclose(out.numpy()[0], 1, atol=1e-12)
    np.testing.assert_allclose(out.numpy()[1], [[1, 1]] * 3 + [[0, 0]], atol=1e-12)
    w = weights.numpy()
    assert (np.diagonal(w, axis1=1, axis2=2) == 0).all() and (w[0].sum(-1) < 1).all()
    assert (w[1, 3] == 0).all() and (w[1, :, 3] == 0).all()
    out = dependency(**leaves({**a, "root_x": np.zeros(2)}))               # what is missing is the root's
    np.testing.assert_allclose(out.numpy()[..., 0], w.sum(-1), atol=1e-12)


def test_one_word_hangs_on_the_root_where_only_one_may():
    a = arrays_of("dependency")
    w = dependency(**leaves({**a, "single_root": True}), return_weights=True)[1].numpy()
    np.testing.assert_allclose([4 - w[0].sum(), 3 - w[1].sum()], 1, atol=1e-12)
    w = dependency(**leaves(a), return_weights=True)[1].numpy()
    assert 4 - w[0].sum() > 1.01


def test_head_marginals_are_the_gradient_of_log_z():
    rng = np.random.default_rng(0)
    theta, root = (Tensor(rng.normal(size=s), requires_grad=True) for s in ((2, 5, 5), (2, 5)))
    p, r, logz = Eisner(single_root=False)(theta, root, None)
    slopes = grad(logz.sum(), [theta, root])
    for slope, marginal in zip(slopes, (p, r), strict=True):
        np.testing.assert_allclose(slope.numpy(), marginal.numpy(), atol=1e-12)
    np.testing.assert_allclose(p.numpy().sum(1) + r.numpy(), 1, atol=1e-12)


def test_arcs_do_not_cross():
    """With one arc almost certain, 1 -> 3, the word between cannot take a head outside of it: seen in the weights."""
    theta, root = np.zeros((1, 4, 4)), np.zeros((1, 4))
    theta[0, 0, 2] = 50.0
    p, r, _ = Eisner(single_root=False)(Tensor(theta), Tensor(root), None)
    p, r = p.numpy()[0], r.numpy()[0]
    assert p[0, 2] > 1 - 1e-12 and p[3, 1] < 1e-12 and r[1] < 1e-12 and p[0, 1] > 0.1 and p[2, 1] > 0.1


def test_a_padded_sentence_is_the_sentence_alone():
    a = arrays_of("dependency")
    padded = dependency(**leaves(a)).numpy()
    alone = dependency(**leaves({**a, "x": a["x"][1:, :3], "h": a["h"][1:, :3], "mask": None})).numpy()
    np.testing.assert_allclose(padded[1:, :3], alone, atol=1e-12)
    assert (padded[1, 3] == 0).all()


@pytest.mark.parametrize("B, T", [(0, 3), (2, 0), (2, 1)])
def test_dependency_of_no_sentence_no_word_and_one_word(B, T):
    a = arrays_of("dependency")
    rng = np.random.default_rng(0)
    a |= {"x": rng.normal(size=(B, T, 2)), "h": rng.normal(size=(B, T, 3)), "mask": None}
    out = dependency(**leaves(a)).numpy()
    np.testing.assert_allclose(out, np.broadcast_to(a["root_x"], (B, T, 2)), atol=1e-12)  # one word hangs on the root


def test_dependency_errors():
    a = leaves(arrays_of("dependency"))
    with pytest.raises(ValueError, match="dependency: expected a mask that is True from the start"):
        dependency(**{**a, "mask": Tensor(np.array([True, False, True, True]) & np.ones((2, 1, 4), bool))})
    with pytest.raises(ShapeError, match="dependency: expected a mask"):
        dependency(**{**a, "mask": mask.causal(4)})
    with pytest.raises(ShapeError, match=r"dependency: expected x \(B, T, D\), h \(B, T, U\)"):
        dependency(**{**a, "h": a["h"][:, :3]})
