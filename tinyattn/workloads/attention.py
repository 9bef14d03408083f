"""Scores and attention, and the structured ones: what the engine's fused ops compute, beside what users of others write."""
import numpy as np

from ..functional import additive_scores, additive_scores_2d, featurewise_attention, scaled_dot_product_attention
from ..ops.eisner import Eisner
from ..ops.linear_chain import LinearChain
from ..ops.pagerank import PageRank
from .layers import softmax
from .row import Row
from .sides import array, sides


def rows():
    return [*[_additive(*size) for size in ((32, 20, 20, 64, 6), (32, 50, 50, 128, 18), (16, 128, 128, 128, 18))],
            *[_featurewise(*size) for size in ((32, 20, 20, 64), (16, 64, 64, 128))],
            *[_scores_2d(*size, 8) for size in ((32, 20, 20, 64), (16, 64, 64, 128))],
            *[_attention(n, t, t, d, causal, 0.8 if t > 512 and not causal else 1)
              for n, t, d in ((32, 64, 32), (32, 256, 64), (8, 1024, 64)) for causal in (False, True)],
            _attention(32, 1, 512, 64), _pagerank(32, 30), _linear_chain(32, 40, 2), _eisner(32, 20)]


def _fused(name, sizes, arrays, shape, asked=None, floor=None, tolerance=1e-4, card=None, **functions):
    """arrays(rng) gives the inputs; the gradient that comes in has `shape`. card: what is asked on a card."""
    def numbers():
        return arrays(np.random.default_rng(0)), array(np.random.default_rng(1), *shape)

    return Row(name, sizes, "attention", sides(numbers, **functions), {"torch": asked} if asked else {}, twin=True, floor=floor,
               tolerance=tolerance, card={"torch": card} if card else {})


def _additive(b, t, s, d, asked):
    return _fused("additive scores", f"B,T,S,D = {b},{t},{s},{d}",
                  lambda rng: [array(rng, b, t, d), array(rng, b, s, d), array(rng, d)], (b, t, s), asked,
                  card=5, ours=additive_scores,
                  torch=lambda torch, q, k, v: torch.tanh(q[:, :, None] + k[:, None]) @ v,
                  array=lambda np, q, k, v: np.dot(np.tanh(q[:, :, None] + k[:, None]), v),
                  tinygrad=lambda tinygrad, q, k, v: (q.unsqueeze(2) + k.unsqueeze(1)).tanh() @ v)


def _featurewise(b, t, s, d):
    def with_torch(torch, q, k, v):
        f = 5 * torch.tanh((q[:, :, None] + k[:, None]) / 5)
        return (f.softmax(2) * v[:, None]).sum(2)

    def with_numpy(np, q, k, v):
        e = np.exp(5 * np.tanh((q[:, :, None] + k[:, None]) / 5))  # at most e^5: no shift is needed
        return np.sum(e * v[:, None], 2) / np.sum(e, 2)

    def with_jax(jnp, q, k, v):
        import jax
        return jnp.sum(jax.nn.softmax(5 * jnp.tanh((q[:, :, None] + k[:, None]) / 5), axis=2) * v[:, None], 2)

    return _fused("feature-wise attention", f"B,T,S,D = {b},{t},{s},{d}", lambda rng: [array(rng, b, n, d) for n in (t, s, s)],
                  (b, t, d), 5, ours=featurewise_attention, torch=with_torch, jax=with_jax, autograd=with_numpy)


def _scores_2d(b, t, s, d, m):
    return _fused("additive scores 2-D", f"B,T,S,D,M = {b},{t},{s},{d},{m}",
                  lambda rng: [array(rng, b, t, d), array(rng, b, s, d), array(rng, m, d)], (b, m, t, s), 5,
                  ours=additive_scores_2d,
                  torch=lambda torch, q, k, w: (torch.tanh(q[:, :, None] + k[:, None]) @ w.T).permute(0, 3, 1, 2),
                  array=lambda np, q, k, w: np.transpose(np.dot(np.tanh(q[:, :, None] + k[:, None]), w.T), (0, 3, 1, 2)))


