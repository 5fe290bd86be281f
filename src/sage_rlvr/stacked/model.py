"""R copies of a small Qwen2, their weights stacked: tensors begin with R, one row per run.

    R  runs               S  columns of the prompts, padded on the left       D  width          H  heads, of d numbers each
    P  prompts per run    T  columns of the completions                       V  vocabulary
    G  completions of one prompt (a group)

A prompt is read once for its whole group, in sampling and in training: completions attend to its keys and values.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad, rms_norm, silu

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
    """The runs' weights and what is computed with them. ``dtype``: of the products and of attention; weights, residuals, norms
    and softmax are float32. ``compiled``: layers of many completions by torch.compile, as a GPU wants it. ``flex``: their
    attention by FlexAttention, which has gradients on a GPU alone."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        shape: Shape,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
        flex: bool = False,
    ):
        self.weights, self.shape, self.dtype, self.flex = weights, shape, dtype, flex
        table = weights["model.embed_tokens.weight"]
        d, at = table.shape[-1] // shape.heads, torch.arange(shape.columns, device=table.device)
        speed = shape.theta ** (-torch.arange(0, d, 2, device=table.device) / d)
        angle = (at[:, None] * speed).repeat(1, 2)  # (columns, d)
        self._cos, self._sin = angle.cos(), angle.sin()
        prefixes = [f"model.layers.{i}." for i in range(shape.layers)]
        self._layers = [
            {name.removeprefix(own): w for name, w in weights.items() if name.startswith(own)} for own in prefixes
        ]
        self._many = compiled_layer() if compiled else layer

    @classmethod
    def of(
        cls,
        model: Any,
        runs: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
        flex: bool = False,
    ) -> "Stack":
        """``runs`` copies of a Qwen2ForCausalLM, in float32."""
        state = {name: p.detach().to(device, torch.float32) for name, p in model.named_parameters()}
        weights = {name: p.expand(runs, *p.shape).clone() for name, p in state.items()}
        return cls(weights, Shape.of(model.config), dtype, compiled, flex)

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

    def _embed(self, ids: Tensor) -> Tensor:
        table = self.weights["model.embed_tokens.weight"]  # (R, V, D)
        flat = ids.reshape(len(table), -1, 1).expand(-1, -1, table.shape[-1])
        return table.gather(1, flat).view(*ids.shape, -1)

    def _turn(self, first: int, columns: int) -> tuple[Tensor, Tensor]:
        """Of rotary positions, from ``first`` on: cosine and sine (columns, d)."""
        return self._cos[first : first + columns], self._sin[first : first + columns]

    def _normed(self, x: Tensor) -> Tensor:
        return norm(x, self.weights["model.norm.weight"], self.shape.eps)

    # ---- passes -------------------------------------------------------------------------------------------------------

    def read(self, prompts: Prompts) -> tuple[Tensor, Cache]:
        """The state after each prompt, (R, P, 1, 1, D), and the prompts' keys and values."""
        columns = prompts.ids.shape[-1]
        own = below_diagonal(columns, prompts.ids.device) + prompts.barrier
        x, cache, turn = self._embed(prompts.ids)[:, :, None], [], self._turn(0, columns)
        for w in self._layers:
            x, k, v = layer(x, w, self.shape, self.dtype, turn, own)
            cache.append((k[:, :, :, 0], v[:, :, :, 0]))
        return x[..., -1:, :], cache

    def states(self, prompts: Prompts, ids: Tensor) -> Tensor:
        """Normed last states, (R, P, G, T + 1, D): after the prompt, then after each token of ``ids`` (R, P, G, T)."""
        after, cache = self.read(prompts)
        first, columns = prompts.ids.shape[-1], ids.shape[-1]
        own, turn = below_diagonal(columns, ids.device), self._turn(first, columns)
        x, barrier = self._embed(ids), prompts.barrier
        blocks = group_blocks(first, ids.shape[2], columns, ids.device) if self.flex else None
        for w, before in zip(self._layers, cache):
            x = self._many(x, w, self.shape, self.dtype, turn, own, before, barrier, None, blocks)[0]
        x = torch.cat([after.expand(*ids.shape[:3], 1, -1), x], -2)
        return self._normed(x)

    def logits(self, states: Tensor) -> Tensor:
        """In float32: they are few, and all depends on them."""
        w = self.weights["model.embed_tokens.weight" if self.shape.tied else "lm_head.weight"]
        return linear(states, w, None, torch.float32)

    @torch.no_grad()
    def sample(self, prompts: Prompts, drawn: Tensor, end: int, pad: int) -> Tensor:
        """ids (R, P, G, T) of completions at temperature 1, ``pad`` after ``end``. ``drawn`` (R, P, G, T), uniform in [0, 1),
        decides them: the same numbers give the same completions, whatever else is in the stack."""
        state, cache = self.read(prompts)
        first, barrier, columns = prompts.ids.shape[-1], prompts.barrier, drawn.shape[-1]
        heads, width = self.shape.heads, state.shape[-1] // self.shape.heads
        kept = (*drawn.shape[:2], heads, drawn.shape[2], columns, width)  # keys and values of the completions so far
        past = [tuple(torch.zeros(kept, dtype=self.dtype, device=drawn.device) for _ in range(2)) for _ in cache]
        written = below_diagonal(columns + 1, drawn.device)[:, 1:]  # row t: FAR from column t on
        going = torch.ones(drawn.shape[:3], dtype=torch.bool, device=drawn.device)
        out = torch.full(drawn.shape, pad, device=drawn.device)
        for t in range(columns):
            chances = self.logits(self._normed(state))[..., 0, :].softmax(-1)  # (R, P, G or 1, V)
            below = chances.movedim(-1, 0).contiguous().cumsum(0)  # V first: a scan over the last axis is slow on a GPU
            token = (below <= drawn[..., t] * below[-1]).sum(0).clamp(max=len(below) - 1)
            out[..., t] = token.where(going, pad)
            going &= token != end
            if t == columns - 1:
                break
            state, turn = self._embed(out[..., t])[..., None, :], self._turn(first + t, 1)
            for w, before, so_far in zip(self._layers, cache, past):
                read = (state, w, self.shape, self.dtype, turn, written[t], before, barrier, so_far)
                state, *new = self._many(*read)
                for columns_of, own in zip(so_far, new):
                    columns_of[..., t : t + 1, :] = own
        return out


