"""Sampling with transformers: batches of a fixed composition, each row with its own noise and its own end.

On CPU a loop of our own: each distinct prompt is read once and its cache shared out to its samples, and rows that have ended
leave the batch. On CUDA ``model.generate`` with the static cache, whose compiled step is several times the default's speed;
completions too short to earn back the compilation (SHORT) are drawn by our own loop there too.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.sampling import Generation, Request, Sampling, Stops, draw, uniforms

SHORT = 64  # tokens: up to here, compiling takes longer than drawing


class TransformersBackend:
    """``longest`` (tokens of the longest prompt) lets every static batch have one shape, so that it compiles once."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        how: Sampling,
        batch_size: int = 64,
        longest: int = 0,
        static: bool | None = None,
    ):
        self.model, self.how, self.rows = model.eval(), how, batch_size
        self.batch_size: int | None = batch_size
        self.device = next(model.parameters()).device
        self.static = (self.device.type == "cuda" and how.max_tokens > SHORT) if static is None else static
        self.longest, self.pad = longest, tokenizer.pad_token_id
        self.eos = eos_ids(model.generation_config, tokenizer)
        self.stops = Stops(tokenizer, how.stop, self.eos)

    def generate(self, requests: Iterator[Request]) -> Iterator[list[Generation]]:
        while batch := list(islice(requests, self.rows)):
            try:
                with torch.inference_mode():
                    rows = self._static(batch) if self.static else self._eager(batch)
            except torch.OutOfMemoryError as e:
                raise UserError(
                    f"the GPU has no room for {self.rows} completions of {self.how.max_tokens} tokens at once: lower "
                    f"--batch_size and run it again, it goes on from there."
                ) from e
            yield [self._generation(*row) for row in zip(batch, *rows)]

    def _generation(self, request: Request, ids: list[int], logps: list[float]) -> Generation:
        finish = "stop" if self.stops.ends(ids) else "length"
        return Generation(request, ids, self.stops.text(ids), finish, sum(logps))

    def close(self) -> None:
        del self.model

    # ---- our own loop --------------------------------------------------------------------------------------------

    def _eager(self, batch: Sequence[Request]) -> tuple[list[list[int]], list[list[float]]]:
        """Token ids and log-probs of each row. R rows are alive, B at first."""
        picker = _Picker(self, batch, len(batch))
        logits, cache, mask = self._read_prompts(batch)
        alive = list(range(len(batch)))  # batch row of each live row
        for step in range(self.how.max_tokens):
            tokens = picker.draw(logits, alive, step)
            left = [i for i, row in enumerate(alive) if not picker.done[row]]
            if not left or step + 1 == self.how.max_tokens:
                break
            if 4 * len(left) <= 3 * len(alive):  # enough have ended to be worth the copy
                keep = torch.tensor(left, device=self.device)
                cache.batch_select_indices(keep)
                tokens, mask, alive = tokens[keep], mask[keep], [alive[i] for i in left]
            mask = torch.cat([mask, mask.new_ones(len(alive), 1)], 1)
            logits = self._forward(tokens[:, None], mask, cache)
        return picker.ids, picker.logps

    def _read_prompts(self, batch: Sequence[Request]) -> tuple[Tensor, Any, Tensor]:
        """Logits (B, V) after each prompt, the cache and the mask (B, P): a prompt that several samples share is read once."""
        from transformers import DynamicCache

        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(r.prompt for r in batch))}
        ids, mask = self._padded(list(distinct), max(map(len, distinct)))
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, cache)
        rows = torch.tensor([distinct[r.prompt] for r in batch], device=self.device)
        if len(distinct) < len(batch):
            cache.batch_select_indices(rows)
        return logits[rows], cache, mask[rows]

    def _forward(self, ids: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Logits (R, V) of the next token; the cache grows by ids (R, new)."""
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]

    def _padded(self, prompts: Sequence[Sequence[int]], width: int) -> tuple[Tensor, Tensor]:
        """Ids and mask (rows, width), padded on the left."""
        ids = torch.full((len(prompts), width), self.pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        return ids.to(self.device), mask.to(self.device)

    # ---- generate with the static cache --------------------------------------------------------------------------

    def _static(self, batch: Sequence[Request]) -> tuple[list[list[int]], list[list[float]]]:
        """As _eager. A short last batch is filled up with copies of its first row."""
        from transformers import GenerationConfig

        rows = [*batch, *[batch[0]] * (self.rows - len(batch))]
        width = max(self.longest, *(len(r.prompt) for r in batch))
        ids, mask = self._padded([r.prompt for r in rows], width)
        picker = _Picker(self, rows, len(batch), width)
        config = GenerationConfig(
            max_new_tokens=self.how.max_tokens, do_sample=False, pad_token_id=self.pad, cache_implementation="static"
        )
        self.model.generation_config = config  # the model's own may hold penalties, which generate would merge in
        self.model.generate(ids, attention_mask=mask, logits_processor=[picker], stopping_criteria=[picker.ended])
        return picker.ids[: len(batch)], picker.logps[: len(batch)]


class _Picker:
    """Draws each row's tokens up to its end. For generate it is a logits processor that leaves no other choice."""

    def __init__(self, backend: TransformersBackend, rows: Sequence[Request], real: int, width: int = 0):
        self.backend, self.width = backend, width
        self.u = uniforms([r.key for r in rows], backend.how.max_tokens, backend.device)  # (B, T)
        self.ids: list[list[int]] = [[] for _ in rows]
        self.logps: list[list[float]] = [[] for _ in rows]
        self.done = [i >= real for i in range(len(rows))]

    def draw(self, logits: Tensor, rows: Sequence[int], step: int) -> Tensor:
        """Tokens (R,) of these rows from logits (R, V)."""
        tokens, chosen = draw(logits, self.backend.how, self.u[rows, step])
        for row, token, logp in zip(rows, tokens.tolist(), chosen.tolist()):
            if not self.done[row]:
                self.ids[row].append(token)
                self.logps[row].append(logp)
                self.done[row] = self.backend.stops.ends(self.ids[row])
        return tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        tokens = self.draw(scores, list(range(len(scores))), input_ids.shape[1] - self.width)
        return torch.full_like(scores, -torch.inf).scatter(-1, tokens[:, None], 0.0)

    def ended(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.tensor(self.done, device=input_ids.device)


def eos_ids(generation_config: Any, tokenizer: Any) -> list[int]:
    """The model's EOS ids and the tokenizer's own: a chat model has several, and ends with any."""
    named = getattr(generation_config, "eos_token_id", None)
    found = [named] if isinstance(named, int) else named or []
    return sorted({*found, tokenizer.eos_token_id} - {None})
