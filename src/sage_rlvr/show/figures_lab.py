"""The lab's pictures: how far each estimator ends from its target, and what the two KLs do to a mixture (Fig. 5)."""

import math
from pathlib import Path

import torch
from torch import Tensor

from sage_rlvr.show.style import Figure, legend, line, panels, save

PLAIN = {"k3": "k3: as published", "k2": "k3+: TRL’s default", "k1-reward": "exact in expectation"}


def distance_figure(final: dict[str, dict[str, float]], path: Path) -> Figure:
    """``final[estimator][guide]``: total variation between where descent ends and the solution it is supposed to reach.
    Estimators that end in the same places share a row."""
    rows: list[tuple[list[str], dict[str, float]]] = []
    for name, by in final.items():
        twin = next((names for names, other in rows if all(abs(other[g] - x) < 1e-9 for g, x in by.items())), None)
        twin.append(name) if twin else rows.append(([name], by))
    words = [next((f"\n{PLAIN[name]}" for name in names if name in PLAIN), "") for names, _ in rows]
    with panels(1, width=7.2, height=0.5 * len(rows) + 0.5) as (figure, axes):
        ax = axes[0, 0]
        for i, guide in enumerate(rows[0][1]):
            style = line(i) | {"ls": "none", "ms": 7}
            ax.plot([by[guide] for _, by in rows], range(len(rows)), label=_called(guide), clip_on=False, **style)
        ax.set_yticks(range(len(rows)), [", ".join(names) + word for (names, _), word in zip(rows, words)])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlim(0, None)
        ax.set_xlabel("distance to that solution (total variation); 0: there")
        ax.set_title("Only k1-reward ends at the solution that the KL penalty promises", loc="left", fontweight="bold")
        legend(figure, axes)
        told = {name: ", ".join(f"{_called(g)} {x:.3f}" for g, x in by.items()) for name, by in final.items()}
        about = "Distance between where training ends and its target, by estimator and guide."
        return save(figure, path, f"{about} {'; '.join(f'{name}: {x}' for name, x in told.items())}.")


def _called(guide: str) -> str:
    return "no guide" if guide == "none" else guide


def mixture(x: Tensor) -> Tensor:
    """Two unequal bumps."""
    return 0.6 * _gaussian(x, -2.0, 0.7) + 0.4 * _gaussian(x, 2.2, 0.9)


def _gaussian(x: Tensor, mean: float | Tensor, std: float | Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - mean) / std) ** 2) / (std * (2 * torch.pi) ** 0.5)


def fit_gaussian(direction: str, x: Tensor) -> tuple[float, float]:
    """(mean, std) of the Gaussian nearest to the mixture in reverse or forward KL, by L-BFGS from several starts."""
    return min(_fit(direction, x, start) for start in (-2.0, 0.0, 2.0))[1:]


def _fit(direction: str, x: Tensor, start: float) -> tuple[float, float, float]:
    """(the divergence, mean, std)"""
    target, width = mixture(x), float(x[1] - x[0])
    free = torch.tensor([start, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=200, line_search_fn="strong_wolfe")

    def divergence() -> Tensor:
        optimiser.zero_grad()
        fit = _gaussian(x, free[0], free[1].exp()) + 1e-300
        p, q = (fit, target + 1e-300) if direction == "reverse" else (target, fit)
        loss = (p * (p.clamp(min=1e-300).log() - q.log())).sum() * width
        loss.backward()
        return loss

    optimiser.step(divergence)
    mean, log_std = free.detach().tolist()
    return divergence().item(), mean, math.exp(log_std)


def kl_figure(path: Path) -> Figure:
    """Fig. 5: reverse KL seeks a mode, forward KL covers both."""
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    with panels(2, sharey=True) as (figure, axes):
        for ax, direction, text in zip(axes.flat, ("reverse", "forward"), ("seeks a mode", "covers both")):
            mean, std = fit_gaussian(direction, x)
            seen = x.abs() < 6
            ax.fill_between(x[seen], mixture(x[seen]), color="#d9d9d9", label="target")
            fit = _gaussian(x[seen], mean, std)
            ax.plot(x[seen], fit, color="#1f4e79", lw=1.8, label=f"fit: mean {mean:.2f}, std {std:.2f}")
            ax.set(title=f"{direction} KL: {text}", xlabel="x")
            ax.legend(frameon=False, fontsize=8)
        text = "A Gaussian fitted to a mixture of two: under reverse KL it sits on one bump, under forward KL it covers both."
        return save(figure, path, text)
