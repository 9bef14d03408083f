r"""Pointer-generator with coverage: a word is made from the vocabulary, or copied from the source by attention.

    P(w) = p_gen P_voc(w) + (1 - p_gen) sum over s with w_s = w of alpha_t(s)
    e_t(s) = v_a^T tanh(W_k h_s + W_q s_t + w_c cov_t(s) + b)        alpha_t = softmax_s(e_t)
    h*_t = sum_s alpha_t(s) h_s
    cov_t(s) = sum_{t' < t} alpha_t'(s)        coverage loss = sum_t sum_s min(alpha_t(s), cov_t(s))
    p_gen = sigmoid(w_h . h*_t + w_s . s_t + w_x . x_t + c)

See, Liu and Manning 2017, "Get to the point: summarization with pointer-generator networks", section 2. Not in Hu 2018.

Cost: T times S A tanh, one step after the other (coverage); the copied part adds T S numbers into T V'.

The vocabulary is extended by the unknown words of each source: ids (B, S) run below V' = V + unknown words, and P_voc
is 0 there. A word that stands in the source several times gets the sum of its weights. `log_likelihood` takes the
logarithm of the mixture as a log-sum-exp, so that a word of probability 1e-40 in both still has a gradient. The paper
switches coverage on only at the end of training: `w_c=None` leaves it out.
"""
import math

import numpy as np

from ..autograd import scope
from ..functional import additive_scores, linear, minimum, stack, where, zeros
from ..tensor import Tensor
from .core import variant, weigh
from .shapes import expect


@variant("application", params={"w_q": "AQ", "w_k": "AK", "b": "A", "v_a": "A", "w_c": "A", "w_h": "K",
                                "w_s": "Q", "w_x": "M", "c": ""},
         keys=("k",), empty=False, paper="See et al. 2017, section 2")
def pointer_generator(q, k, x, logits, ids, w_q, w_k, b, v_a, w_c, w_h, w_s, w_x, c, size=None, mask=None,
                      return_weights=False):
    """q (B, T, Q) decoder states, k (B, S, K) encoder states, x (B, T, M) inputs of the decoder, logits (B, T, V) of
    the vocabulary (a part of which the caller computes from q and the context), ids (B, S) of the source words, below
    `size` = V' (V if None). Result: P (B, T, V'), and the coverage loss of each sequence (B,).

    ShapeError for shapes that do not fit; ValueError for a size below V, or ids that are not (B, S) or not below
    `size`.
    """
    expect("pointer_generator", q=(q, "BTQ"), k=(k, "BSK"), x=(x, "BTM"), logits=(logits, "BTV"), w_q=(w_q, "AQ"),
           w_k=(w_k, "AK"), b=(b, "A"), v_a=(v_a, "A"), w_h=(w_h, "K"), w_s=(w_s, "Q"), w_x=(w_x, "M"), c=(c, ""),
           **({} if w_c is None else {"w_c": (w_c, "A")}))
    V, size = logits.shape[-1], logits.shape[-1] if size is None else size
    if not isinstance(size, (int, np.integer)) or size < V:
        raise ValueError(f"pointer_generator: expected a size V' of at least V = {V}, got {size!r}")
    context, alpha, coverage_loss = attend(q, k, w_q, w_k, b, v_a, w_c, mask)
    p_gen = gate(context, q, x, w_h, w_s, w_x, c)                          # (B, T, 1)
    made = (p_gen * logits.softmax(-1)).pad(((0, 0), (0, 0), (0, size - V)))  # (B, T, V')
    copied = ((1 - p_gen) * alpha).scatter_add(2, _source(ids, alpha, size), (*alpha.shape[:2], size))
    p = made + copied
    return (p, coverage_loss, alpha) if return_weights else (p, coverage_loss)


def attend(q, k, w_q, w_k, b, v_a, w_c=None, mask=None):
    """(context (B, T, K), alpha (B, T, S), coverage loss (B,)), step by step; w_c None: no coverage in the scores."""
    keys, asked = linear(k, w_k, b), linear(q, w_q)                        # (B, S, A), (B, T, A)
    cov, contexts, weights, loss = None, [], [], 0.0
    for t in range(q.shape[1]):
        with scope(f"step {t}"):
            inner = keys if cov is None or w_c is None else keys + cov.unsqueeze(-1) * w_c  # (B, S, A)
            e = additive_scores(asked[:, t].unsqueeze(1), inner, v_a)      # (B, 1, S)
            context, alpha = weigh(e, k, mask, return_weights=True)
        contexts.append(context.squeeze(1))
        weights.append(alpha.squeeze(1))                                   # (B, S)
        if cov is not None:
            loss = loss + minimum(weights[-1], cov).sum(-1)
        cov = weights[-1] if cov is None else cov + weights[-1]
    if not contexts:
        (B, S, K), like = k.shape, {"dtype": k.dtype, "device": k.device}
        return zeros(B, 0, K, **like), zeros(B, 0, S, **like), zeros(B, **like)
    loss = loss if isinstance(loss, Tensor) else weights[0].sum(-1) * 0.0
    return stack(contexts, 1), stack(weights, 1), loss


