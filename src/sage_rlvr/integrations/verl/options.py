"""What ``+sage.*`` says beside verl's own fields, and what cannot work together. Reads a mapping; imports no verl."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sage_rlvr.advantage import Advantage, AlikeAdvantage, Combined, GroupAdvantage, make_advantage
from sage_rlvr.anchor import ESTIMATORS, Guide, make_guide
from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import ESTIMATOR
from sage_rlvr.names import near

# verl's names for what it computes itself. With "+" the value is the name's and the gradient that of k2 (straight through).
VERL_LOSS = {
    "low_var_kl": "k3", "k3": "k3", "low_var_kl+": "k3+", "k3+": "k3+",
    "mse": "k2", "k2": "k2", "mse+": "k2", "k2+": "k2",
}  # fmt: skip
NAME_IN_VERL = {"k3": "low_var_kl", "k2": "mse"}
OURS = ("k3+", "forward", "forward-value")  # as sage.estimator: computed by our loss, not by verl's kl_penalty
PROVIDED = frozenset({"entropies", "rewards"})  # optional signals: verl's reference pass computes no entropies
ADVANTAGES = ("grpo", "rloo", ESTIMATOR)  # they sum a completion's token rewards and subtract a baseline from its group
TOLD = frozenset({"logps", "ref_logps", "lengths", "answers"})  # what the driver can tell an advantage
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BYPASS = "algorithm.rollout_correction.bypass_mode"
TOKENS = ("clip_cov", "kl_cov", "entropy")  # advantages of single tokens: the driver has one per completion


@dataclass(frozen=True)
class Options:
    """``+sage.*``, checked. ``estimator`` is resolved: from verl's own fields where ``sage.estimator`` is left out."""

    guide: str
    guide_args: dict[str, Any] = field(default_factory=dict)
    estimator: str = "none"  # "none": no KL anywhere, which only goes with guide=none
    hold: bool = True  # log q at the policy that sampled, once per rollout batch
    center: str = "none"  # "batch" subtracts the mean of log q over the batch's counted tokens
    seed: int = 0
    advantage: str | list[str] | None = None  # None: the advantage is verl's
    advantage_args: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None  # the key under which the reward function answers what a completion answered
    own_loss: bool = False  # the estimator is ours, not one of verl's
    by_std: bool = True  # verl's norm_adv_by_std_in_grpo

    @property
    def seam(self) -> str:
        """Where SAGE enters: "driver" (the shaped ref_log_prob), "loss" (set_loss_fn), or "none"."""
        if self.own_loss or (self.guide != "none" and not self.hold):
            return "loss"
        return "driver" if self.guide != "none" else "none"

    @property
    def coefficient(self) -> str:
        """verl's field that holds β."""
        return "algorithm.kl_ctrl.kl_coef" if self.estimator == "k1-reward" else f"{ACTOR}.kl_loss_coef"

    def make_guide(self) -> Guide | None:
        return make_guide(self.guide, **self.guide_args) if self.guide != "none" else None

    def make_advantage(self) -> Advantage | None:
        """Its ``group``, named or at its bottom, is scaled as verl's GRPO would be."""
        if self.advantage is None:
            return None
        made = make_advantage(self.advantage, **self.advantage_args)
        scale = "group" if self.by_std else "none"
        core = next((part for part in made.parts if part.stage == "advantage"), None)
        if core is None:
            return Combined([*made.parts, Bottom(scale)])
        if type(core) is GroupAdvantage and "scale" not in self.group_args:
            core.scale = scale
        return made

    @property
    def group_args(self) -> dict[str, Any]:
        """Those of ``group``, where it is named."""
        by_name = {self.advantage: self.advantage_args} if isinstance(self.advantage, str) else self.advantage_args
        return by_name.get("group", {})


class Bottom(GroupAdvantage):
    """``group`` under parts that make no advantages themselves: of a kind of its own, so that it refuses none of them."""

    kind = "bottom"


def read_options(config: Any) -> Options:
    """The options of a run, from verl's whole config (a DictConfig or a plain mapping); refuses what cannot work."""
    raw = config.get("sage")
    if raw is None or (raw.get("guide") is None and raw.get("advantage") is None):
        raise UserError(
            "trainer.v1.trainer_mode=sage_sync without sage.guide: add +sage.guide=branch (or another guide; none is plain verl)."
        )
    known = {f.name for f in fields(Options)} - {"own_loss", "by_std"}
    for key in raw:
        if key not in known:
            raise UserError(f"sage.{key} is unknown: {near(f'sage.{key}', (f'sage.{k}' for k in sorted(known)))}.")
    given = {key: plain(raw[key]) for key in raw if raw[key] is not None}
    asked = given.pop("estimator", None)
    _check_types(given)
    estimator, own = _estimator(asked, config)
    by_std = bool(_get(config, "algorithm.norm_adv_by_std_in_grpo", True))
    options = Options(**{"guide": "none"} | given, estimator=estimator, own_loss=own, by_std=by_std)
    for sentence in _refusals(options, config):
        raise UserError(sentence)
    return options


