"""A prototype: rollouts without an engine. All rows take each step together, and a step is one CUDA graph.

vLLM keeps a book on every request and token, in Python: with hundreds of rows of a small model that takes longer than the model.
A batch of rollouts needs no such book. Its rows start together, their groups share a prompt, and their longest length is known.
Rows that ended go on until half have: then those that go on move together, and a smaller graph takes over.

    B  rows     P  prompts, of G rows each     S  columns of the prompts, padded on the left     T  longest completion
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention
from transformers import AttentionInterface

NAME = "lockstep"
LOOK = 16  # steps from one look at who has ended to the next: each look waits for the card
SMALLEST = 16  # rows of the smallest graph


def grouped(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **more: Any) -> tuple:
    """Heads that share keys and values read them once: of one token, they are the query's rows."""
    rows, heads, columns, width = query.shape
    if columns > 1:
        out = attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
    else:
        query = query.view(rows, key.shape[1], -1, width)
        out = attention(query, key, value, attn_mask=mask, scale=scaling).view(rows, heads, 1, width)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped)


class Slots:
    """Keys and values of the first ``rows`` rows, (B, heads, S + T, d) per layer; a step writes its column in place."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], rows: int, at: Tensor):
        self.layers, self.rows, self.at = layers, rows, at

    def update(self, key: Tensor, value: Tensor, layer: int, *more: Any) -> list[Tensor]:
        own = [x[: self.rows] for x in self.layers[layer]]
        for place, new in zip(own, (key, value)):
            place.index_copy_(2, self.at, new)
        return own

    def get_seq_length(self, *more: Any) -> int:
        return 0


class Read:
    """Keys and values of the prompts, as they come."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, key: Tensor, value: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
        self.layers.append((key, value))
        return key, value

    def get_seq_length(self, *more: Any) -> int:
        return 0