def gate(context, q, x, w_h, w_s, w_x, c):
    """p_gen (B, T, 1): how much of the word is made, not copied."""
    return (context @ w_h + q @ w_s + x @ w_x + c).sigmoid().unsqueeze(-1)


def _source(ids, alpha, size=np.inf):
    """The words' numbers for each query (B, T, S), all from 0 on and below `size`."""
    ids = ids if isinstance(ids, Tensor) else Tensor(ids, device=alpha.device)
    if ids.ndim != 2 or ids.shape != (alpha.shape[0], alpha.shape[2]):
        raise ValueError(f"pointer_generator: expected ids (B, S) = {(alpha.shape[0], alpha.shape[2])}, got "
                         f"{ids.shape}")
    numbers = ids.numpy()
    if ids.dtype.kind != "i" or numbers.min(initial=0) < 0 or numbers.max(initial=0) >= max(size, 1):
        raise ValueError(f"pointer_generator: expected ids of whole numbers from 0 on, below V' = {size}, got "
                         f"{ids.dtype} from {numbers.min()} to {numbers.max()}")
    return Tensor(np.broadcast_to(ids.numpy()[:, None], alpha.shape), device=alpha.device)  # (B, T, S)


def log_likelihood(logits, alpha, p_gen, ids, targets):
    """log P(target) (B, T), by log-sum-exp: logits (B, T, V), alpha (B, T, S), p_gen (B, T, 1), ids (B, S), and
    targets (B, T) < V'.

    A target that is neither in the vocabulary nor in the source has probability 0: its logarithm is -inf.
    """
    V, targets = logits.shape[-1], np.asarray(targets.numpy() if isinstance(targets, Tensor) else targets)
    known = Tensor(targets < V, device=logits.device)
    made = logits.log_softmax(-1).gather(2, np.minimum(targets, V - 1)[..., None]).squeeze(-1) + p_gen.squeeze(-1).log()
    here = Tensor(_source(ids, alpha).numpy() == targets[..., None], device=alpha.device)  # (B, T, S): is this the word?
    mass = where(here, alpha, 0.0).sum(-1)                                 # (B, T)
    there = mass > 0
    copied = where(there, mass, 1.0).log() + (1 - p_gen.squeeze(-1)).log()
    return stack([where(known, made, -np.inf), where(there, copied, -np.inf)], -1).logsumexp(-1)


def reference(q, k, x, logits, ids, w_q, w_k, b, v_a, w_c, w_h, w_s, w_x, c, size, mask):
    """One sequence, one step and one word at a time."""
    (B, T), S, V = q.shape[:2], k.shape[1], logits.shape[-1]
    p, loss = np.zeros((B, T, size)), np.zeros(B)
    for n in range(B):
        cov = np.zeros(S)
        for t in range(T):
            e = {}
            for s in range(S):
                if mask[n, 0, s]:
                    inner = [math.tanh(sum(w_k[a] * k[n, s]) + sum(w_q[a] * q[n, t]) + w_c[a] * cov[s] + b[a])
                             for a in range(len(b))]
                    e[s] = math.exp(sum(v_a[a] * inner[a] for a in range(len(b))))
            alpha = {s: e[s] / sum(e.values()) for s in e}
            context = sum(alpha[s] * k[n, s] for s in e)
            g = 1 / (1 + math.exp(-(sum(w_h * context) + sum(w_s * q[n, t]) + sum(w_x * x[n, t]) + c)))
            for w in range(V):
                p[n, t, w] += g * math.exp(logits[n, t, w]) / sum(math.exp(z) for z in logits[n, t])
            for s in e:
                p[n, t, ids[n, s]] += (1 - g) * alpha[s]
                loss[n] += min(alpha[s], cov[s]) if t else 0.0
                cov[s] += alpha[s]
    return p, loss


def example(rng):
    """A vocabulary of 5 and one unknown word; in the first source word 2 stands twice, and word 5 is unknown."""
    return {"q": rng.normal(size=(2, 3, 2)), "k": rng.normal(size=(2, 4, 3)), "x": rng.normal(size=(2, 3, 2)),
            "logits": rng.normal(size=(2, 3, 5)), "ids": np.array([[2, 5, 2, 1], [0, 3, 0, 0]]),
            "w_q": rng.normal(size=(6, 2)), "w_k": rng.normal(size=(6, 3)), "b": rng.normal(size=6),
            "v_a": rng.normal(size=6), "w_c": rng.normal(size=6), "w_h": rng.normal(size=3), "w_s": rng.normal(size=2),
            "w_x": rng.normal(size=2), "c": np.array(rng.normal()), "size": 6,
            "mask": np.arange(4) < np.array([4, 2])[:, None, None]}
