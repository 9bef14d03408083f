"""The examples of `steps`: each a function that returns the output and names for what it is made of."""
import numpy as np

from tinyattn.functional import linear
from tinyattn.tensor import Tensor


def _numbers(**values):
    """Leaves that ask for a gradient, by name."""
    return {name: Tensor(np.array(v, np.float32), requires_grad=True, name=name) for name, v in values.items()}


def twice():
    """a = 1, b = a + a, c = b + b: the smallest graph that a wrong order gets wrong"""
    a, = _numbers(a=1.0).values()
    b = a + a
    c = b + b
    return c, {"a": a, "b": b, "c": c}


def diamond():
    """a = x + 1, b = 3 a, c = 5 a, d = b c: two ways lead back to a, and their parts add up"""
    x, = _numbers(x=1.0).values()
    a = x + 1
    b, c = 3 * a, 5 * a
    d = b * c
    return d, {"x": x, "a": a, "b": b, "c": c, "d": d}


def product():
    """L = (a b + c) f: sums pass a gradient on, products swap their factors"""
    a, b, c, f = _numbers(a=2.0, b=-3.0, c=10.0, f=-2.0).values()
    e = a * b
    d = e + c
    return d * f, {"a": a, "b": b, "c": c, "f": f, "e": e, "d": d}


def neuron():
    """y = tanh(w1 x1 + w2 x2 + b): one neuron with two inputs"""
    x1, w1, x2, w2, b = _numbers(x1=2.0, w1=-3.0, x2=0.0, w2=1.0, b=6.88).values()
    u1, u2 = w1 * x1, w2 * x2
    u = u1 + u2
    z = u + b
    y = z.tanh()
    return y, {"x1": x1, "w1": w1, "x2": x2, "w2": w2, "b": b, "u1": u1, "u2": u2, "u": u, "z": z, "y": y}


def attention():
    """an attention head: one query, the tokens the, cat, sat (D = E = 2), squared error"""
    values = _numbers(q=[[1.0, 0.5]], k=[[0.2, -0.4], [1.0, 0.8], [-0.5, 0.6]], v=[[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])
    q, k, v = values.values()                                   # rows of k and v: the, cat, sat
    s = linear(q, k)                                            # (1, 3) q kᵀ
    e = s / np.float32(np.sqrt(2.0))                            # (1, 3)
    w = e.softmax(-1)                                           # (1, 3)
    c = w @ v                                                   # (1, 2)
    target = Tensor(np.array([[0.0, 1.0]], np.float32), name="target")
    error = c - target
    square = error * error
    return square.sum(), {**values, "target": target, "s": s, "e": e, "w": w, "c": c, "error": error, "square": square}


def gru():
    """a GRU step of width 1: r acts after the product, z keeps the old state (PyTorch's GRU)"""
    values = _numbers(x=1.5, h0=-1.0, wr=0.4, ur=-0.8, wz=0.6, uz=0.5, wn=0.7, un=-0.6)
    x, h0, wr, ur, wz, uz, wn, un = values.values()
    xr, hr = wr * x, ur * h0
    ar = xr + hr
    r = ar.sigmoid()                                            # reset gate
    xz, hz = wz * x, uz * h0
    az = xz + hz
    z = az.sigmoid()                                            # update gate: how much of the old state is kept
    xn, hn = wn * x, un * h0
    rh = r * hn
    an = xn + rh
    n = an.tanh()                                               # the proposed state
    keep = z * h0
    m = 1 - z
    take = m * n
    h1 = keep + take
    return h1, {**values, "xr": xr, "hr": hr, "ar": ar, "r": r, "xz": xz, "hz": hz, "az": az, "z": z, "xn": xn,
                "hn": hn, "rh": rh, "an": an, "n": n, "keep": keep, "m": m, "take": take, "h1": h1}


def two_layer():
    """tanh(x W1 + b1) W2 + b2 with softmax cross-entropy, for two samples of two classes"""
    values = _numbers(W1=[[0.5, -0.3, 0.8], [0.2, 0.7, -0.5]], b1=[0.1, 0.0, -0.1], W2=[[0.6, -0.4], [-0.2, 0.9],
                      [0.3, 0.1]], b2=[0.0, 0.1])
    w1, b1, w2, b2 = values.values()
    x = Tensor(np.array([[1.0, 2.0], [-1.0, 0.5]], np.float32), name="x")
    a1 = x @ w1                                                 # (2, 3)
    z1 = a1 + b1
    h = z1.tanh()
    a2 = h @ w2                                                 # (2, 2)
    z2 = a2 + b2
    logp = z2.log_softmax(-1)
    right = logp[np.arange(2), np.array([0, 1])]                # (2,) the log-probability of each right class
    mean = right.mean()
    return -mean, {"x": x, **values, "a1": a1, "z1": z1, "h": h, "a2": a2, "z2": z2, "logp": logp,
                    "right": right, "mean": mean}


# names of rows and columns, drawn beside the numbers: {example: {value: (rows, columns)}}
TOKENS = ("the", "cat", "sat")
LABELS = {"attention": {"k": (TOKENS, None), "v": (TOKENS, None), **dict.fromkeys("sew", (None, TOKENS))}}
EXAMPLES = {f.__name__: f for f in (twice, diamond, product, neuron, attention, gru, two_layer)}
