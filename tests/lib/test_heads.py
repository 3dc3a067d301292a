"""Many heads: the integral over Ωh is a sum over heads, which is concatenate-and-project."""

import pytest
import torch
from orders import order
from scipy.integrate import quad
from torch import nn

from lib.attention import SelfAttention, attend, causal
from lib.domain import Domain
from lib.heads import attend_heads

pytestmark = pytest.mark.usefixtures("float64")

B, H, N_q, N_k, D, D_V, OUT = 2, 3, 5, 7, 4, 2, 6
EXACT = {"atol": 1e-12, "rtol": 0}


def parts(lead=(B,)):
    """Random Q, K, V and W_O, no two of whose dimensions are alike."""
    return (
        torch.randn(*lead, H, N_q, D),
        torch.randn(*lead, H, N_k, D),
        torch.randn(*lead, H, N_k, D_V),
        torch.randn(H, OUT, D_V),
    )


@pytest.mark.parametrize("lead", [(), (B,), (2, 1, 3)])
def test_the_sum_over_heads_is_concatenate_and_project(lead):
    Q, K, V, W_O = parts(lead)
    weights, head_weights = torch.rand(N_k) + 0.1, torch.rand(H) + 0.1
    found = attend_heads(Q, K, V, W_O, weights, head_weights)
    heads = attend(Q, K, V, weights) * head_weights[:, None, None]
    side_by_side = torch.cat(heads.unbind(-3), -1)  # (..., N_q, H·d_v)
    project = torch.cat(W_O.unbind(0), -1)  # (out, H·d_v)
    torch.testing.assert_close(found, side_by_side @ project.mT, **EXACT)


def test_the_output_kernel_may_stand_inside_the_values():
    Q, K, V, W_O = parts()
    inside = attend_heads(Q, K, V @ W_O.mT)
    torch.testing.assert_close(attend_heads(Q, K, V, W_O), inside, **EXACT)


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_module(heads, masked):
    module, u = SelfAttention(16, heads), torch.randn(B, N_q, 16)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    weights = causal(torch.rand(N_q) + 0.1) if masked else None
    W_O = module.O.weight.unflatten(1, (heads, -1)).movedim(1, 0)  # (H, d, d/H)
    found = attend_heads(*module.split(u), W_O, weights) + module.O.bias
    torch.testing.assert_close(found, module(u, weights), **EXACT)


def test_the_order_of_the_heads_does_not_matter():
    Q, K, V, W_O = parts()
    mixed, head_weights = torch.tensor([2, 0, 1]), torch.rand(H)
    moved = (part[:, mixed] for part in (Q, K, V))
    found = attend_heads(*moved, W_O[mixed], head_weights=head_weights[mixed])
    expected = attend_heads(Q, K, V, W_O, head_weights=head_weights)
    torch.testing.assert_close(found, expected, **EXACT)


def test_weights_of_heads_do_not_cancel():
    """A token is averaged over, a head is summed over: twice the weight is twice the velocity."""
    Q, K, V, W_O = parts()
    twice = attend_heads(Q, K, V, W_O, head_weights=torch.full((H,), 2.0))
    torch.testing.assert_close(twice, 2 * attend_heads(Q, K, V, W_O), **EXACT)
    none = attend_heads(Q, K, V, W_O, head_weights=torch.zeros(H))
    assert (none == 0).all()


def test_one_set_of_keys_and_values_serves_all_heads():
    Q, K, V, W_O = parts()
    K, V = K[:, :1], V[:, :1]
    copies = (part.repeat(1, H, 1, 1) for part in (K, V))
    torch.testing.assert_close(attend_heads(Q, K, V, W_O), attend_heads(Q, *copies, W_O), **EXACT)


@pytest.mark.parametrize(("rule", "expected"), [(Domain.midpoint, 2), (Domain.trapezoid, 2)])
def test_a_smooth_family_of_kernels_is_integrated_with_the_order_of_the_rule(rule, expected):
    x = torch.linspace(0, 1, 9)

    def family(h):
        """Kernels that become narrower with h, and values that change sign with it."""
        Q = torch.stack([x.expand(len(h), -1), torch.ones(len(h), 9)], -1)
        K = torch.stack([x.expand(len(h), -1), -(x**2).expand(len(h), -1) / 2], -1)
        V = (torch.cos(3 * x) * torch.sin(4 * h)[:, None])[..., None]
        return Q * (1 + 5 * h)[:, None, None], K, V

    def at(h):
        return attend(*family(torch.tensor([h])))[0, 4, 0].item()

    truth, sizes = quad(at, 0, 1, epsabs=1e-12)[0], [8, 16, 32, 64]
    grids = [rule(n) for n in sizes]
    found = [attend_heads(*family(g.nodes), head_weights=g.weights)[4, 0].item() for g in grids]
    steps = [1 / (n - (rule == Domain.trapezoid)) for n in sizes]
    assert order(steps, [abs(value - truth) for value in found]) == pytest.approx(expected, abs=0.1)


def test_gradients_reach_every_part():
    tensors = [part.requires_grad_() for part in (*parts(()), torch.rand(H))]
    assert torch.autograd.gradcheck(
        lambda Q, K, V, W_O, omega: attend_heads(Q, K, V, W_O, head_weights=omega), tensors
    )


BAD = {
    "one-head-without-its-dimension": (lambda p: (p[0][0, 0], *p[1:]), "queries Q of many heads"),
    "other-heads": (lambda p: (p[0], p[1][:, :2], *p[2:]), "leading dimensions of Q, K, V"),
    "W_O-of-other-heads": (lambda p: (*p[:3], p[3][:2]), r"W_O must have shape \(3, d_out, 2\)"),
    "W_O-transposed": (lambda p: (*p[:3], p[3].mT), r"W_O must have shape .* \(3, 2, 6\) came"),
    "W_O-flat": (lambda p: (*p[:3], p[3].flatten(1)), r"W_O must have shape .* \(3, 12\) came"),
    "W_O-nan": (lambda p: (*p[:3], p[3] * torch.nan), "W_O of the heads must be finite"),
    "W_O-float": (lambda p: (*p[:3], p[3].float()), "W_O of the heads .* precision"),
    "W_O-list": (lambda p: (*p[:3], [1.0]), "W_O of the heads must be a torch tensor"),
    "omega-shape": (lambda p: (*p, None, torch.ones(2)), "one for each of the 3 heads"),
    "omega-negative": (
        lambda p: (*p, None, torch.tensor([1.0, -0.5, 1.0])),
        "weights of the heads .* must not be negative",
    ),
    "omega-nan": (lambda p: (*p, None, torch.full((3,), torch.nan)), "weights of the heads .* fin"),
    "weights": (lambda p: (*p, torch.ones(3)), "attention weights must have shape"),
    "overflow": (lambda p: (*p[:3], p[3] * 1e308 * 100, None, None), "finite|too large"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        attend_heads(*change(parts()))