def _attention(n, t, s, d, causal=False, asked=None):
    """One query (t = 1) is a step of decoding, with the keys and values that were kept."""
    def with_jax(jnp, q, k, v):
        import jax
        q, k, v = (x[:, :, None] for x in (q, k, v))  # its axis of heads
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)[:, :, 0]

    def with_autograd(np, q, k, v):
        e = np.matmul(q, np.swapaxes(k, 1, 2)) / np.float32(d ** 0.5)
        return np.matmul(softmax(np, np.where(np.tri(t, dtype=bool), e, np.float32(-1e9)) if causal else e), v)

    sizes = f"B*H,T,D = {n},{t},{d}{', causal' if causal else ''}" if t == s else f"B*H,T,S,D = {n},{t},{s},{d}"
    def with_torch(torch, q, k, v):
        attend = torch.nn.functional.scaled_dot_product_attention
        if q.is_cuda:  # its fused kernels there want an axis of heads
            return attend(q[None], k[None], v[None], is_causal=causal)[0]
        return attend(q, k, v, is_causal=causal)

    floor = 6 * 2 * n * t * s * d / (2 if causal else 1)  # two products forward, four backward
    return _fused("attention", sizes, lambda rng: [array(rng, n, length, d) for length in (t, s, s)], (n, t, d), asked, floor,
                  ours=lambda q, k, v: scaled_dot_product_attention(q, k, v, causal=causal),
                  card=0.5 if asked else None, torch=with_torch, jax=with_jax, autograd=with_autograd,
                  tinygrad=lambda tinygrad, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal))


def _pagerank(b, n):
    def surf(np, w, y):
        return np.linalg.solve(np.eye(n, dtype=np.float32) - 0.9 * w / np.sum(w, 1, keepdims=True), 0.1 * y[:, :, None])[:, :, 0]

    return _fused("PageRank", f"B,N = {b},{n}", lambda rng: [np.exp(array(rng, b, n, n)), np.full((b, n), 1 / n, np.float32)],
                  (b, n), ours=lambda w, y: PageRank()(w, y), array=surf,
                  torch=lambda torch, w, y: torch.linalg.solve(torch.eye(n, device=w.device) - 0.9 * w / w.sum(1, keepdim=True), 0.1 * y))


def _linear_chain(b, t, c):
    def with_torch(torch, u, w, _):
        forward, backward = [u[:, 0]], [torch.zeros(b, c, device=u.device)]
        for i in range(1, t):
            forward.append(u[:, i] + torch.logsumexp(forward[-1][:, :, None] + w, 1))
        for i in reversed(range(t - 1)):
            backward.insert(0, torch.logsumexp(w + (u[:, i + 1] + backward[0])[:, None], 2))
        logz = torch.logsumexp(forward[-1], 1)
        return (torch.stack(forward, 1) + torch.stack(backward, 1) - logz[:, None, None]).exp()

    def with_jax(jnp, u, w, _):
        """The marginals are the gradient of log Z, so JAX's user writes the forward pass alone."""
        import jax
        from jax.nn import logsumexp

        def log_z(u):
            def step(a, now):
                return now + logsumexp(a[:, :, None] + w, 1), None
            return logsumexp(jax.lax.scan(step, u[:, 0], u[:, 1:].swapaxes(0, 1))[0], 1).sum()
        return jax.grad(log_z)(u)

    return _fused("linear chain", f"B,T,C = {b},{t},{c}", lambda rng: [array(rng, b, t, c), array(rng, c, c), None], (b, t, c),
                  tolerance=1e-3,  # log Z is 40: what is subtracted from it has lost two digits
                  ours=lambda u, w, _: LinearChain()(u, w, _), torch=with_torch, jax=with_jax)


def _eisner(b, n):
    """The marginals of projective trees; no peer has them, and PyTorch's loops take seconds."""
    return _fused("Eisner", f"B,N = {b},{n}", lambda rng: [array(rng, b, n, n), array(rng, b, n), None], (b, n, n),
                  ours=lambda *inputs: Eisner()(*inputs))
