"""The lab's pictures: how far each estimator ends from its target, and what the two KLs do to a mixture (Fig. 5)."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.show.style import Figure, panels, save

GUIDES = {  # guide → (its name, light, dark, its mark around (0, 0))
    "none": ("no guide", "#4d5561", "#b3bcc8", "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0"),
    "branch": ("branch", "#0b6bcb", "#6cb2ff", "M-4.6,-4.6h9.2v9.2h-9.2z"),
    "token": ("token", "#c2410c", "#ff9d66", "M0,-6l5.6,10h-11.2z"),
    "tempered": ("tempered", "#0f7b54", "#4fd1a1", "M0,-6.4l6.4,6.4l-6.4,6.4l-6.4,-6.4z"),
    "random": ("random", "#8b2fa0", "#d79bff", "M0,6l-5.6,-10h11.2z"),
}
PLAIN = {"k3": "k3: as published", "k2": "k3+: TRL’s default", "k1-reward": "exact in expectation"}
WIDE, LEFT, ROW, TOP = 690, 230, 44, 86  # pixels: the figure is shown as large as it is drawn


def distance_figure(final: dict[str, dict[str, float]]) -> str:
    """An SVG for light and dark pages. ``final[estimator][guide]``: total variation between where descent ends and the
    solution it is supposed to reach. Estimators that end in the same places share a row."""
    rows: list[tuple[list[str], dict[str, float]]] = []
    for name, by in final.items():
        twin = next((names for names, other in rows if all(abs(other[g] - x) < 1e-9 for g, x in by.items())), None)
        twin.append(name) if twin else rows.append(([name], by))
    step = 0.05
    ticks = [step * i for i in range(math.ceil(max(max(by.values()) for _, by in rows) / step) + 1)]
    bottom = TOP + ROW * len(rows)

    def x(value: float) -> float:
        return round(LEFT + (WIDE - LEFT - 24) * value / ticks[-1], 2)

    out = []
    for tick in ticks:
        out.append(f'<path class="grid" d="M{x(tick)},{TOP - 8}V{bottom}"/>')
        out.append(f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle">{tick:.2f}</text>')
    for i, (names, by) in enumerate(rows):
        y = TOP + ROW * i + ROW / 2 - 4
        words = next((PLAIN[name] for name in names if name in PLAIN), "")
        out.append(
            f'<text class="name" x="{LEFT - 16}" y="{y + (0 if words else 5)}" text-anchor="end">{", ".join(names)}</text>'
        )
        out.append(
            f'<text class="small" x="{LEFT - 16}" y="{y + 15}" text-anchor="end">{words}</text>' if words else ""
        )
        out.append(f'<path class="grid" d="M{LEFT},{y}H{WIDE - 24}"/>')
        out += [f'<path class="{g}" d="{GUIDES[g][3]}" transform="translate({x(v)} {y})"/>' for g, v in by.items()]
    for i, (guide, (name, _, _, mark)) in enumerate(GUIDES.items()):
        out.append(f'<path class="{guide}" d="{mark}" transform="translate({LEFT + 6 + 92 * i} 58)"/>')
        out.append(f'<text x="{LEFT + 18 + 92 * i}" y="62">{name}</text>')
    light, dark = (" ".join(f".{g} {{fill: {of[1 + d]}}}" for g, of in GUIDES.items()) for d in (0, 1))
    high = bottom + 48
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" role="img">
<title>Distance between where training ends and its target, by estimator and guide: only k1-reward reaches it</title>
<style>
text {{font: 13px system-ui, sans-serif; fill: #1a1d21}} .head {{font-weight: 600; font-size: 16px}} .name {{font-weight: 600}}
.small {{font-size: 12px; fill: #4d5561}} .grid {{stroke: #d9dee5; fill: none}} {light}
@media (prefers-color-scheme: dark) {{text {{fill: #eceff3}} .small {{fill: #b3bcc8}} .grid {{stroke: #434b56}} {dark}}}
</style>
<text class="head" x="8" y="24">Only k1-reward ends at the solution that the KL penalty promises</text>
<text class="small" x="8" y="62">KL estimator, and guide:</text>
{chr(10).join(filter(None, out))}
<text class="small" x="{WIDE - 24}" y="{high - 8}" text-anchor="end">distance to that solution (total variation); 0: there</text>
</svg>
"""


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