class Lockstep:
    """Completions of a causal LM with full attention (as Qwen2, Llama), at ``temperature``."""

    def __init__(self, model: Any, prompts: int, group: int, longest_prompt: int, longest: int, ends: list[int],
                 temperature: float = 1.0):  # fmt: skip
        self.model, self.prompts, self.group = model, prompts, group
        self.longest_prompt, self.longest, self.temperature = longest_prompt, longest, temperature
        model.config._attn_implementation = NAME
        c, rows, device, dtype = model.config, prompts * group, model.device, model.dtype
        width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        shape = (rows, c.num_key_value_heads, longest_prompt + longest, width)
        self.kept = [
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)) for _ in range(c.num_hidden_layers)
        ]
        whole = {"dtype": torch.long, "device": device}
        self.ends = torch.tensor(ends, **whole)
        self.token, self.position = torch.zeros(rows, **whole), torch.zeros(rows, **whole)
        self.at, self.t = torch.zeros(1, **whole), torch.zeros(1, **whole)  # the column to write; the token to draw
        self.seen = torch.zeros(rows, 1, 1, shape[2], dtype=torch.bool, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.drawn, self.logps = torch.zeros(longest, rows, **whole), torch.zeros(longest, rows, device=device)
        self.graphs: dict[int, Any] = {}

    @torch.no_grad()
    def sample(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        """``group`` completions of each prompt, with their log-probs."""
        rows = self.prompts * self.group
        self._start(prompts)
        out, logps = torch.zeros_like(self.drawn).T.contiguous(), torch.zeros_like(self.logps).T.contiguous()
        row, done, size = torch.arange(rows, device=self.token.device), 1, rows  # row: of the output, of each row here
        out[:, 0], logps[:, 0] = self.drawn[0], self.logps[0]
        while done < self.longest:
            goes = ~self.ended[:size]
            if (alive := int(goes.sum())) == 0:
                break
            while size > SMALLEST and 2 * alive <= size:
                size //= 2
            if size < len(row):
                row = row[self._move(goes, size)]
            steps = min(LOOK, self.longest - done)
            for _ in range(steps):
                self._step(size)
            at = slice(done, done + steps)
            out[row, at], logps[row, at] = self.drawn[at, :size].T, self.logps[at, :size].T
            done += steps
        ids, values = out[:, :done].tolist(), logps[:, :done].tolist()
        ends = {*self.ends.tolist()}
        cuts = [next((i + 1 for i, token in enumerate(own) if token in ends), done) for own in ids]
        return [own[:cut] for own, cut in zip(ids, cuts)], [own[:cut] for own, cut in zip(values, cuts)]

    def _start(self, prompts: list[list[int]]) -> None:
        """Reads the prompts and draws the first tokens."""
        columns, device = self.longest_prompt, self.token.device
        ids = torch.tensor([[0] * (columns - len(p)) + p for p in prompts], device=device)
        seen = torch.tensor([[False] * (columns - len(p)) + [True] * len(p) for p in prompts], device=device)
        causal = torch.ones(columns, columns, dtype=torch.bool, device=device).tril()
        itself = torch.eye(columns, dtype=torch.bool, device=device)  # padding sees something, too
        mask, read = (seen[:, None, None, :] & causal) | itself, Read()
        position = (seen.cumsum(1) - 1).clamp(min=0)
        states = self._states(ids, mask, position, read)
        for places, news in zip(self.kept, read.layers):
            for place, new in zip(places, news):
                place[:, :, :columns] = new.repeat_interleave(self.group, 0)
        self.seen.zero_()
        self.seen[:, 0, 0, :columns] = seen.repeat_interleave(self.group, 0)
        self.position.copy_(position[:, -1].repeat_interleave(self.group, 0))
        self.ended.zero_()
        self.at.fill_(columns)
        self.t.zero_()
        self._draw(states[:, -1].repeat_interleave(self.group, 0), len(self.token))

    def _states(self, ids: Tensor, mask: Tensor, position: Tensor, cache: Any) -> Tensor:
        body = self.model.model
        masks = {"full_attention": mask}
        return body(ids, attention_mask=masks, position_ids=position, past_key_values=cache, use_cache=True)[0]

    def _draw(self, states: Tensor, size: int) -> None:
        logps = (self.model.lm_head(states).float() / self.temperature).log_softmax(-1)
        noise = torch.empty_like(logps).exponential_()
        token = (logps - noise.log()).argmax(-1)  # by Gumbel's noise
        self.drawn[:, :size].index_copy_(0, self.t, token[None])
        self.logps[:, :size].index_copy_(0, self.t, logps.gather(1, token[:, None]).T)
        self.ended[:size] |= (token[:, None] == self.ends).any(-1)
        self.token[:size] = token
        self.position[:size] += 1
        self.t += 1

    def _one(self, size: int) -> None:
        self.seen[:size].index_fill_(3, self.at, True)
        slots = Slots(self.kept, size, self.at)
        states = self._states(self.token[:size, None], self.seen[:size], self.position[:size, None], slots)
        self._draw(states[:, 0], size)
        self.at += 1

    def _step(self, size: int) -> None:
        if self.token.device.type != "cuda":
            self._one(size)
            return
        if size not in self.graphs:
            self.graphs[size] = self._captured(size)
        self.graphs[size].replay()

    def _captured(self, size: int) -> Any:
        """The graph of a step. What the steps before it write is put back."""
        state = (self.token, self.position, self.at, self.t, self.seen, self.ended, self.drawn, self.logps)
        kept = [x.clone() for x in state]
        column = [[x[:, :, int(self.at)].clone() for x in layer] for layer in self.kept]
        where = int(self.at)

        def back() -> None:
            for x, old in zip(state, kept):
                x.copy_(old)
            for layer, olds in zip(self.kept, column):
                for x, old in zip(layer, olds):
                    x[:, :, where] = old

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._one(size)
                back()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one(size)
        back()
        return graph

    def _move(self, goes: Tensor, size: int) -> Tensor:
        """Those that go on to the front, with ended ones behind them up to ``size``; answers which rows these were."""
        which = torch.cat([goes.nonzero().flatten(), (~goes).nonzero().flatten()])[:size]
        for x in (self.token, self.position, self.seen, self.ended, *(x for layer in self.kept for x in layer)):
            x[:size] = x[which]
        return which
