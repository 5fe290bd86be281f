"""Penalties toward the anchor q·π_ref, and the same leash as a reward (METHOD sections 1 and 4).

Which estimator you choose decides which gradient you follow; docs/estimators.md has the table.
"""

import torch
from torch import Tensor

from sage_rlvr.errors import UserError

ESTIMATORS = frozenset({"k3", "k2", "k3+", "forward", "forward-value", "k1-reward"})
IN_LOSS = ("k3", "k2", "k3+", "forward", "forward-value")
CREDITS = ("sequence", "to_go")


def _wide(x: Tensor) -> Tensor:
    """At least float32: a bf16 log-prob of −8 has steps of 0.03."""
    return x if x.dtype == torch.float64 else x.float()


def anchor_penalty(
    logps: Tensor, ref_logps: Tensor, log_q: Tensor, estimator: str = "k3", old_logps: Tensor | None = None
) -> Tensor:
    """Per-token penalty (B, T), differentiable in ``logps`` alone. With w = q·π_ref/π:

    ============== ============================== =====================================================
    estimator      value                          gradient, averaged over on-policy samples
    ============== ============================== =====================================================
    k3             w − log w − 1                  −E_{q·π_ref}[∇log π], prefix by prefix: forward KL
    k2             ½ log²w                        −E_π[log w·∇log π]: reverse KL, token by token
    k3+            (w − log w − 1)·π/π_old        the same as k2
    forward        −sg(w)·log π                   the same as k3
    forward-value  w·log w − w + 1                −E_{q·π_ref}[log w·∇log π]: gradient of ½E_{q·π_ref}[log²w]
    ============== ============================== =====================================================

    ``old_logps`` (k3+ only) are those of the policy that sampled; None means on-policy.
    """
    if estimator == "k1-reward":
        raise UserError(
            "estimator='k1-reward' is not a penalty in the loss: use anchor_reward and add it to the reward."
        )
    if estimator not in ESTIMATORS:
        raise UserError(f"estimator={estimator!r} is unknown; choose one of {', '.join(IN_LOSS)}.")
    if old_logps is not None and estimator != "k3+":
        raise UserError(f"old_logps is used by estimator='k3+' alone, not by {estimator!r}; leave it out.")
    logps = _wide(logps)
    log_rho = (_wide(ref_logps) + _wide(log_q)).detach() - logps
    if estimator == "k2":
        return 0.5 * log_rho.square()
    if estimator == "forward":
        return -log_rho.detach().exp() * logps
    rho = log_rho.exp()
    if estimator == "forward-value":
        return rho * log_rho - rho + 1
    k3 = rho - log_rho - 1
    if estimator == "k3":
        return k3
    old = logps.detach() if old_logps is None else _wide(old_logps).detach()
    return k3 * (logps - old).exp()


def anchor_reward(logps: Tensor, ref_logps: Tensor, log_q: Tensor, mask: Tensor, credit: str = "sequence") -> Tensor:
    """The leash as a reward: −Σ_t (log π − log π_ref − log q), no gradient.

    ``credit="sequence"`` gives (B,), one number per completion: with β times it in the reward, the policy gradient is that
    of Eq. 6 exactly. ``credit="to_go"`` gives (B, T): each token is paid for what follows it, itself included; less noise,
    and exact for guides whose q_t depends on the past alone (``guide.past_only``). Zero off-mask.
    """
    if credit not in CREDITS:
        raise UserError(f"credit={credit!r} is unknown; choose one of {', '.join(CREDITS)}.")
    with torch.no_grad():
        per_token = torch.where(mask.bool(), _wide(ref_logps) + _wide(log_q) - _wide(logps), 0.0)
        if credit == "sequence":
            return per_token.sum(-1)
        return per_token.flip(-1).cumsum(-1).flip(-1) * mask.bool()
