"""Linear systems."""
import numpy as np

from ..autograd import Op
from .broadcast import ShapeError


class Solve(Op):
    """x with a x = b, for square matrices a (..., n, n) and b (..., n, m), by LU factorisation (LAPACK through NumPy)."""
    tex = "{a}^{-1} {b}"

    def cpu(self, a, b):
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve: expected a (..., n, n) and b (..., n, m), got {a.shape} and {b.shape}")
        try:
            return np.linalg.solve(a, b)
        except np.linalg.LinAlgError:
            raise ValueError(f"solve: the matrix a of shape {a.shape} is singular") from None

    def grad_a(self, g, x, a, b):
        return -(self.grad_b(g, x, a, b) @ x.transpose(-1, -2))

    def grad_b(self, g, x, a, b):
        return Solve()(a.transpose(-1, -2), g)

    def samples(rng):
        yield {}, (rng.normal(size=(3, 3)) + 3 * np.eye(3), rng.normal(size=(3, 2)))
        yield {}, (rng.normal(size=(2, 2, 2)) + 3 * np.eye(2), rng.normal(size=(2, 1)))
