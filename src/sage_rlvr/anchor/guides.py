"""Guides: log q_t from signals the model already gives (METHOD section 2 and 4.5).

A guide is called with :class:`Signals` and answers log q, (B, T) float32, no gradient, exactly 0 where the mask is 0.
To add one, subclass :class:`Guide`, write ``log_q`` and register it:

    @register_guide("flat")
    class FlatGuide(Guide):
        token_dependent = False
        def __init__(self, bonus: float = 0.1):
            self.bonus = bonus
        def log_q(self, s: Signals) -> Tensor:
            return torch.full_like(s.logps, self.bonus)
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sage_rlvr.anchor import noise
from sage_rlvr.anchor.schedules import CosineRestarts
from sage_rlvr.errors import UserError
from sage_rlvr.registered import Registry


@dataclass
class Signals:
    """What a guide may look at; all (B, T) unless said."""

    logps: Tensor  # log π_θ(y_t), detached
    ref_logps: Tensor  # log π_ref(y_t)
    mask: Tensor  # 1 where a token counts
    entropies: Tensor | None = None  # H_t of the policy, nats
    ref_entropies: Tensor | None = None
    step: int = 0  # optimizer step, and how many there will be
    max_steps: int = 1
    generator: torch.Generator | None = None
    rows: Tensor | None = None  # (B,) each row's number in the whole rollout batch; noise is keyed by it
    rewards: Tensor | None = None  # (B,) each completion's reward, NaN where it could not be scored
    group: int | None = None  # rows of one prompt, which lie together; for guides that look across rows
    beta: float | None = None  # β of the pull toward the anchor
    hidden: Tensor | None = None  # (B, T + 1, d) the policy's last hidden states: after the prompt and after each token


class Guide:
    """A shape for the anchor. Subclasses write ``log_q``; calling the guide checks what goes in and what comes out."""

    name: ClassVar[str] = ""
    token_dependent: ClassVar[bool] = True  # False: q_t is a function of the state alone, inert under k2 and k3+
    past_only: ClassVar[bool] = True  # False: q_t looks at later tokens, so reward-to-go credit is not exact
    across_rows: ClassVar[bool] = False  # True: q looks at other completions, so it wants the whole rollout batch
    pays_completions: ClassVar[bool] = False  # True: Σ_t log q_t is bounded for any length; guide_center would undo it
    learns: ClassVar[bool] = False  # True: ``learn`` is called once for every rollout batch, after its log q
    stochastic: ClassVar[bool] = False
    needs: frozenset[str] = frozenset()  # optional fields of Signals that must be computed for it

    def log_q(self, s: Signals) -> Tensor:
        """(B, T) log q from float32 signals that are finite everywhere (off-mask values are 0)."""
        raise TypeError(f"{type(self).__name__} must define log_q(self, signals): it answers log q, shaped like logps.")

    def check_rewards(self, rewards: Tensor) -> None:
        """Raises UserError where rewards, NaN for those that could not be judged, are none this guide can use: asked of a whole
        rollout batch, so that every process of a run stops alike."""

    @torch.no_grad()
    def __call__(self, signals: Signals) -> Tensor:
        clean = _checked(signals, self)
        log_q = self.log_q(clean)
        if log_q.shape != clean.mask.shape:
            shapes = f"{tuple(log_q.shape)} for signals of {tuple(clean.mask.shape)}"
            raise ValueError(f"guide {self.name!r} answered {shapes}: log_q must have the shape of logps.")
        log_q = torch.where(clean.mask, log_q.float(), 0.0)
        if not torch.isfinite(log_q).all():
            raise ValueError(
                f"guide {self.name!r} answered NaN or inf on counted tokens: q must be positive and finite."
            )
        return log_q

    def learn(self, signals: Signals, gather: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """From a rollout batch whose log q is made: this process' rows. ``gather`` brings (1, n) of every process together,
        (W, n); every process calls it as often. Answers what the log should say, name → number."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, as they stand: what a log, a model card or a checkpoint says of this guide."""
        return {p: getattr(self, p) for p in inspect.signature(type(self)).parameters if hasattr(self, p)}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a checkpoint. Noise and schedules are functions of (key, step), so the built-in
        guides keep their settings only; a guide that learns as it goes adds its tensors."""
        return {"name": self.name or type(self).__name__, "settings": self.settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a checkpoint of another guide, naming what differs: q would change without a word."""
        mine = Guide.state_dict(self)
        if state["name"] != mine["name"]:
            raise UserError(
                f"the checkpoint's guide is {state['name']!r}, this run's is {mine['name']!r}: "
                f"resume with guide={state['name']!r} or start a new run from the weights."
            )
        for key, value in mine["settings"].items():
            if state["settings"].get(key, value) != value:
                raise UserError(
                    f"guide {mine['name']!r} was saved with {key}={state['settings'][key]!r}, this run has {value!r}: "
                    f"resume with the saved value or start a new run from the weights."
                )

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.settings().items())
        return f"{type(self).__name__}({inside})"


