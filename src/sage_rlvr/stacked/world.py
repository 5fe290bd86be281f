"""A countdown world as tensors: prompts as ids, and right or wrong for a whole stack of completions at once.

What a model of symbols writes is nearly always plain (``3+12*5``, then the end), and plain answers are judged here by the same
rule as ``tasks/scorers.py``, token by token. Anything else is decoded and goes to that scorer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.stacked.model import Prompts
from sage_rlvr.tasks import Problem, get_task, task_reward, to_messages

FORMAT = "symbols"
LONGEST = 4  # digits of a number; a plain answer's numbers have no more
DIGITS, SIGNS = "0123456789", "+-*"


@dataclass(frozen=True)
class Problems:
    """N problems on the device."""

    all: Sequence[Problem]
    ids: Tensor  # (N, S), padded on the left
    seen: Tensor  # (N, S) bool
    target: Tensor  # (N,)
    times: Tensor  # (N, LARGEST + 1): how often each number is given

    def prompts(self, which: Tensor) -> Prompts:
        """which (R, P)"""
        return Prompts(self.ids[which], self.seen[which])


class World:
    """One task's problems, for one tokenizer."""

    def __init__(self, task: str, tokenizer: Any, device: str | torch.device):
        if get_task(task).scorer != "countdown-ltr":
            raise UserError(f"the stacked engine judges left-to-right countdowns, and not {task}: leave --engine out.")
        self.task, self.tokenizer, self.device = task, tokenizer, device
        self.reward = task_reward(task, FORMAT)
        self.end, self.pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        kinds = torch.full((len(tokenizer),), -1)  # token → digit 0..9, 10 + sign, or −1
        for i, character in enumerate(DIGITS + SIGNS):
            kinds[tokenizer.convert_tokens_to_ids(character)] = i
        self.kinds = kinds.to(device)
        self.characters = [tokenizer.decode([i], skip_special_tokens=True) for i in range(len(tokenizer))]
        self.token_of = {c: i for i, c in enumerate(self.characters) if c}

    def problems(self, made: Sequence[Problem]) -> Problems:
        texts = [to_messages(p, FORMAT)[0]["content"] for p in made]
        ids, seen = self.left_padded(texts)
        largest = max(max(p.meta["numbers"]) for p in made)
        times = torch.zeros(len(made), largest + 1, dtype=torch.int8)
        for row, p in zip(times, made):
            for number in p.meta["numbers"]:
                row[number] += 1
        target = torch.tensor([p.meta["target"] for p in made])
        return Problems(made, *(x.to(self.device) for x in (ids, seen, target, times)))

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """As the tokenizer has them. One that has a token per character is not asked for each text: a hundred times as fast."""
        first = list(texts[:20])
        known = set("".join(texts)) <= set(self.token_of)
        if known and [[self.token_of[c] for c in text] for text in first] == self.tokenizer(first).input_ids:
            return [[self.token_of[c] for c in text] for text in texts]
        return self.tokenizer(list(texts)).input_ids

    def left_padded(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """ids (N, S), and what is seen of them, bool."""
        rows = self.rows(texts)
        columns = max(map(len, rows))
        seen = torch.arange(columns) >= columns - torch.tensor([len(row) for row in rows])[:, None]
        return torch.tensor([[self.pad] * (columns - len(row)) + row for row in rows]), seen

    def right(self, problems: Problems, which: Tensor, ids: Tensor) -> Tensor:
        """(…, G) bool. which (…): the problem of each group; ids (…, G, T)."""
        group, columns = ids.shape[-2:]
        rows, of = ids.reshape(-1, columns), which.reshape(-1).repeat_interleave(group)
        plain, right = self._judge(rows, problems.target[of], problems.times[of])
        odd = (~plain).nonzero().flatten()
        if len(odd):
            texts = [self.text(row) for row in rows[odd].tolist()]
            golds = [problems.all[i].answer for i in of[odd].tolist()]
            cut = (rows[odd] != self.end).all(1).tolist()
            verdicts = self.reward(prompts=[""] * len(texts), completions=texts, answer=golds, truncated=cut)
            right[odd] = torch.tensor([bool(v) for v in verdicts], device=right.device)
        return right.view(ids.shape[:-1])

    def text(self, row: Sequence[int]) -> str:
        """As tokenizer.decode has it, without special tokens; a hundred times as fast."""
        return "".join(self.characters[i] for i in row)

    def keys(self, ids: Tensor, right: Tensor) -> list[str | None]:
        """Which solution each right completion is, rows (N, T); None for the others."""
        rows = ids.tolist()
        return [self.reward.key(self.text(row)) if good else None for row, good in zip(rows, right.tolist())]

    def _judge(self, rows: Tensor, target: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) whether each row is plain, and whether it is right if so. rows (B, T), target (B,), times (B, numbers)."""
        n = len(rows)
        start = torch.zeros(n, dtype=torch.long, device=rows.device)
        value, number, digits, sign = start, start, start, start  # sign 0 before the first number: 0 + number
        left = times.long()
        going, plain, fits = (torch.ones(n, dtype=torch.bool, device=rows.device) for _ in range(3))
        most = left.shape[1] - 1
        for column in rows.T:
            kind = self.kinds[column]
            ended = going & (column == self.end)
            digit, op = going & (kind >= 0) & (kind < 10), going & (kind >= 10)
            plain = plain & (~going | digit | op | ended)
            plain = plain & ~(digit & (digits >= LONGEST))
            closes = op | ended
            plain = plain & ~(closes & (digits == 0))  # ++, an empty answer, 3+ at the end
            value = torch.where(closes, _joined(value, sign, number), value)
            inside = number.clamp(max=most)
            left = left - torch.nn.functional.one_hot(inside, most + 1) * closes[:, None]
            fits = fits & ~(closes & (number > most))
            number = torch.where(digit, number * 10 + kind, torch.where(op, 0, number))
            digits = torch.where(digit, digits + 1, torch.where(op, 0, digits))
            sign = torch.where(op, kind - 10, sign)
            going = going & ~ended
        plain = plain & ~going  # cut off: the scorer's rule
        return plain, plain & fits & (left == 0).all(1) & (value == target)


def _joined(value: Tensor, sign: Tensor, number: Tensor) -> Tensor:
    return torch.where(sign == 0, value + number, torch.where(sign == 1, value - number, value * number))
