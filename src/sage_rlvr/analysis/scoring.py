"""Stored completions read again through a model: the log-prob of each token, and the entropy of the state it was drawn in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.backends import tokenizer_place
from sage_rlvr.models import base_of, is_adapter, load_model, load_tokenizer
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import Problem, get_format, load_task, render


@dataclass(frozen=True)
class Text:
    """A completion behind its prompt, both as token ids."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass
class Reading:
    """Of one completion, (T,) float32 each."""

    logps: Tensor
    entropies: Tensor


@dataclass(frozen=True)
class ModelSource:
    """A model as an evaluation names it: weights, and an adapter on them or none."""

    model: str
    adapter: str | None = None

    @property
    def name(self) -> str:
        return f"{self.model} + {self.adapter}" if self.adapter else self.model

    def load(self, dtype: str = "auto", device: str | None = None) -> Any:
        """In eval mode. ``dtype`` auto is the stored one, on CPU float32."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        precision = "float32" if dtype == "auto" and device == "cpu" else dtype
        return load_model(self.model, self.adapter, dtype=precision).to(device).eval()

    @property
    def words(self) -> str:
        """Where its tokenizer is."""
        return tokenizer_place(self.model, self.adapter)

    def tokenizer(self) -> Any:
        return load_tokenizer(self.words)


def source_of(where: str | Path) -> ModelSource:
    """An evaluation folder stands for the model it sampled; anything else is a model, or an adapter on its base."""
    if Path(where, "store.json").is_file():
        settings = SampleStore(where, readonly=True).settings
        if not settings.get("model"):
            raise UserError(f"{where}/store.json does not say which model was sampled; name the model instead.")
        return ModelSource(settings["model"], settings.get("adapter"))
    if is_adapter(where):
        return ModelSource(base_of(where), str(where))
    return ModelSource(str(where))


# ---- prompts -----------------------------------------------------------------------------------------------------


class Prompts:
    """Prompt ids of a store's problems, built as evaluation built them. Tasks are loaded when first asked for."""

    def __init__(self, store: SampleStore, tokenizer: Any, data_dir: str | Path | None = None):
        self.store, self.tokenizer, self.data_dir = store, tokenizer, data_dir
        self.format = get_format(store.settings.get("prompt_format", "paper"))
        self.split = store.settings.get("split", "test")
        self._problems: dict[str, dict[str, Problem]] = {}
        self._ids: dict[tuple[str, str], tuple[int, ...]] = {}

    def __call__(self, task: str, problem: str) -> tuple[int, ...]:
        if (task, problem) not in self._ids:
            text = render(self.problem(task, problem), self.format, self.tokenizer)
            self._ids[task, problem] = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._ids[task, problem]

    def problem(self, task: str, problem: str) -> Problem:
        if task not in self._problems:
            self._problems[task] = {p.id: p for p in load_task(task, self.data_dir, split=self.split)}
        asked = self.store.problems.get(task)
        if problem not in self._problems[task] and asked:  # a generated task of more than the default
            size = len(asked.problems) + len(asked.unverifiable)
            self._problems[task] |= {p.id: p for p in load_task(task, self.data_dir, size, split=self.split)}
        if problem not in self._problems[task]:
            raise UserError(
                f"{self.store.folder}: {task} has no problem {problem!r} any more, so its prompt cannot be rebuilt; give the "
                "data_dir that eval had."
            )
        return self._problems[task][problem]


# ---- the forward pass ----------------------------------------------------------------------------------------------


def read_texts(
    model: Any, texts: Sequence[Text], batch_tokens: int | None = None, temperature: float = 1.0
) -> Iterator[list[tuple[int, Reading]]]:
    """Batches of (position in ``texts``, reading), longest first; a batch is at most ``batch_tokens`` wide and high."""
    device = next(model.parameters()).device
    room = batch_tokens or (16_384 if device.type == "cuda" else 4_096)
    _check_vocabulary(model, texts)
    order = sorted((i for i, t in enumerate(texts) if t.completion), key=lambda i: -len(texts[i]))
    while order:
        rows = max(1, room // len(texts[order[0]]))
        batch, order = order[:rows], order[rows:]
        try:
            with torch.inference_mode():
                readings = _forward(model, [texts[i] for i in batch], temperature)
        except torch.OutOfMemoryError as e:
            raise UserError(
                f"the GPU has no room for {len(batch)} texts of {len(texts[batch[0]])} tokens: lower --batch_tokens below {room} "
                "and run it again, it goes on from there."
            ) from e
        if any(reading.logps.isnan().any() for reading in readings):
            raise UserError(
                f"{model.config.name_or_path or 'the model'} gives stored completions log-probs that are not numbers, so its "
                "weights or this device's arithmetic are broken: remove what this command wrote (the last numbers may be "
                "nonsense too) and run it again when that is fixed (docs/reference/faq.md)."
            )
        yield list(zip(batch, readings))


def _forward(model: Any, texts: Sequence[Text], temperature: float) -> list[Reading]:
    """Padded on the left, so that completions end together and only their columns need logits."""
    device = next(model.parameters()).device
    width, most = max(map(len, texts)), max(len(t.completion) for t in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, t in enumerate(texts):
        ids[row, width - len(t) :] = torch.tensor([*t.prompt, *t.completion])
        mask[row, width - len(t) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    last = min(most + 1, width)
    out = model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=last)
    logits = out.logits[:, -last:]
    sizes = [len(t.completion) for t in texts]  # a row at a time: float32 logits of a whole batch would not fit
    return [_row(logits[i, -n - 1 : -1], ids[i, -n:], temperature) for i, n in enumerate(sizes)]


def _row(logits: Tensor, tokens: Tensor, temperature: float, chunk: int = 512) -> Reading:
    """logits (T, V) that predict tokens (T,)."""
    logps, entropies = [], []
    for at in range(0, len(tokens), chunk):
        log_p = torch.log_softmax(logits[at : at + chunk].float() / temperature, dim=-1)
        logps.append(log_p.gather(-1, tokens[at : at + chunk, None])[:, 0])
        entropies.append(torch.special.entr(log_p.exp()).sum(-1))
    return Reading(torch.cat(logps).cpu(), torch.cat(entropies).cpu())


def _check_vocabulary(model: Any, texts: Sequence[Text]) -> None:
    size = model.get_input_embeddings().weight.shape[0]
    highest = max((max((*t.prompt, *t.completion)) for t in texts if len(t)), default=0)
    if highest >= size:
        raise UserError(
            f"a stored token id is {highest} and this model's vocabulary ends at {size - 1}: the samples come from a model with "
            "another tokenizer, so name the base they share."
        )
    if any(t.completion and not t.prompt for t in texts):
        why = "its completion's first token has no probability"
        raise UserError(f"a prompt is empty, so {why}; use another prompt_format.")