def _checked(s: Signals, guide: Guide) -> Signals:
    """Signals in float32 with off-mask values set to 0; an error that names the tensor that is missing or not finite."""
    mask = s.mask.bool()
    clean: dict[str, Any] = {}
    for field in guide.needs:
        if getattr(s, field) is None:
            have = [f.name for f in fields(s) if isinstance(getattr(s, f.name), Tensor)]
            raise UserError(
                f"guide {guide.name!r} needs Signals.{field}, which is None (given: {', '.join(have)}): "
                f"compute {field}, or choose another source or guide."
            )
    for field in ("logps", "ref_logps", "entropies", "ref_entropies"):
        value = getattr(s, field)
        if value is None:
            continue
        if value.shape != mask.shape:
            raise ValueError(
                f"Signals.{field} has shape {tuple(value.shape)}, the mask {tuple(mask.shape)}: both are (rows, tokens)."
            )
        value = torch.where(mask, value.detach().float(), 0.0)
        if not torch.isfinite(value).all():
            row, column = (~torch.isfinite(value)).nonzero()[0].tolist()
            raise ValueError(
                f"Signals.{field} is {value[row, column].item()} on a counted token (row {row}, column {column})."
            )
        clean[field] = value
    for field in ("rows", "rewards"):
        value = getattr(s, field)
        if value is not None and value.shape != mask.shape[:1]:
            raise ValueError(f"Signals.{field} has shape {tuple(value.shape)}, but there are {mask.shape[0]} rows.")
    if s.group is not None and (s.group < 1 or mask.shape[0] % s.group) and "group" in guide.needs:
        raise ValueError(f"Signals.group is {s.group}, but {mask.shape[0]} rows are no whole number of groups.")
    if s.hidden is not None and s.hidden.shape[:2] != (mask.shape[0], mask.shape[1] + 1):
        raise ValueError(
            f"Signals.hidden has shape {tuple(s.hidden.shape)}, the mask {tuple(mask.shape)}: it is (rows, tokens + 1, size)."
        )
    return replace(s, mask=mask, **clean)


def tellable(log_q: Tensor) -> Tensor:
    """log q for a log or a page, 60 at most: the mean of exp of it is finite, however strong the bonus."""
    return log_q.clamp(max=60)


# ---- the registry --------------------------------------------------------------------------------------------------

_REGISTRY = Registry("guide", Guide)
register_guide = _REGISTRY.register
make_guide = _REGISTRY.make


# ---- the guides ----------------------------------------------------------------------------------------------------


def _check_clamp(q_min: float, q_max: float) -> None:
    if q_min <= 0:
        raise UserError(f"q_min={q_min}: q must stay positive; set q_min above 0 (0.6 in the paper).")
    if q_min >= q_max:
        raise UserError(f"q_min={q_min} is not below q_max={q_max}: give the clamp as q_min < q_max (0.6 and 1.4).")


