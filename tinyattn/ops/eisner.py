r"""Projective dependency trees: who is the head of whom, by Eisner's inside-outside algorithm.

A tree gives each of N words one head: another word, or the artificial root that stands outside. It is projective if
no two arcs cross when they are drawn above the sentence (the root's from the far left). Its weight is e^(sum of the
scores of its arcs). Sums over all trees are built from spans of words (theta and root stand for e^theta and e^root
here; i < j, and h is left or right of e):

    gap[i,j]  = sum_{i <= k < j} done[i,k] done[j,k+1]      the words between i and j, divided among the two
    arc[h,d]  = theta[h,d] gap[h,d]                         h takes d as a dependent, nearer words are settled
    done[h,e] = sum_k arc[h,k] done[k,e]                    k from h (not itself) to e: h's last dependent up to e;
    done[h,h] = 1                                           h heads all words between h and e

and the root takes its dependents from the left to the right, or (single_root) one only:

    top[d]    = sum_{u <= d} end[u] done[d,u]               of the words before d, u are done and d heads the rest
    child[d]  = root[d] top[d]                              single_root: only u = 0 is in the sum
    end[n]    = sum_{d < n} child[d] done[d,n-1]            the first n words are a tree: Z of a sentence of n words
    end[0]    = 1

All of it has one form, v[parent] = sum_k v[a_k] v[b_k]; as a table of such sums it goes to the loops of `sum_product.py`, which
give the marginals p, r and their gradients.

Eisner 1996, "Three new probabilistic models for dependency parsing"; Kim et al. 2017, "Structured attention networks".
"""
from functools import lru_cache

import numpy as np

from ..autograd import Alias, Op, enable_grad, grad, is_grad_enabled
from ..cuda import on_card
from ..device import kernel
from .broadcast import ShapeError
from .softmax import check_float
from .sum_product import COUNT, FIRST, PARENT, SECOND, STEP_A, STEP_B, check_lengths, infer, infer_grad
from .sum_product_cuda import Levels, infer_cuda, infer_grad_cuda


