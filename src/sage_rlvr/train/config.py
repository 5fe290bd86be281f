"""SAGEConfig: TRL's GRPOConfig plus the anchor. What cannot work together is refused here, in one sentence."""

from dataclasses import dataclass
from typing import Any

from transformers.hf_argparser import HfArg
from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig

from sage_rlvr import values
from sage_rlvr.advantage import Advantage, make_advantage
from sage_rlvr.anchor import ESTIMATORS, Guide, make_guide
from sage_rlvr.anchor.penalty import CREDITS
from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.sampler import ahead
from sage_rlvr.train import keep_from, reset, token_credit

# what a loss type divides by: rows of the batch it sees, counted tokens of it, or the rollout batch's tokens
WEIGHTS = {
    "grpo": "rows", "sapo": "rows", "luspo": "rows", "dr_grpo": "rows", "bnpo": "tokens",
    "dapo": "batch", "cispo": "batch", "vespo": "batch",
}  # fmt: skip
PROVIDED = frozenset({"entropies", "ref_entropies", "rewards", "group", "beta", "hidden"})  # signals a run can compute
CREDITED = frozenset({"logps", "ref_logps", "lengths", "answers"})  # and what it can show an advantage


@dataclass
class SAGEConfig(GRPOConfig):
    """Configuration of :class:`SAGETrainer`. ``SAGEConfig()`` is SAGE as published: branch guide, k3, β = 0.05.

    Three of TRL's defaults change (``beta`` 0.05, ``loss_type`` "grpo", ``use_bias_correction_kl`` derived from the
    estimator); every other TRL option stays as it is.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "guide_args", "advantage_args"]

    # fmt: off
    guide: str = HfArg(default="branch", help="Shape of the anchor: 'branch', 'tempered', 'branch-quantile', "
        "'tempered-quantile', 'token', 'random', 'verified', 'group', 'value', 'none', a registered name, or "
        "'package.module:Class'.")
    guide_args: dict | str | None = HfArg(default=None, help="Arguments of the guide, as a dict (JSON on the command line).")
    anchor_estimator: str = HfArg(default="k3", help="How the pull toward q·π_ref is estimated: 'k3' (as published), "
        "'k1-reward' (as derived, exact), 'k2', 'k3+', 'forward' or 'forward-value'. docs/estimators.md says which gradient "
        "each follows.")
    anchor_credit: str = HfArg(default="sequence", help="For k1-reward: 'sequence' (exact for every guide) or 'to_go' (less "
        "noise, exact for guides whose q_t depends on the past alone).")
    guide_hold: bool = HfArg(default=True, help="Compute log q once per rollout batch, at the policy that sampled, and hold it "
        "for all its updates. False: anew at every update.")
    guide_center: str = HfArg(default="none", help="'batch' subtracts the mean of log q over counted tokens, so that the bonus "
        "does not pay for length; 'none' is as published.")
    anchor_reset: int = HfArg(default=0, help="ProRL: optimizer steps after which the reference becomes the policy, with an "
        "adapter too. 0: never.")
    dynamic_sampling: int = HfArg(default=0, help="DAPO: how many extra rounds may draw new prompts in place of groups that "
        "teach nothing: rewards all equal, or, with another advantage than 'group', advantages all 0.")
    advantage: list[str] | str = HfArg(default="group", metadata={"default": "group"}, help="How rewards become advantages: "
        "'group' ((r − mean)/std, as scale_rewards says); 'focal', 'maxrl', 'passk', 'pkpo'; 'rarity', 'coverage', 'unlikely', "
        "'smooth', 'alike'; 'signed', 'risk'; 'beta'; per token 'clip_cov', 'kl_cov', 'entropy'; 'package.module:Class'; or "
        "several of different kinds, such as rarity focal.")
    advantage_args: dict | str | None = HfArg(default=None, help="Arguments of the advantage, as a dict (JSON on the command "
        "line); of several, a dict for each by its name.")
    keep_from: str | None = HfArg(default=None, help="Folder of an evaluation of the start model on training problems: a "
        "divergence from π_ref on its right answers is added to the loss, so that training keeps them (DPH-RL).")
    keep_coef: float = HfArg(default=0.05, help="Its weight: the published .01 to .05 for forward, .05 to .2 for js. 0: only "
        "measured.")
    keep_divergence: str = HfArg(default="forward", help="'forward' (KL, needs no reference) or 'js' (Jensen–Shannon).")
    keep_batch: int | None = HfArg(default=None, help="Kept answers per optimizer step; unset: as many as it has prompts.")
    keep_per_problem: int = HfArg(default=4, help="Most kept answers of one problem.")
    reward_timeout_s: float | None = HfArg(default=1800.0, help="Seconds one call of a reward function may take, a whole "
        "rollout batch of this process; then the run stops with a checkpoint. null: no limit.")
    fused_head: bool | None = HfArg(default=None, help="Log-probs and entropies by sage_rlvr.head: two matrix passes instead of "
        "three where the output layer is frozen. Unset: on a GPU. False, and models it does not cover, keep TRL's fused head, "
        "bit for bit.")
    tokens_per_microbatch: int | None = HfArg(default=None, help="Padded tokens (rows × longest row) that one forward and "
        "backward pass may hold. A slice of per_device_train_batch_size rollouts is sorted by length and cut to it; loss and "
        "gradient stay the slice's. Unset: TRL's way, the whole slice at once, bit for bit.")
    skip_zero_advantage: bool = HfArg(default=True, help="With tokens_per_microbatch: rows that add nothing to the gradient are "
        "not run. Those without a counted token; and those with advantage 0 where the penalty is not in the loss (beta=0, or "
        "k1-reward) and there is no entropy bonus. Normalisers count them; entropy, kl and clip ratios are then over the rows "
        "that ran.")
    vllm_kv_cache_gib: float | None = HfArg(default=None, help="Colocated vLLM: GiB of KV cache, in place of what its profiling "
        "finds free, which fails where other runs start on the same GPU at the same time. Set vllm_gpu_memory_utilization low "
        "with it: that much must be free.")
    rollout_ahead: bool = HfArg(default=False, help="With vLLM: the next rollout batch is drawn while this one is trained on, so "
        "with weights that are one batch old. TRL's importance ratio corrects for it.")
    stop_strings: list[str] | None = HfArg(default=None, help="A completion that reaches one of these is finished, on every "
        "backend. The prompt format sets them.")
    bf16: bool | None = HfArg(default=None, help="bf16 mixed precision; unset: on where the GPU has it.")
    # TRL's defaults that change
    beta: float = HfArg(default=0.05, help="Coefficient of the pull toward the anchor q·π_ref.")
    loss_type: str = HfArg(default="grpo", help="TRL's loss types: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo.")
    use_bias_correction_kl: bool | None = HfArg(default=None, help="Derived from anchor_estimator: False for k3, True for k3+. "
        "Leave it unset.")
    # fmt: on

    def __new__(cls, *args: Any, **settings: Any) -> "SAGEConfig":
        values.refuse_gone(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.bf16 is None and not self.fp16 and not is_torch_bf16_gpu_available():
            self.bf16 = False  # TRL would say True and then refuse to start on a machine without such a GPU
        self._check_values()
        try:
            super().__post_init__()
        except ValueError as e:  # what TRL and transformers refuse is a value that somebody wrote
            why = " ".join(str(e).split())
            raise UserError(self._uneven_batch() if "divisible by num_generations" in why else why) from e
        self._check_choices()
        self._derive_bias_correction()
        guide = self.make_guide()
        if guide is not None:
            self._check_guide(guide)
        elif self.guide_args or self.guide_center != "none":
            unused = "guide_args" if self.guide_args else "guide_center"
            raise UserError(f"{unused} is set but guide='none': name a guide, or leave {unused} out.")
        self._check_credit()
        self._name_advantage()
        self._check_advantage(self.make_advantage())
        reset.check(self)
        self._check_rollouts()
        keep_from.check(self)
        ahead.check(self)
        if self.tokens_per_microbatch is not None:
            self._check_micro_batches()
        if self.use_vllm and self.vllm_importance_sampling_correction:
            self._check_correction()

    def make_guide(self) -> Guide | None:
        """A new guide as configured; None for 'none'."""
        if self.guide == "none":
            return None
        args = self.guide_args if self.guide_args is not None else {}
        if not isinstance(args, dict):
            raise UserError(f"guide_args={self.guide_args!r} must be a dict, such as {{'ratio': 0.3}}.")
        return make_guide(self.guide, **args)

    def make_advantage(self) -> Advantage:
        """A new advantage as configured: ``group`` scales as scale_rewards says, and ``alike`` has the run's own beta."""
        given: Any = self.advantage_args or {}
        single = self.advantage if isinstance(self.advantage, str) else None
        args = {single: given} if single else dict(given)  # by name
        own = {"group": ("scale", "scale_rewards", self.scale_rewards), "alike": ("beta", "beta", self.beta)}
        for name, (argument, name_here, value) in own.items():
            if name not in ([single] if single else self.advantage):
                continue
            args[name] = {argument: value} | (args.get(name) or {})
            if args[name][argument] != value:
                raise UserError(
                    f"advantage {name!r}: {argument}={args[name][argument]!r} is not this run's {name_here}={value!r}: leave it "
                    f"out of advantage_args, and set {name_here}."
                )
        return make_advantage(self.advantage, **(args[single] if single else args))

    def wants_whole_batch(self) -> str | None:
        """The setting, if any, that takes a pass over the whole rollout batch at once, at the policy that sampled."""
        if self.anchor_estimator == "k1-reward":
            return "anchor_estimator='k1-reward'"
        if self.guide_center == "batch":
            return "guide_center='batch'"
        guide = self.make_guide()
        if guide is not None and (guide.across_rows or guide.learns or "hidden" in guide.needs):
            return f"guide={self.guide!r}"
        advantage = self.make_advantage()
        reads = "logps" in advantage.needs or advantage.token_part is not None
        return f"advantage={self.advantage!r}" if reads else None

    def departures(self) -> list[str]:
        """What keeps a k1-reward run from the exact gradient of Eq. 6; empty in the exact case."""
        guide = self.make_guide()
        needed: list[tuple[str, Any]] = [
            ("scale_rewards", "none"), ("loss_type", "dr_grpo"), ("advantage", "group"), ("num_iterations", 1),
            ("importance_sampling_level", "token"), ("top_p", 1.0), ("top_k", 0), ("repetition_penalty", 1.0),
            ("mask_truncated_completions", False), ("top_entropy_quantile", 1.0), ("delta", None), ("dynamic_sampling", 0),
            ("entropy_coef", 0.0), ("multi_objective_aggregation", "sum_then_normalize"), ("off_policy_mask_threshold", None),
            ("guide_center", "none"), ("keep_from", None), ("rollout_ahead", False),
        ]  # fmt: skip
        out = [
            f"{name}={getattr(self, name)!r} (exact: {want!r})" for name, want in needed if getattr(self, name) != want
        ]
        mode = self.vllm_importance_sampling_mode
        cases = {
            f"min_p={self.min_p} (exact: 0)": self.min_p,
            "several optimizer steps per rollout batch (exact: steps_per_generation = gradient_accumulation_steps)":
                self.steps_per_generation > self.gradient_accumulation_steps,
            f"anchor_credit='to_go' with guide {self.guide!r}, which looks at later tokens (exact: 'sequence')":
                guide is not None and self.anchor_credit == "to_go" and not guide.past_only,
            "guide_hold=False (exact: True)": guide is not None and not self.guide_hold,
            f"guide {self.guide!r} knows the solve rate from num_generations={self.num_generations} completions":
                guide is not None and "group" in guide.needs,
            f"vllm_importance_sampling_mode={mode!r} weighs what the sampler's numerics change (exact: none)":
                self.use_vllm and self.vllm_importance_sampling_correction,
            # each step follows Eq. 6 for the π_ref of its rollouts; the run as a whole follows no one objective, and Eq. 4 does
            # not say where it ends: named from the first step on, whether or not the run gets to a reset
            f"anchor_reset={self.anchor_reset} (exact from one reset to the next: each changes π_ref; exact: 0)":
                self.anchor_reset > 0,
        }  # fmt: skip
        return out + [case for case, present in cases.items() if present]

    # ---- what is refused -------------------------------------------------------------------------------------------

    def _check_values(self) -> None:
        if self.guide is None:
            raise UserError(
                "guide=None is not a guide: write guide='none' for plain GRPO, whose anchor is π_ref alone."
            )
        for name in self._VALID_DICT_FIELDS:
            setattr(self, name, values.mapping(name, getattr(self, name)))
        values.check(self)

    def _uneven_batch(self) -> str:
        whole, group = int(self.generation_batch_size or 0), self.num_generations
        fits = [str(n) for n in range(2, whole + 1) if whole % n == 0]
        return (
            f"num_generations={group} does not divide the rollout batch of {whole} completions: set num_generations to "
            f"{', '.join(fits)}, or per_device_train_batch_size to a multiple of {group}."
        )

    def _check_choices(self) -> None:
        choices = {
            "anchor_estimator": sorted(ESTIMATORS),
            "anchor_credit": CREDITS,
            "guide_center": ("none", "batch"),
            "loss_type": WEIGHTS,
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise UserError(f"{name}={value!r} is unknown: {near(str(value), allowed)}.")

    def _derive_bias_correction(self) -> None:
        wanted = self.anchor_estimator == "k3+"  # the estimators beside k3 and k3+ bypass TRL's KL
        if self.use_bias_correction_kl is None:
            self.use_bias_correction_kl = wanted
        elif bool(self.use_bias_correction_kl) != wanted:
            other = "k3+" if self.use_bias_correction_kl else "k3"
            raise UserError(
                f"use_bias_correction_kl={self.use_bias_correction_kl} contradicts anchor_estimator="
                f"{self.anchor_estimator!r}: leave it unset, or choose anchor_estimator={other!r}."
            )

    def _check_guide(self, guide: Guide) -> None:
        if self.beta == 0:
            raise UserError(
                f"guide={self.guide!r} with beta=0: the guide shapes the anchor and there is none; "
                "set guide='none', or beta above 0."
            )
        if not guide.token_dependent and self.anchor_estimator in ("k2", "k3+"):
            raise UserError(
                f"guide={self.guide!r} with anchor_estimator={self.anchor_estimator!r} does nothing: its q depends on the "
                "state alone and that gradient vanishes in expectation; choose 'k3' (as published), 'k1-reward' (exact), or "
                "guide='tempered'."
            )
        if self.guide_center == "batch" and not self.guide_hold:
            raise UserError("guide_center='batch' takes the mean over a rollout batch, so it needs guide_hold=True.")
        if not self.guide_hold and (guide.across_rows or guide.learns or "hidden" in guide.needs):
            raise UserError(
                f"guide={self.guide!r} looks at the whole rollout batch, which one update does not see: it needs guide_hold=True."
            )
        if self.guide_center == "batch" and guide.pays_completions:
            raise UserError(
                f"guide_center='batch' with guide={self.guide!r}: it pays a completion the same whatever its length, and a mean "
                "taken off every token would charge for length; leave guide_center at 'none'."
            )
        missing = sorted(set(guide.needs) - PROVIDED)
        if missing:
            raise UserError(
                f"guide={self.guide!r} needs {', '.join(missing)}, which a training run does not compute; it can provide "
                f"{', '.join(sorted(PROVIDED))} besides logps and ref_logps."
            )

    def _check_credit(self) -> None:
        if self.anchor_credit != "sequence" and self.anchor_estimator != "k1-reward":
            raise UserError(
                f"anchor_credit={self.anchor_credit!r} is for anchor_estimator='k1-reward', not for "
                f"{self.anchor_estimator!r}: leave it out."
            )
        if self.anchor_credit == "to_go" and self.loss_type == "vespo":
            raise UserError("anchor_credit='to_go' gives one advantage per token and loss_type='vespo' takes one per completion: "
                            "use anchor_credit='sequence'.")  # fmt: skip
        if self.anchor_estimator == "k1-reward" and self.beta == 0:
            raise UserError(
                "anchor_estimator='k1-reward' with beta=0 adds nothing: set beta above 0, or leave it at 'k3'."
            )

    def _name_advantage(self) -> None:
        """One is a name with its arguments, several are a list with arguments by name: as a flag gives them, too."""
        names, args = self.advantage, self.advantage_args
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"advantage={self.advantage!r} must be a name, such as 'rarity', or a list of names.")
        if args is not None and not isinstance(args, dict):
            raise UserError(f"advantage_args={args!r} must be a dict, such as {{'share': 0.5}}.")
        if len(names) == 1:
            self.advantage = names[0]
            if args and list(args) == [names[0]] and isinstance(args[names[0]], dict):
                self.advantage_args = args[names[0]]
            return
        self.advantage = list(names)
        for name, value in (args or {}).items():
            if not isinstance(value, dict):
                raise UserError(
                    f"advantage_args={{{name!r}: {value!r}}}: of several advantages each has a dict of its own, as in "
                    f"{{{names[0]!r}: {{...}}}}."
                )

    def _check_advantage(self, advantage: Advantage) -> None:
        name = f"advantage={self.advantage!r}"
        missing = sorted(advantage.needs - CREDITED)
        if missing:
            raise UserError(
                f"{name} needs {', '.join(missing)}, which a training run does not compute; it can provide "
                f"{', '.join(sorted(CREDITED))}."
            )
        if "ref_logps" in advantage.needs and self.beta == 0:
            raise UserError(f"{name} asks the reference, and beta=0 has none: set beta above 0, or another advantage.")
        if any(part.name == "alike" for part in advantage.parts) and self.anchor_estimator != "k1-reward":
            raise UserError(
                f"{name} makes right answers alike against the penalty in the reward, and anchor_estimator="
                f"{self.anchor_estimator!r} is not: set anchor_estimator='k1-reward'."
            )
        if self.multi_objective_aggregation != "sum_then_normalize" and self.advantage != "group":
            raise UserError(f"{name} needs multi_objective_aggregation='sum_then_normalize'.")
        token_credit.check(self, advantage.token_part)
        advantage.check_group(self.num_generations)
        if self.num_generations_eval:
            try:
                advantage.check_group(self.num_generations_eval)
            except UserError as e:
                raise UserError(f"num_generations_eval={self.num_generations_eval}: {e}") from e

    def _check_correction(self) -> None:
        """vLLM's log-probs are those after truncation. Over a whole sequence the ratio to them is the product of the mass that
        was kept at each token: it falls with the length, and the task's gradient with it, while the KL's stays."""
        cut = [f"min_p={self.min_p}"] if self.min_p else []
        cut += [f"top_p={self.top_p}"] if self.top_p != 1 else []
        cut += [f"top_k={self.top_k}"] if self.top_k > 0 else []
        mode = self.vllm_importance_sampling_mode
        if cut and mode.startswith("sequence"):
            raise UserError(
                f"{', '.join(cut)} with vllm_importance_sampling_mode={mode!r} shrinks a completion's gradient with every "
                "token that was cut off: set vllm_importance_sampling_mode to 'token_truncate', or sample from the whole "
                "distribution."
            )

    def _check_micro_batches(self) -> None:
        cannot = {  # what the whole slice decides together, or what counts backward passes
            "top_entropy_quantile": self.top_entropy_quantile < 1.0,
            "use_adaptive_entropy": self.use_adaptive_entropy,
            "optim": str(self.optim).endswith(("lomo", "LOMO")),
        }
        for name in (name for name, is_set in cannot.items() if is_set):
            raise UserError(
                f"tokens_per_microbatch with {name}={getattr(self, name)!r} would not give the unsplit batch's gradient: "
                "leave one of them out."
            )

    def _check_rollouts(self) -> None:
        if self.dynamic_sampling and self.scale_rewards == "batch":
            raise UserError("dynamic_sampling with scale_rewards='batch': groups are exchanged after scaling; use 'group' or "
                            "'none'.")  # fmt: skip
        if self.multi_objective_aggregation != "sum_then_normalize" and self.dynamic_sampling:
            raise UserError("dynamic_sampling needs multi_objective_aggregation='sum_then_normalize'.")
        if isinstance(self.stop_strings, str):
            self.stop_strings = [self.stop_strings]
        fields_ = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"} & set(self.generation_kwargs or {})
        if fields_:
            raise UserError(
                f"generation_kwargs sets {', '.join(sorted(fields_))}, which would win over the fields of that name and over "
                "every check of them: set the fields."
            )
        keys = set(self.generation_kwargs or {}) & {"stop_strings", "stop"}
        if self.stop_strings and keys:
            raise UserError(
                f"stop_strings is set twice, in generation_kwargs ({', '.join(keys)}) too: keep stop_strings."
            )
        if self.vllm_kv_cache_gib is not None and not (self.use_vllm and self.vllm_mode == "colocate"):
            raise UserError(
                "vllm_kv_cache_gib is for use_vllm=True with vllm_mode='colocate': set both, or leave it unset."
            )
