"""R copies of a small Qwen2, their weights stacked: tensors begin with R, one row per run.

    R  runs               S  columns of the prompts, padded on the left       D  width          H  heads, of d numbers each
    P  prompts per run    T  columns of the completions                       V  vocabulary
    G  completions of one prompt (a group)

A prompt is read once for its whole group, in sampling and in training: completions attend to its keys and values.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from sage_rlvr.errors import UserError

FAR = -1e9  # added to the score of a key that must not be seen
Cache = list[tuple[Tensor, Tensor]]  # per layer: keys and values


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    eps: float
    theta: float
    tied: bool
    columns: int  # the longest prompt with its completion

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Of a Qwen2's config; refuses what the stack has no code for."""
        if config.model_type != "qwen2" or config.num_key_value_heads != config.num_attention_heads:
            raise UserError(
                "the stacked engine trains scratch models (Qwen2, as many key heads as heads): leave --engine out."
            )
        theta = config.rope_parameters["rope_theta"]
        return cls(
            config.num_hidden_layers, config.num_attention_heads, config.rms_norm_eps, theta, config.tie_word_embeddings,
            config.max_position_embeddings,
        )  # fmt: skip


@dataclass(frozen=True)
class Prompts:
    """Of every run: ids (R, P, S), and ``seen`` (R, P, S), bool, False on the padding."""

    ids: Tensor
    seen: Tensor

    @property
    def barrier(self) -> Tensor:
        """(R, P, 1, 1, 1, S): 0, or FAR at padding."""
        return torch.where(self.seen, 0.0, FAR)[:, :, None, None, None, :]


