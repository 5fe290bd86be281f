"""The lab's two pictures: how far each estimator stays from its target, and what the two KLs do to a mixture (Fig. 5)."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STYLE = {  # one dash pattern an estimator, so that the lines part in greyscale too
    "k3": ("#1f4e79", "-"),
    "k2": ("#c55a11", "--"),
    "k3+": ("#c55a11", ":"),
    "forward": ("#7f7f7f", ":"),
    "forward-value": ("#7f7f7f", "-."),
    "k1-reward": ("#2e7d32", "-"),
    "k1-reward, to_go": ("#2e7d32", "--"),
}


def _axes(columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, columns, figsize=(width, height), sharey=True, squeeze=False, layout="constrained"
    )
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes[0]


def _save(figure: Any, path: Path) -> list[Path]:
    from matplotlib import pyplot

    out = [path.with_suffix(s) for s in (".svg", ".png")]
    for file in out:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
    return out


def distance_figure(curves: dict[str, dict[str, list[float]]], path: Path) -> list[Path]:
    """``curves[guide][estimator]`` = total variation to the guide's own target, step by step."""
    figure, axes = _axes(len(curves), 3.1 * len(curves), 3.5)
    for ax, (guide, lines) in zip(axes, curves.items()):
        for label, distance in lines.items():
            colour, dash = STYLE[label]
            ax.plot(
                range(1, len(distance) + 1),
                [max(d, 1e-9) for d in distance],
                color=colour,
                ls=dash,
                lw=1.6,
                label=label,
            )
        ax.set(xscale="log", yscale="log", ylim=(1e-7, 1), xlabel="descent step", title=guide)
        ax.grid(alpha=0.25)
    axes[0].set_ylabel("distance to the solution it is\nsupposed to reach (total variation)")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=len(STYLE), frameon=False)
    return _save(figure, path)


def mixture(x: Tensor) -> Tensor:
    """Two unequal bumps."""
    return 0.6 * _gaussian(x, -2.0, 0.7) + 0.4 * _gaussian(x, 2.2, 0.9)


def _gaussian(x: Tensor, mean: float | Tensor, std: float | Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - mean) / std) ** 2) / (std * (2 * torch.pi) ** 0.5)


def fit_gaussian(direction: str, x: Tensor) -> tuple[float, float]:
    """(mean, std) of the Gaussian nearest to the mixture in reverse or forward KL, by L-BFGS from several starts."""
    target, width = mixture(x), float(x[1] - x[0])
    best = (float("inf"), 0.0, 1.0)
    for start in (-2.0, 0.0, 2.0):
        free = torch.tensor([start, 0.0], dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([free], max_iter=200, line_search_fn="strong_wolfe")

        def divergence(free: Tensor = free) -> Tensor:
            fit = _gaussian(x, free[0], free[1].exp()) + 1e-300
            p, q = (fit, target + 1e-300) if direction == "reverse" else (target, fit)
            return (p * (p.clamp(min=1e-300).log() - q.log())).sum() * width

        def closure(free: Tensor = free, optimiser: Any = optimiser, divergence: Any = divergence) -> Tensor:
            optimiser.zero_grad()
            loss = divergence()
            loss.backward()
            return loss

        optimiser.step(closure)
        mean, log_std = free.detach().tolist()
        best = min(best, (divergence().item(), mean, math.exp(log_std)))
    return best[1:]


def kl_figure(path: Path) -> list[Path]:
    """Fig. 5: reverse KL seeks a mode, forward KL covers both."""
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    figure, axes = _axes(2, 7.5, 2.8)
    for ax, direction, text in zip(
        axes, ("reverse", "forward"), ("reverse KL: seeks a mode", "forward KL: covers both")
    ):
        mean, std = fit_gaussian(direction, x)
        ax.fill_between(x, mixture(x), color="#d9d9d9", label="target")
        ax.plot(x, _gaussian(x, mean, std), color="#1f4e79", lw=1.8, label=f"fit: mean {mean:.2f}, std {std:.2f}")
        ax.set(title=text, xlim=(-6, 6), xlabel="x")
        ax.legend(frameon=False, fontsize=8)
    return _save(figure, path)
