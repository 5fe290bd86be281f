"""What a model card says of the anchor and the advantage."""

from pathlib import Path

from sage_rlvr.anchor import Guide
from sage_rlvr.train.config import SAGEConfig

GRADIENT = {
    "k3": "k3 in the loss, as published: a forward-KL pull toward the anchor, prefix by prefix",
    "k2": "k2 in the loss: a reverse-KL pull, token by token",
    "k3+": "k3+ in the loss (bias-corrected): a reverse-KL pull, token by token",
    "forward": "forward-KL surrogate in the loss, the gradient of k3",
    "forward-value": "autodiff of the forward-KL value in the loss: the gradient of neither KL",
    "k1-reward": "k1 in the reward, as derived",
}


def describe(args: SAGEConfig, guide: Guide | None, peft: bool) -> str:
    """A section for the card: guide, estimator, anchor, advantage."""
    reference = (
        "the weights before RL (adapter off, or its copy from before RL)" if peft else "a frozen copy from before RL"
    )
    if args.sync_ref_model:
        reference += f", moved toward the policy every {args.ref_model_sync_steps} steps (sync_ref_model)"
    if args.anchor_reset:
        reference += (
            f", and every {args.anchor_reset} steps the policy of that step (anchor_reset); the optimizer goes on"
        )
    if args.beta == 0:
        anchor = "none (beta = 0)"
    else:
        shape = f"q·π_ref, q from `{guide!r}`" if guide is not None else "π_ref"
        anchor = f"{shape}, β = {args.beta}; π_ref is {reference}"
    lines = [
        "\n## The anchor (sage-rlvr)\n",
        f"- Guide: `{guide!r}`" if guide is not None else "- Guide: none",
        f"- Anchor: {anchor}",
        f"- Estimator: {GRADIENT[args.anchor_estimator]}",
        f"- Advantage: {_advantage(args)}",
    ]
    if args.anchor_estimator == "k1-reward":
        departures = args.departures()
        lines.append(f"- Exact gradient of the objective: {'no, ' + '; '.join(departures) if departures else 'yes'}")
    if args.keep_from is not None:
        how = {"forward": "forward KL", "js": "Jensen–Shannon divergence"}[args.keep_divergence]
        lines.append(
            f"- Kept: {how} on right answers of the model before RL, drawn beforehand (`{Path(args.keep_from).name}`, at most "
            f"{args.keep_per_problem} per problem), weight {args.keep_coef}; arXiv 2509.07430"
        )
    return "\n".join(lines) + "\n"


def _advantage(args: SAGEConfig) -> str:
    """Its parts with their settings, in the order they are taken in; GRPO's own where none of them makes the advantages."""
    parts = args.make_advantage().parts
    said = ", ".join(f"`{part.name}` `{part!r}`" for part in parts)
    if any(part.stage == "advantage" for part in parts):
        return said
    return f"{said}, with GRPO's own (scale_rewards = {args.scale_rewards})"