# ---- parts of a layer: x (R, P, …, D), w (R, …) ---------------------------------------------------------------------------


def below_diagonal(columns: int, device: torch.device) -> Tensor:
    """(columns, columns): what is added to scores, so that no column sees a later one."""
    return torch.full((columns, columns), FAR, device=device).triu(1)


def linear(x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    flat, w = x.reshape(len(w), -1, x.shape[-1]).to(dtype), w.to(dtype)
    out = torch.bmm(flat, w.mT) if bias is None else torch.baddbmm(bias[:, None].to(dtype), flat, w.mT)
    return out.view(*x.shape[:-1], w.shape[1])


def norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return rms_norm(x, x.shape[-1:], eps=eps) * w.view(len(w), *[1] * (x.ndim - 2), -1)


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions. (…, T, d)"""
    a, b = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-b, a], -1) * turn[1]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True, dtype=torch.float32)


def layer(
    x: Tensor, w: dict[str, Tensor], shape: Shape, dtype: torch.dtype, turn: tuple[Tensor, Tensor], own: Tensor,
    before: tuple[Tensor, Tensor] | None = None, barrier: Tensor | None = None, past: tuple[Tensor, ...] | None = None,
    blocks: BlockMask | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """x (R, P, G, T, D) after one layer, and its keys and values.

    ``own`` is added to the scores among x's columns. ``before``: the prompt's keys and values (R, P, H, S, d), shared by the
    group, behind ``barrier``. ``past``: where x is one token, keys and values of those before it (R, P, H, G, all columns, d);
    ``own`` is then added to their scores. ``blocks``: of a whole group by FlexAttention, in place of ``own``."""
    y = norm(x, w["input_layernorm.weight"], shape.eps)

    def heads(name: str) -> Tensor:
        """(R, P, G, T, D) → (R, P, H, G, T, d)."""
        z = linear(y, w[f"self_attn.{name}_proj.weight"], w[f"self_attn.{name}_proj.bias"], dtype)
        return z.view(*z.shape[:-1], shape.heads, -1).permute(0, 1, 4, 2, 3, 5)

    q, k, v = heads("q"), heads("k"), heads("v")
    q, k = (turned(q, turn) * q.shape[-1] ** -0.5).to(dtype), turned(k, turn).to(dtype)
    if blocks is not None and before is not None and barrier is not None:
        out = group_attention(q, k, v, before, barrier, blocks)
        return after_attention(x, w, shape, dtype, out), k, v
    if past is None:
        scores = q @ k.mT + own
    else:  # one column: sums of products, since so many small products of matrices are slow
        scores = torch.cat([(q * past[0]).sum(-1, dtype=torch.float32)[..., None, :] + own, _dot(q, k)], -1)
    if before is None or barrier is None:
        out = scores.softmax(-1).to(dtype) @ v
    else:
        rows = q.flatten(3, 4)  # (R, P, H, G·T, d)
        with_prompt = (rows @ before[0].mT).view(*q.shape[:-1], -1) + barrier
        weight = torch.cat([with_prompt, scores], -1).softmax(-1).to(dtype)
        columns = before[0].shape[-2]
        out, weight = (weight[..., :columns].flatten(3, 4) @ before[1]).view(q.shape), weight[..., columns:]
        if past is None:
            out = out + weight @ v
        else:
            out = out + (weight[..., :-1].mT * past[1]).sum(-2, keepdim=True) + weight[..., -1:] * v
    return after_attention(x, w, shape, dtype, out), k, v


def after_attention(x: Tensor, w: dict[str, Tensor], shape: Shape, dtype: torch.dtype, out: Tensor) -> Tensor:
    """x after the rest of the layer; out (R, P, H, G, T, d) is what attention found."""
    x = x + linear(out.permute(0, 1, 3, 4, 2, 5).flatten(4), w["self_attn.o_proj.weight"], None, dtype)
    y = norm(x, w["post_attention_layernorm.weight"], shape.eps)
    gate, up = (linear(y, w[f"mlp.{name}_proj.weight"], None, dtype) for name in ("gate", "up"))
    return x + linear(silu(gate) * up, w["mlp.down_proj.weight"], None, dtype)


@cache
def group_blocks(prompt: int, group: int, columns: int, device: torch.device) -> BlockMask:
    """Which keys a group's tokens see, one completion behind the other: the prompt's, and their own completion's up to them."""

    def seen(batch: Tensor, head: Tensor, at: Tensor, key: Tensor) -> Tensor:
        own = key - prompt
        return (own < 0) | ((own // columns == at // columns) & (own <= at))

    return create_block_mask(seen, None, None, group * columns, prompt + group * columns, device=str(device))


def group_attention(
    q: Tensor, k: Tensor, v: Tensor, before: tuple[Tensor, Tensor], barrier: Tensor, blocks: BlockMask
) -> Tensor:
    """q, k, v (R, P, H, G, T, d) → the same shape. A prompt and its group are one sequence, so that products are large."""
    keys, values = (torch.cat([a, b.flatten(3, 4)], 3).flatten(0, 1) for a, b in zip(before, (k, v)))
    behind = pad(barrier.flatten(0, 4), (0, keys.shape[2] - barrier.shape[-1]))  # (R · P, keys)

    def padding(score: Tensor, batch: Tensor, head: Tensor, at: Tensor, key: Tensor) -> Tensor:
        return score + behind[batch, key]

    rows = q.flatten(3, 4).flatten(0, 1)
    return flex_attention(rows, keys, values, padding, blocks, scale=1.0).view(q.shape)  # q is scaled already


@cache
def compiled_layer() -> Any:
    torch._dynamo.config.recompile_limit = 64  # a program for each size of stack, in training and without gradients
    return torch.compile(layer, dynamic=False)
