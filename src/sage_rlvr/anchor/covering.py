"""Mass-covering divergences from π_ref, estimated on samples of π_ref alone (DPH-RL, arXiv 2509.07430).

For convex f with f(1) = 0 and the ratio u = π/π_ref of the token that π_ref drew at a prefix, Σ_a π_ref(a)·f(u(a)) is the
f-divergence there. The samples do not depend on the policy, so f(u) is an unbiased estimate of it and autodiff of f(u), which is
f'(u)·u·∇log π, an unbiased estimate of its gradient, at the prefixes that π_ref visits. No importance weight is needed.

Forward KL has f = −log u, gradient −∇log π. Jensen–Shannon, ½KL(π‖m) + ½KL(π_ref‖m) with m = (π + π_ref)/2, has
f = ½·[u·log(2u/(1+u)) + log(2/(1+u))] and f' = ½·log(2u/(1+u)), so that it rests at u = 1; where a token is all but forgotten
(u → 0) its gradient u·f'(u)·∇log π fades, which forward KL's never does.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sage_rlvr.anchor.penalty import _wide
from sage_rlvr.errors import UserError

DIVERGENCES = ("forward", "js")


def covering_penalty(logps: Tensor, ref_logps: Tensor | None, divergence: str = "forward") -> Tensor:
    """f(u) of each token that π_ref drew, (B, T), differentiable in ``logps`` alone. ``forward`` may do without ``ref_logps``:
    then it is −log π, the same gradient, and a value that is larger by π_ref's own −log π_ref."""
    if divergence not in DIVERGENCES:
        raise UserError(f"divergence={divergence!r} is unknown; choose one of {', '.join(DIVERGENCES)}.")
    if ref_logps is None:
        if divergence == "js":
            raise UserError("divergence='js' compares with π_ref token by token: give ref_logps, or take 'forward'.")
        return -_wide(logps)
    log_u = _wide(logps) - _wide(ref_logps).detach()
    if divergence == "forward":
        return -log_u
    # log(2u/(1+u)) = log 2 − softplus(−log u), log(2/(1+u)) = log 2 − softplus(log u): neither overflows
    return 0.5 * (torch.exp(log_u) * (math.log(2) - softplus(-log_u)) + math.log(2) - softplus(log_u))
