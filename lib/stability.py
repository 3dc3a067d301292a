"""How large a time step may be: the derivative of a field, its eigenvalues, and what they allow.

Near a state w a small disturbance δ follows δ_t = J δ with the derivative J = f'(w). An explicit
Euler step multiplies the part of δ along an eigenvector by 1 + Δt λ, so it does not grow it only if

    |1 + Δt λ| ≤ 1,   that is   Δt ≤ −2 Re λ / |λ|²     (Re λ < 0)

Fields of large networks have too many numbers for J to be written down; here it is only applied to
vectors, by automatic differentiation, and SciPy's Lanczos and Arnoldi methods do the rest.
"""

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigs, svds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lib.checks import require, require_callable, require_real
from lib.splitting import Velocity


def derivative(field: Velocity, w: Tensor) -> LinearOperator:
    """The derivative J = f'(w) as a SciPy operator: J δ forwards, Jᵀ δ backwards, J itself is never stored.

    Shapes: w any, with n numbers in all; the operator is (n, n). Dimensionless. (Forward derivatives
    of attention need torch's plain formula, so γ is stored meanwhile.)
    Errors: `ValueError` when the field does not keep the shape of w.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require_callable("the field to be differentiated", field)
    require_real("the state w at which a field is differentiated", w)
    w = w.detach()
    with torch.no_grad():
        shape = field(w).shape
    require(
        shape == w.shape,
        f"a field must keep the shape {tuple(w.shape)} of w, but {tuple(shape)} came",
    )

    def like_w(vector: np.ndarray) -> Tensor:
        return torch.as_tensor(vector).to(w.dtype).reshape(w.shape)

    def forwards(vector: np.ndarray) -> np.ndarray:
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            return torch.func.jvp(field, (w,), (like_w(vector),))[1].flatten().numpy()

    def backwards(vector: np.ndarray) -> np.ndarray:
        with torch.enable_grad():
            at = w.clone().requires_grad_()
            return torch.autograd.grad(field(at), at, like_w(vector))[0].flatten().numpy()

    return LinearOperator((w.numel(),) * 2, forwards, backwards, dtype=w.numpy().dtype)


def lipschitz(field: Velocity, w: Tensor) -> float:
    """The Lipschitz constant of a field near w: the largest singular value of its derivative there.

        |f(w + δ) − f(w)| ≤ L |δ| + o(|δ|)

    Errors: as in `derivative`; `ValueError` also for fewer than three numbers.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    J = _large_enough(derivative(field, w))
    return float(svds(J, k=1, v0=_start(J), return_singular_vectors=False, tol=1e-3)[0])


def stiffest(field: Velocity, w: Tensor) -> tuple[complex, Tensor]:
    """The eigenvalue λ of f'(w) with the most negative real part, and where it lives.

    Returns λ and the share of its eigenvector on each token: shape w.shape[:-1], sum 1. Units of λ:
    1/t.
    Errors: as in `lipschitz`.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    J = _large_enough(derivative(field, w))
    values, vectors = eigs(J, k=1, which="SR", v0=_start(J), tol=1e-3)
    share = np.abs(vectors[:, 0].reshape(w.shape)) ** 2
    return complex(values[0]), torch.from_numpy(share.sum(-1) / share.sum())


def largest_step(eigenvalue: complex) -> float:
    """The largest Δt for which an explicit Euler step does not grow a disturbance: −2 Re λ/|λ|².

    Units of t. Errors: `ValueError` when Re λ ≥ 0: such a disturbance grows in the equation itself,
    and no step can be asked to damp it.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    eigenvalue = complex(eigenvalue)
    require(
        eigenvalue.real < 0 and np.isfinite(eigenvalue),
        f"only a decaying disturbance (Re λ < 0) limits the step, but λ = {eigenvalue} came",
    )
    return -2 * eigenvalue.real / abs(eigenvalue) ** 2


def _start(J: LinearOperator) -> np.ndarray:
    """The first vector of the iteration: always the same one, so that digits repeat."""
    return np.random.default_rng(0).standard_normal(J.shape[0]).astype(J.dtype)


def _large_enough(J: LinearOperator) -> LinearOperator:
    require(J.shape[0] >= 3, f"Arnoldi's method needs at least 3 numbers, but w has {J.shape[0]}")
    return J