def _choice(field: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UserError(f"{field}={value!r} is unknown; choose one of {', '.join(choices)}.")
    return value


def _not_negative(**values: float) -> None:
    for field, value in values.items():
        if value < 0:
            raise UserError(f"{field}={value} must not be negative.")


def _schedule(field: str, pair: Any, periods: int, decay: float) -> CosineRestarts:
    """(high, low) → schedule; a single number is constant."""
    numbers = () if isinstance(pair, str) else pair  # "21" is no pair
    try:
        high, low = (pair, pair) if isinstance(pair, int | float) else map(float, numbers)
    except (TypeError, ValueError) as e:
        raise UserError(f"{field}={pair!r}: give one number, or a pair (high, low).") from e
    _not_negative(**{field: low})
    constant = high == low
    return CosineRestarts(high, low, 1 if constant else periods, 1.0 if constant else decay)


def _rows(s: Signals) -> Tensor:
    return s.rows if s.rows is not None else torch.arange(s.mask.shape[0], device=s.mask.device)


@register_guide("random")
class RandomGuide(Guide):
    """Eq. 9: with probability epsilon a token's q is 1 + σ·N(0, 1); else 1. Epsilon and σ follow CosineRestarts."""

    token_dependent = False  # it never looks at the token either
    stochastic = True

    def __init__(
        self,
        epsilon: tuple[float, float] | float = (0.1, 0.0),
        sigma: tuple[float, float] | float = (0.15, 0.05),
        periods: int = 8,
        decay: float = 0.9,
        q_min: float = 0.6,
        q_max: float = 1.4,
    ):
        _check_clamp(q_min, q_max)
        self.epsilon, self.sigma, self.periods, self.decay = epsilon, sigma, periods, decay
        self.q_min, self.q_max = q_min, q_max
        self._epsilon = _schedule("epsilon", epsilon, periods, decay)
        self._sigma = _schedule("sigma", sigma, periods, decay)

    def log_q(self, s: Signals) -> Tensor:
        rows, columns, key = _rows(s), s.mask.shape[1], noise.draw_key(s.generator)
        hit = noise.uniform(key, rows, columns, 2) < self._epsilon(s.step, s.max_steps)
        q = 1 + self._sigma(s.step, s.max_steps) * noise.normal(key, rows, columns, 0)
        return torch.where(hit, q.clamp(self.q_min, self.q_max).log(), 0.0)


@register_guide("token")
class TokenGuide(Guide):
    """Eq. 10: q ~ N(1 + α·s̃, (σ·s̃)²), s̃ ∈ [0, 1] the token's surprisal −log π(y_t), normalised within its completion.

    ``normalize``: "minmax" between the completion's 5% and 95% quantiles, "rank", or the sigmoid of "zscore".
    """

    past_only = False  # the normalisation looks at the whole completion
    stochastic = True

    def __init__(
        self,
        alpha: tuple[float, float] | float = (0.3, 0.1),
        sigma: tuple[float, float] | float = (0.25, 0.1),
        normalize: str = "minmax",
        periods: int = 8,
        decay: float = 0.9,
        q_min: float = 0.6,
        q_max: float = 1.4,
    ):
        _check_clamp(q_min, q_max)
        self.normalize = _choice("normalize", normalize, tuple(_NORMALISE))
        self.alpha, self.sigma, self.periods, self.decay = alpha, sigma, periods, decay
        self.q_min, self.q_max = q_min, q_max
        self._alpha = _schedule("alpha", alpha, periods, decay)
        self._sigma = _schedule("sigma", sigma, periods, decay)

    def log_q(self, s: Signals) -> Tensor:
        rel = _NORMALISE[self.normalize](-s.logps, s.mask)
        z = noise.normal(noise.draw_key(s.generator), _rows(s), s.mask.shape[1], 0)
        q = 1 + rel * (self._alpha(s.step, s.max_steps) + self._sigma(s.step, s.max_steps) * z)
        return q.clamp(self.q_min, self.q_max).log()


@register_guide("branch")
class BranchGuide(Guide):
    """Eq. 11: q = 1 + ρ·max(0, H − τ), H the entropy of the next-token distribution in nats.

    It depends on the state, not on the token: under k2 and k3+ its expected gradient is zero.
    """

    token_dependent = False

    def __init__(
        self, ratio: float = 0.3, threshold: float = 1.2, q_min: float = 0.6, q_max: float = 1.4, source: str = "policy"
    ):
        _check_clamp(q_min, q_max)
        _not_negative(ratio=ratio, threshold=threshold)
        self.ratio, self.threshold, self.q_min, self.q_max = ratio, threshold, q_min, q_max
        self.source = _choice("source", source, tuple(_SOURCES))
        self.needs = frozenset({_SOURCES[source]})

    def tau(self, h: Tensor, mask: Tensor) -> Tensor | float:
        """The entropy above which q grows, given the (B, T) entropies and which of them count."""
        return self.threshold

    def log_q(self, s: Signals) -> Tensor:
        return (1 + _excess(s, self)).clamp(self.q_min, self.q_max).log()


@register_guide("tempered")
class TemperedGuide(Guide):
    """log q = κ·(−log π_ref(y_t)), κ = min(κ_max, ρ·max(0, H − τ)): at forks the anchor is π_ref^(1−κ), flatter than π_ref.

    It depends on the token, so it works under every estimator. No clamp on q.
    """

    def __init__(self, ratio: float = 0.5, threshold: float = 1.2, kappa_max: float = 0.5, source: str = "policy"):
        _not_negative(ratio=ratio, threshold=threshold)
        if not 0 < kappa_max <= 1:
            raise UserError(f"kappa_max={kappa_max} must lie in (0, 1]: at 1 the anchor is flat, above it is inverted.")
        self.ratio, self.threshold, self.kappa_max = ratio, threshold, kappa_max
        self.source = _choice("source", source, tuple(_SOURCES))
        self.needs = frozenset({_SOURCES[source]})

    def tau(self, h: Tensor, mask: Tensor) -> Tensor | float:
        """The entropy above which κ grows, given the (B, T) entropies and which of them count."""
        return self.threshold

    def log_q(self, s: Signals) -> Tensor:
        return self.kappa(s) * -s.ref_logps

    def kappa(self, s: Signals) -> Tensor:
        return _excess(s, self).clamp(max=self.kappa_max)


_SOURCES = {"policy": "entropies", "reference": "ref_entropies"}


def _excess(s: Signals, guide: BranchGuide | TemperedGuide) -> Tensor:
    """ρ·max(0, H − τ)."""
    h: Tensor = getattr(s, _SOURCES[guide.source])
    return guide.ratio * (h - guide.tau(h, s.mask)).clamp(min=0)


# ---- normalisation within a completion: (B, T) values and mask → (B, T) in [0, 1] ------------------------------------


def _minmax(x: Tensor, mask: Tensor) -> Tensor:
    low, high = quantiles(x, mask, 0.05, 0.95)
    spread = high - low
    rel = (x - low) / torch.where(spread > 0, spread, 1.0)
    return torch.where(spread > 0, rel.clamp(0, 1), 0.0)


def quantiles(x: Tensor, mask: Tensor, *levels: float) -> list[Tensor]:
    """(B, 1) per level: the quantile of each row's counted values, linear between order statistics; 0 for an empty row.

    As ``torch.quantile``, which stops at 2^24 values. Places are float64: float32 cannot tell neighbours apart up there.
    """
    ordered = torch.where(mask, x, torch.inf).sort(-1).values
    last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    rows = []
    for level in levels:
        place = last.double() * level
        below = place.long()
        lo, hi = ordered.gather(-1, below), ordered.gather(-1, torch.minimum(below + 1, last))
        rows.append((lo + (hi - lo) * (place - below).to(lo.dtype)).where(mask.any(-1, keepdim=True), 0.0))
    return rows


def _rank(x: Tensor, mask: Tensor) -> Tensor:
    """Rank over (count − 1); equal values share their average rank."""
    ordered = torch.where(mask, x, torch.inf).sort(-1).values
    first = torch.searchsorted(ordered, x.contiguous(), side="left")
    last = torch.searchsorted(ordered, x.contiguous(), side="right") - 1
    count = mask.sum(-1, keepdim=True)
    return ((first + last) / 2 / (count - 1).clamp(min=1)).clamp(0, 1)


def _zscore(x: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(mask, x, 0.0).sum(-1, keepdim=True) / count
    std = (torch.where(mask, x - mean, 0.0).square().sum(-1, keepdim=True) / count).sqrt()
    return torch.sigmoid((x - mean) / std.clamp(min=1e-6))


_NORMALISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"minmax": _minmax, "rank": _rank, "zscore": _zscore}