class Eisner(Op):
    r"""Projective trees: p[b,h,d] = P(h is the head of d), r[b,d] = P(d hangs on the root), and log Z.

    theta (B, N, N) scores theta[b,h,d] of the arc from head h to dependent d (the diagonal is not used), root (B, N)
    scores of hanging on the root, lengths (B,) integers or None -> p (B, N, N), r (B, N), log Z (B,). For every word d
    of a sentence sum_h p[b,h,d] + r[b,d] = 1. Cost O(B N^3), memory O(N^2) for `LANES` sentences a thread. Raises
    ShapeError, TypeError, ValueError.

    single_root=True: exactly one word hangs on the root, as in treebanks. False: any number from one on, as in Kim et
    al. 2017, whose code has a root symbol as the first token. With their scores s (B, N+1, N+1) and the lengths without
    that token it is `Eisner(single_root=False)(s[:, 1:, 1:], s[:, 0, 1:], lengths)`.

    Beyond its length a sentence has p = r = 0 and sends gradient 0; a sentence of length 0 has log Z = 0. A score of
    -inf forbids an arc: its p is 0 and so is its gradient. Where that leaves no tree at all, p = r = 0, log Z = -inf
    and the gradients are 0.
    """
    tex = r"P(\mathrm{{tree}} \mid {theta}, {root})"

    def __init__(self, single_root=True):
        self.single_root = bool(single_root)

    def cpu(self, theta, root, lengths):
        (B, N), lengths = self._checked(theta, root, lengths)
        p, logz = infer(_parts(theta, root), np.empty(0, theta.dtype), lengths, *self._table(N))
        return np.ascontiguousarray(p[:, :N * N]).reshape(B, N, N), np.ascontiguousarray(p[:, N * N:]), logz

    def cpu_grad(self, g, y, theta, root, lengths):
        (B, N), lengths = self._checked(theta, root, lengths)
        found, _ = infer_grad(_parts(g[0], g[1]), np.ascontiguousarray(g[2]), _parts(theta, root),
                              np.empty(0, theta.dtype), lengths, *self._table(N))
        d_theta, d_root = found[:, :N * N].reshape(B, N, N), found[:, N * N:]
        return np.array(d_theta) if self.needs[0] else None, np.array(d_root) if self.needs[1] else None, None

    def cuda(self, theta, root, lengths):
        (_, N), counts = self._checked(theta, root, lengths)
        return infer_cuda(theta, root, False, on_card(counts) if lengths is None else lengths, _levels(N, self.single_root))

    def cuda_grad(self, g, y, theta, root, lengths):
        (_, N), counts = self._checked(theta, root, lengths)
        found = infer_grad_cuda(*g, theta, root, False, on_card(counts) if lengths is None else lengths,
                                _levels(N, self.single_root))
        return *[d if need else None for d, need in zip(found, self.needs, strict=False)], None

    def composed(self, theta, root, lengths):
        """The sums above in log space, span by span, for log Z; p and r are its gradients."""
        (B, _), n = self._checked(theta.array, root.array, None if lengths is None else lengths.numpy())
        recorded = is_grad_enabled() and (theta.requires_grad or root.requires_grad)
        with enable_grad():
            theta, root = (Alias()(x) if x.requires_grad else x.detach().requires_grad_() for x in (theta, root))
            ends = self.result.stack(self._ends(theta, root), 1)                            # (B,N+1)
            logz = ends.gather(1, n[:, None]).squeeze(1)                                    # (B,)
            found = grad([logz], [theta, root], [np.ones(B)], create_graph=True, allow_unused=True)
        p, r = (x.where(False, 0.0) if m is None else m for m, x in zip(found, (theta, root), strict=True))
        return (p, r, logz) if recorded else (p.detach(), r.detach(), logz.detach())

    def _ends(self, theta, root):
        """log end[n] for n = 0 .. N, each (B,)."""
        N = root.shape[1]
        zero = root.where(False, 0.0).sum(axis=1)                                           # (B,), also if N is 0
        done, arc, child, ends = {(h, h): zero for h in range(N)}, {}, [], [zero]

        def total(terms):
            return self.result.stack(terms, 1).logsumexp(1)

        for width in range(1, N):
            for i in range(N - width):
                j = i + width
                gap = total([done[i, k] + done[j, k + 1] for k in range(i, j)])
                arc[i, j], arc[j, i] = theta[:, i, j] + gap, theta[:, j, i] + gap
                done[i, j] = total([arc[i, k] + done[k, j] for k in range(i + 1, j + 1)])
                done[j, i] = total([arc[j, k] + done[k, i] for k in range(i, j)])
        for d in range(N):
            top = total([ends[u] + done[d, u] for u in range(1 if self.single_root else d + 1)])
            child.append(root[:, d] + top)
            ends.append(total([child[k] + done[k, d] for k in range(d + 1)]))
        return ends

    def _checked(self, theta, root, lengths):
        check_float(self.name, theta)
        if root.dtype != theta.dtype:
            raise TypeError(f"{self.name}: theta and root must have one dtype, got {theta.dtype} and {root.dtype}")
        if theta.ndim != 3 or theta.shape[1] != theta.shape[2] or root.shape != theta.shape[:2]:
            raise ShapeError(f"{self.name}: expected theta (B,N,N), root (B,N), got theta {theta.shape}, "
                             f"root {root.shape}")
        return root.shape, check_lengths(self.name, lengths, *root.shape, "N")

    def _table(self, N):
        table = np.empty((5 * N * (N - 1) // 2 + 4 * N, 6), np.int64)
        _trees(table, N, self.single_root)
        return table, 4 * N * N + 4 * N + 1

    def samples(rng):
        """Both kinds of root, lengths, one word, forbidden arcs, no tree, large scores, no sentence, no word."""
        for B, N, lengths, single in [(2, 3, [3, 2], True), (2, 4, [4, 3], False), (3, 3, [0, 1, 3], False),
                                      (1, 4, None, True), (2, 1, None, True), (1, 2, None, False), (0, 2, None, True),
                                      (2, 0, None, True)]:
            inputs = rng.normal(size=(B, N, N)), rng.normal(size=(B, N))
            yield {"single_root": single}, (*inputs, None if lengths is None else np.array(lengths))
        theta, root = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3))
        theta[0, 0, 1] = theta[0, 2, 0] = root[0, 2] = root[1, 0] = -np.inf
        theta[1, :, 0] = -np.inf
        yield {"single_root": True}, (theta, root, None)
        yield {"single_root": False}, (rng.normal(size=(1, 3, 3)) + 1e4, rng.normal(size=(1, 3)), None)


def _parts(theta, root):
    B, N = root.shape
    return np.concatenate([theta.reshape(B, N * N), root], axis=1)