class Stack:
    """The runs' weights and what is computed with them."""

    def __init__(self, weights: dict[str, Tensor], shape: Shape):
        self.weights, self.shape = weights, shape
        table = weights["model.embed_tokens.weight"]
        d, at = table.shape[-1] // shape.heads, torch.arange(shape.columns, device=table.device)
        speed = shape.theta ** (-torch.arange(0, d, 2, device=table.device) / d)
        angle = (at[:, None] * speed).repeat(1, 2)  # (columns, d)
        self._cos, self._sin = angle.cos(), angle.sin()

    @classmethod
    def of(cls, model: Any, runs: int, device: str | torch.device = "cpu") -> "Stack":
        """``runs`` copies of a Qwen2ForCausalLM, in float32."""
        state = {name: p.detach().to(device, torch.float32) for name, p in model.named_parameters()}
        return cls({name: p.expand(runs, *p.shape).clone() for name, p in state.items()}, Shape.of(model.config))

    @property
    def runs(self) -> int:
        return len(self.weights["model.embed_tokens.weight"])

    def put(self, run: int, model: Any) -> None:
        """One run's weights into a Qwen2ForCausalLM."""
        model.load_state_dict({name: p[run] for name, p in self.weights.items()}, strict=False)

    def trained(self) -> dict[str, Tensor]:
        for p in self.weights.values():
            p.requires_grad_(True)
        return self.weights

    # ---- parts of a layer, x (R, P, …, D) ---------------------------------------------------------------------------

    def _linear(self, x: Tensor, name: str) -> Tensor:
        w, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        flat = x.reshape(len(w), -1, x.shape[-1])
        out = torch.bmm(flat, w.mT) if bias is None else torch.baddbmm(bias[:, None], flat, w.mT)
        return out.view(*x.shape[:-1], w.shape[1])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        w = self.weights[f"{name}.weight"]
        return rms_norm(x, x.shape[-1:], eps=self.shape.eps) * w.view(len(w), *[1] * (x.ndim - 2), -1)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        """(R, P, G, T, D) → (R, P, H, G, T, d)."""
        y = self._linear(x, name)
        return y.view(*y.shape[:-1], self.shape.heads, -1).permute(0, 1, 4, 2, 3, 5)

    def _turned(self, x: Tensor, first: int) -> Tensor:
        """Rotary positions: ``first`` is that of column 0. (…, T, d)"""
        own = slice(first, first + x.shape[-2])
        a, b = x.chunk(2, -1)
        return x * self._cos[own] + torch.cat([-b, a], -1) * self._sin[own]

    def _feed(self, x: Tensor, layer: str) -> Tensor:
        y = self._norm(x, f"{layer}.post_attention_layernorm")
        gate, up = self._linear(y, f"{layer}.mlp.gate_proj"), self._linear(y, f"{layer}.mlp.up_proj")
        return x + self._linear(silu(gate) * up, f"{layer}.mlp.down_proj")

    def _embed(self, ids: Tensor) -> Tensor:
        table = self.weights["model.embed_tokens.weight"]  # (R, V, D)
        flat = ids.reshape(len(table), -1, 1).expand(-1, -1, table.shape[-1])
        return table.gather(1, flat).view(*ids.shape, -1)

    def _layer(
        self, x: Tensor, layer: str, first: int, own: Tensor, before: tuple[Tensor, Tensor] | None, barrier: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """x (R, P, G, T, D) after one layer, and its keys and values. ``own``: what is added to the scores among x's columns and
        those of ``past``; ``before``: the prompt's keys and values (R, P, H, S, d), shared by the group, behind ``barrier``."""
        y = self._norm(x, f"{layer}.input_layernorm")
        q, k, v = (self._heads(y, f"{layer}.self_attn.{name}_proj") for name in "qkv")
        q, k = self._turned(q, first) * q.shape[-1] ** -0.5, self._turned(k, first)
        if past is not None:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        scores = q @ k.mT + own
        if before is None:
            out = scores.softmax(-1) @ v
        else:
            rows = q.flatten(3, 4)  # (R, P, H, G·T, d)
            with_prompt = (rows @ before[0].mT).view(*q.shape[:-1], -1) + barrier
            weight = torch.cat([with_prompt, scores], -1).softmax(-1)
            columns = before[0].shape[-2]
            out = (weight[..., :columns].flatten(3, 4) @ before[1]).view(q.shape) + weight[..., columns:] @ v
        out = out.permute(0, 1, 3, 4, 2, 5).flatten(4)
        return self._feed(x + self._linear(out, f"{layer}.self_attn.o_proj"), layer), (k, v)

    # ---- passes -------------------------------------------------------------------------------------------------------

    def read(self, prompts: Prompts) -> tuple[Tensor, Cache]:
        """The state after each prompt, (R, P, 1, 1, D), and the prompts' keys and values."""
        columns = prompts.ids.shape[-1]
        causal = torch.full((columns, columns), FAR, device=prompts.ids.device).triu(1)
        own = causal + prompts.barrier
        x, cache = self._embed(prompts.ids)[:, :, None], []
        for i in range(self.shape.layers):
            x, (k, v) = self._layer(x, f"model.layers.{i}", 0, own, None, own)
            cache.append((k[:, :, :, 0], v[:, :, :, 0]))
        return x[..., -1:, :], cache

    def states(self, prompts: Prompts, ids: Tensor) -> Tensor:
        """Normed last states, (R, P, G, T + 1, D): after the prompt, then after each token of ``ids`` (R, P, G, T)."""
        after, cache = self.read(prompts)
        first, columns = prompts.ids.shape[-1], ids.shape[-1]
        causal = torch.full((columns, columns), FAR, device=ids.device).triu(1)
        x, barrier = self._embed(ids), prompts.barrier
        for i, before in enumerate(cache):
            x, _ = self._layer(x, f"model.layers.{i}", first, causal, before, barrier)
        x = torch.cat([after.expand(*ids.shape[:3], 1, -1), x], -2)
        return self._norm(x, "model.norm")

    def logits(self, states: Tensor) -> Tensor:
        return self._linear(states, "model.embed_tokens" if self.shape.tied else "lm_head")

    @torch.no_grad()
    def sample(self, prompts: Prompts, drawn: Tensor, end: int, pad: int) -> Tensor:
        """ids (R, P, G, T) of completions at temperature 1, ``pad`` after ``end``. ``drawn`` (R, P, G, T), uniform in [0, 1),
        decides them: the same numbers give the same completions, whatever else is in the stack."""
        state, cache = self.read(prompts)
        first, barrier = prompts.ids.shape[-1], prompts.barrier
        past: list[tuple[Tensor, Tensor] | None] = [None] * self.shape.layers
        going = torch.ones(drawn.shape[:3], dtype=torch.bool, device=drawn.device)
        out = torch.full(drawn.shape, pad, device=drawn.device)
        none = torch.zeros((), device=drawn.device)
        for t in range(drawn.shape[-1]):
            below = self.logits(self._norm(state, "model.norm"))[..., 0, :].softmax(-1).cumsum(-1)  # (R, P, G or 1, V)
            point = drawn[..., t, None] * below[..., -1:]
            token = (below <= point).sum(-1).clamp(max=below.shape[-1] - 1)
            out[..., t] = token.where(going, pad)
            going &= token != end
            if not bool(going.any()):
                break
            x = self._embed(out[..., t])[..., None, :]
            for i, before in enumerate(cache):
                x, past[i] = self._layer(x, f"model.layers.{i}", first + t, none, before, barrier, past[i])
            state = x
        return out