def plain(value: Any) -> Any:
    """OmegaConf's containers as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _get(config: Any, path: str, default: Any = None) -> Any:
    """A field of verl's config by its dotted name."""
    for name in path.split("."):
        config = config.get(name) if config is not None else None
    return default if config is None else config


def _check_types(given: dict[str, Any]) -> None:
    kinds: dict[str, tuple[Any, str]] = {
        "guide": (str, "a name"), "guide_args": (dict, "a mapping such as {ratio: 0.3}"), "hold": (bool, "true or false"),
        "center": (str, "none or batch"), "seed": (int, "a whole number"),
        "advantage": ((str, list), "a name, or a list such as [rarity,focal]"), "answer": (str, "a key"),
        "advantage_args": (dict, "a mapping such as {gamma: 0.5}; with several, {focal: {gamma: 0.5}}"),
    }  # fmt: skip
    for key, value in given.items():
        kind, wanted = kinds[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UserError(f"sage.{key}={value!r} must be {wanted}.")
    if given.get("center", "none") not in ("none", "batch"):
        raise UserError(f"sage.center={given['center']!r} is unknown; choose none or batch.")
    names, args = given.get("advantage"), given.get("advantage_args", {})
    if isinstance(names, list) and not (
        all(isinstance(name, str) for name in names) and all(isinstance(value, dict) for value in args.values())
    ):
        raise UserError(
            f"sage.advantage={names}, sage.advantage_args={args}: several take names and arguments under a name, as in "
            "[rarity,focal] and {focal: {gamma: 0.5}}."
        )


def _estimator(asked: Any, config: Any) -> tuple[str, bool]:
    """(estimator, whether it is ours rather than verl's). verl's own fields and ours must say the same."""
    in_reward, in_loss = bool(_get(config, "algorithm.use_kl_in_reward")), bool(_get(config, f"{ACTOR}.use_kl_loss"))
    kind = str(_get(config, f"{ACTOR}.kl_loss_type"))
    if asked is not None and asked not in ESTIMATORS:
        raise UserError(f"sage.estimator={asked!r} is unknown: {near(str(asked), sorted(ESTIMATORS))}.")
    if asked == "k1-reward" and not in_reward:
        raise UserError("sage.estimator=k1-reward needs algorithm.use_kl_in_reward=True and algorithm.kl_penalty=kl.")
    if asked not in (None, "k1-reward") and in_reward:
        raise UserError(
            f"sage.estimator={asked} is a term of the loss, but algorithm.use_kl_in_reward=True puts the KL into the reward: "
            "set it to False, or choose sage.estimator=k1-reward."
        )
    if in_reward:
        return "k1-reward", False
    if asked in OURS:
        if not in_loss:
            raise UserError(f"sage.estimator={asked} needs {ACTOR}.use_kl_loss=True (and its kl_loss_coef).")
        return str(asked), True
    theirs = VERL_LOSS.get(kind, kind) if in_loss else "none"
    if asked is not None and asked != theirs:
        raise UserError(
            f"sage.estimator={asked} contradicts {ACTOR}.use_kl_loss={in_loss}, kl_loss_type={kind}: set use_kl_loss=True and "
            f"kl_loss_type={NAME_IN_VERL[asked]}."
        )
    return theirs, False


# ---- what is refused: each yields one sentence, and the first is raised ----------------------------------------------


def _refusals(o: Options, config: Any) -> Iterator[str]:
    guide = o.make_guide()
    if guide is not None:
        yield from _of_the_anchor(o, config)
        yield from _of_the_guide(o, guide, config)
        yield from _of_truncated_sampling(o, config)
    else:
        for name, off in (("guide_args", {}), ("center", "none"), ("hold", True)):
            if getattr(o, name) != off:
                yield f"sage.{name} is set but sage.guide=none: name a guide, or leave sage.{name} out."
    if o.advantage is not None:
        yield from _of_the_advantage(o, config)
    for name in ("advantage_args", "answer"):
        if o.advantage is None and getattr(o, name):
            yield f"sage.{name} is set but sage.advantage is not: name an advantage, or leave sage.{name} out."
    if o.seam == "loss" and _get(config, "distillation.enabled", False):
        yield "sage on the loss seam replaces verl's loss, and so does distillation.enabled=True: turn it off."


def _of_the_anchor(o: Options, config: Any) -> Iterator[str]:
    """The guide shapes an anchor: there must be one, pulled with a known gradient and a coefficient above 0."""
    named, kind = f"sage.guide={o.guide}", _get(config, f"{ACTOR}.kl_loss_type")
    if o.estimator == "none":
        yield (
            f"{named} without a reference model: set {ACTOR}.use_kl_loss=True, or algorithm.use_kl_in_reward=True; there is no "
            "anchor to shape otherwise."
        )
    if o.estimator == "k1-reward":
        yield from _of_the_reward(named, config)
    elif not _get(config, f"{ACTOR}.kl_loss_coef"):
        yield f"{named} with {ACTOR}.kl_loss_coef=0: set it above 0 (0.05 in the paper)."
    elif not o.own_loss and kind in ("kl", "k1"):
        yield (
            f"{ACTOR}.kl_loss_type={kind} does nothing as a loss (the gradient of log π averages to zero): choose low_var_kl "
            "(k3, as published), or algorithm.use_kl_in_reward=True (exact)."
        )
    elif not o.own_loss and kind not in VERL_LOSS:
        yield (
            f"{ACTOR}.kl_loss_type={kind} has no known gradient toward a shaped anchor: choose one of {', '.join(VERL_LOSS)}."
        )


def _of_the_reward(named: str, config: Any) -> Iterator[str]:
    algorithm = config.get("algorithm")
    if _get(config, f"{ACTOR}.use_kl_loss"):
        yield (
            f"{named} with algorithm.use_kl_in_reward=True and {ACTOR}.use_kl_loss=True pulls toward the anchor twice: turn one "
            "of them off."
        )
    if algorithm.get("kl_penalty") not in ("kl", "k1"):
        yield (
            f"algorithm.kl_penalty={algorithm.get('kl_penalty')} in the reward is a biased value of the pseudo-KL: set "
            "algorithm.kl_penalty=kl."
        )
    if not _get(algorithm, "kl_ctrl.kl_coef"):
        yield f"{named} with algorithm.kl_ctrl.kl_coef=0: set it above 0, or sage.guide=none."
    if (controller := _get(algorithm, "kl_ctrl.type", "fixed")) != "fixed":
        yield (
            f"{named} with algorithm.kl_ctrl.type={controller}: the controller sees the KL to the shaped anchor, which a guide "
            "makes small or negative, and lets the coefficient go to 0; set kl_ctrl.type=fixed."
        )
    if (theirs := algorithm.get("adv_estimator")) not in ADVANTAGES:
        yield (
            f"algorithm.adv_estimator={theirs} with use_kl_in_reward: k1-reward is derived for {' and '.join(ADVANTAGES)}; "
            "choose one of them."
        )
    if algorithm.get("norm_adv_by_std_in_grpo", True):
        yield (
            "algorithm.norm_adv_by_std_in_grpo=True with use_kl_in_reward blows the bonus up where a group's rewards are equal: "
            "set algorithm.norm_adv_by_std_in_grpo=False."
        )


def _cut(config: Any) -> str:
    """The fields that truncate sampling, as a sentence names them; empty where none does."""
    top_p, top_k = _get(config, f"{ROLLOUT}.top_p", 1), _get(config, f"{ROLLOUT}.top_k", -1)
    cut = [f"top_p={top_p}"] * (top_p != 1) + [f"top_k={top_k}"] * (top_k >= 1)
    return f"{ROLLOUT}.{' and '.join(cut)}" if cut else ""


def _of_truncated_sampling(o: Options, config: Any) -> Iterator[str]:
    """Rollouts answer log-probs after truncation: over a whole sequence the ratio to them is the mass that was kept, token after
    token, and as old log-probs in the reward they look like a KL that grows with the length."""
    named = _cut(config)
    if named and _get(config, "algorithm.rollout_correction.rollout_is") == "sequence":
        yield (
            f"{named} with algorithm.rollout_correction.rollout_is=sequence shrinks a completion's gradient with every token "
            "that was cut off: set rollout_is=token, or top_p=1 and top_k=-1."
        )
    if named and o.estimator == "k1-reward" and _get(config, BYPASS, False):
        yield (
            f"{named} with {BYPASS}=True puts what was cut off into the reward as a KL: set bypass_mode=False, or top_p=1 and "
            "top_k=-1."
        )


def _of_the_guide(o: Options, guide: Guide, config: Any) -> Iterator[str]:
    named = f"sage.guide={o.guide}"
    if not guide.token_dependent and o.estimator in ("k2", "k3+"):
        theirs = f"{ACTOR}.kl_loss_type={_get(config, f'{ACTOR}.kl_loss_type')}"
        yield (
            f"{named} with {f'sage.estimator={o.estimator}' if o.own_loss else theirs} does nothing: its q depends on the state "
            "alone and that gradient vanishes in expectation; choose kl_loss_type=low_var_kl (as published), use_kl_in_reward "
            "(exact), or sage.guide=tempered."
        )
    if missing := sorted(set(guide.needs) - PROVIDED):
        fix = "set sage.guide_args.source=policy, leave level out, or " if "ref_entropies" in missing else ""
        yield f"{named} needs {', '.join(missing)}, which verl's driver is not given: {fix}choose another guide."
    if guide.learns:
        yield f"{named} learns as the run goes, and nothing teaches it under verl: choose another guide."
    if "rewards" in guide.needs and not o.hold:
        yield f"{named} needs rewards, which verl's workers do not see during the update: set sage.hold=True."
    if "entropies" in guide.needs and _get(config, BYPASS, False):
        yield (
            f"{named} needs entropies and {BYPASS}=True skips the pass that computes them: set bypass_mode=False, or choose a "
            "guide that needs none (token, random)."
        )
    if guide.across_rows and not o.hold:
        yield f"{named} looks at the whole rollout batch, and verl's workers see a micro-batch of it: set sage.hold=True."
    if not o.hold and (o.center == "batch" or o.estimator == "k1-reward"):
        what = "sage.center=batch" if o.center == "batch" else "algorithm.use_kl_in_reward=True"
        yield f"{what} takes log q of the whole rollout batch, so it needs sage.hold=True."


# ---- the advantage -------------------------------------------------------------------------------------------------


def _of_the_advantage(o: Options, config: Any) -> Iterator[str]:
    named, theirs = f"sage.advantage={o.advantage}", _get(config, "algorithm.adv_estimator")
    if theirs != ESTIMATOR:
        yield (
            f"{named} with algorithm.adv_estimator={theirs}, which would not read it: set algorithm.adv_estimator={ESTIMATOR}."
        )
    for name in [o.advantage] if isinstance(o.advantage, str) else o.advantage or []:
        if name in TOKENS:
            yield _of_tokens(name)
    advantage = o.make_advantage()
    assert advantage is not None
    for part in advantage.parts:
        yield from _of_a_part(part, o, config)
    try:
        advantage.check_group(_get(config, f"{ROLLOUT}.n"))
    except UserError as e:  # the room speaks to TRL's users
        yield str(e).replace("num_generations", f"{ROLLOUT}.n")
    # verl's field and ours say the same; a bonus beside a reward that was divided by its std would be another β
    scale = o.group_args.get("scale")
    if scale is not None and (scale != "none") != o.by_std:
        yield (
            f"{named} with scale={scale} contradicts algorithm.norm_adv_by_std_in_grpo={o.by_std}: set that to {not o.by_std}, "
            "or leave scale out."
        )
    if o.estimator == "k1-reward" and o.by_std and any(isinstance(part, GroupAdvantage) for part in advantage.parts):
        yield (
            f"{named} with algorithm.use_kl_in_reward=True and norm_adv_by_std_in_grpo=True scales the reward and not the KL: "
            "set algorithm.norm_adv_by_std_in_grpo=False."
        )


def _of_tokens(name: str) -> str:
    fix = f"verl has it as a loss, {ACTOR}.policy_loss.loss_mode={name}"
    if name not in ("clip_cov", "kl_cov"):
        fix = f"verl's own of this kind are losses, {ACTOR}.policy_loss.loss_mode=clip_cov or kl_cov"
    return f"sage.advantage={name} gives each token its own advantage, and verl's driver gives a completion one: {fix}."


def _of_a_part(part: Advantage, o: Options, config: Any) -> Iterator[str]:
    named, beta = f"sage.advantage={part.name}", _get(config, o.coefficient)
    if part.kind == "tokens":
        yield _of_tokens(part.name)
    if missing := sorted(set(part.needs) - TOLD):
        yield f"{named} needs {', '.join(missing)}, which verl does not compute: choose another advantage."
    if "ref_logps" in part.needs and o.estimator == "none":
        yield (
            f"{named} needs a reference model, and verl has none without a KL: set {ACTOR}.use_kl_loss=True (kl_loss_coef=0 for "
            "no pull), or algorithm.use_kl_in_reward=True."
        )
    if "answers" in part.needs and o.answer is None:
        yield (
            f"{named} needs to know what each completion answered, which the reward function alone can tell: let it return a "
            "dict, {'score': 1.0, 'pred': '42'}, and name the key, +sage.answer=pred."
        )
    if "logps" in part.needs and _get(config, BYPASS, False) and (cut := _cut(config)):
        yield (
            f"{named} compares log-probs, and {cut} with {BYPASS}=True gives those after truncation: set bypass_mode=False, or "
            "top_p=1 and top_k=-1."
        )
    if isinstance(part, AlikeAdvantage) and part.beta != beta:
        yield (
            f"sage.advantage=alike with beta={part.beta} lifts right answers to one level under that coefficient, and "
            f"{o.coefficient}={beta}: set both alike, +sage.advantage_args={{beta: {beta}}}."
        )