@kernel
def _trees(table, N, single):
    """Write the table of the trees over N words.

    Items: theta (N,N), root (N,), end (N+1,), done (N,N), arc (N,N), gap (N,N), top (N,), child (N,). Half of gap and
    the diagonal of theta and arc stay unused.
    """
    root = N * N
    end = root + N
    done = end + N + 1
    arc = done + N * N
    gap = arc + N * N
    top = gap + N * N
    child = top + N
    row = 0
    for h in range(N):
        row = _write(table, row, done + h * N + h, end, 0, end, 0, 1)                        # end[0] is 1
    for width in range(1, N):
        for i in range(N - width):
            j = i + width
            row = _write(table, row, gap + i * N + j, done + i * N + i, 1, done + j * N + i + 1, 1, width)
            row = _write(table, row, arc + i * N + j, i * N + j, 0, gap + i * N + j, 0, 1)
            row = _write(table, row, arc + j * N + i, j * N + i, 0, gap + i * N + j, 0, 1)
            row = _write(table, row, done + i * N + j, arc + i * N + i + 1, 1, done + (i + 1) * N + j, N, width)
            row = _write(table, row, done + j * N + i, arc + j * N + i, 1, done + i * N + i, N, width)
    for d in range(N):
        row = _write(table, row, top + d, end, 1, done + d * N, 1, 1 if single else d + 1)
        row = _write(table, row, child + d, root + d, 0, top + d, 0, 1)
        row = _write(table, row, end + d + 1, child, 1, done + d, N, d + 1)


@kernel
def _write(table, row, parent, a, step_a, b, step_b, count):
    """v[parent] = sum over k < count of v[a + k step_a] v[b + k step_b], as row `row`; gives the number of the next."""
    table[row, PARENT], table[row, FIRST], table[row, STEP_A] = parent, a, step_a
    table[row, SECOND], table[row, STEP_B], table[row, COUNT] = b, step_b, count
    return row + 1


# ---------------------------------------------------------------------------------------------------------------------
# for a card: where each item is used
# ---------------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=32)
def _levels(N, single):
    table, items = Eisner(single)._table(N)
    uses = np.empty((6 * N * (N - 1) + 4 * N, 6), np.int64)
    return Levels(table, uses[:_tree_uses(uses, N, single)], items, N * N, N)


@kernel
def _tree_uses(uses, N, single):
    """Write the table of uses, in any order, with the items of `_trees`; gives the number of rows. Who uses end[0] and
    done[h,h], which are 1, is not asked."""
    root = N * N
    end = root + N
    done = end + N + 1
    arc = done + N * N
    gap = arc + N * N
    top = gap + N * N
    child = top + N
    row = 0
    for h in range(N):
        for d in range(N):
            hd, between = h * N + d, gap + min(h, d) * N + max(h, d)
            if h == d:
                continue
            row = _write(uses, row, hd, arc + hd, 0, between, 0, 1)
            row = _write(uses, row, between, arc + hd, 0, hd, 0, 1)
            if h < d:
                row = _write(uses, row, arc + hd, done + hd, 1, done + d * N + d, 1, N - d)          # done[h,d..]
                row = _write(uses, row, done + hd, gap + hd + 1, 1, done + (d + 1) * N + d + 1, N, N - 1 - d)
                row = _write(uses, row, done + hd, done + d, N, arc + h, N, h)                       # done[..h-1,d]
                row = _write(uses, row, done + hd, end + d + 1, 0, child + h, 0, 1)
            else:
                row = _write(uses, row, arc + hd, done + h * N, 1, done + d * N, 1, d + 1)           # done[h,..d]
                row = _write(uses, row, done + hd, gap + h, N, done + d - 1, N, d)                   # gap[..d-1,h]
                row = _write(uses, row, done + hd, done + hd + N, N, arc + h * N + N + h, N, N - 1 - h)
                if d == 0 or not single:
                    row = _write(uses, row, done + hd, top + h, 0, end + d, 0, 1)
    for d in range(N):
        row = _write(uses, row, root + d, child + d, 0, top + d, 0, 1)
        row = _write(uses, row, top + d, child + d, 0, root + d, 0, 1)
        row = _write(uses, row, child + d, end + d + 1, 1, done + d * N + d, 1, N - d)
        if d > 0 and not single:
            row = _write(uses, row, end + d, top + d, 1, done + d * N + d, N, N - d)
    return row
