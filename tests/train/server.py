"""A vLLM server as TRL's client shows it: weights come in by name, completions and their log-probs go out. It stands in for the
client alone; what gathers prompts and hands completions out, VLLMGeneration, is TRL's own."""

import threading
import zlib

import torch
from trl.generation import vllm_generation

from . import tiny

OPTIONS = {"use_vllm": True, "vllm_mode": "server", "vllm_importance_sampling_mode": "token_truncate"}


class Client:
    """Draws from a model of its own. The same prompt and weights give the same completions."""

    def __init__(self, **_):
        self.model, self.sent, self.busy = tiny.model(seed=99).eval(), 0, threading.Lock()
        self.calls = []  # (how often weights had come, prompts, completions)
        self.before, self.answers = lambda call: None, 10**9

    def init_communicator(self, device):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def reset_prefix_cache(self):
        assert not self.busy.locked(), "while it draws"

    def update_named_params(self, metadata, params):
        assert not self.busy.locked(), "weights come while it draws"
        self.model.load_state_dict({name: p.detach().clone() for name, p in params})
        self.sent += 1

    @torch.no_grad()
    def generate(self, prompts, n, temperature, max_tokens, **_):
        with self.busy:
            self.before(len(self.calls))
            if len(self.calls) >= self.answers:
                raise ConnectionError("nobody there")
            weights = self.model.lm_head.weight.numpy().tobytes()
            drawn = [self._group(ids, n, temperature, max_tokens, weights) for ids in prompts]
        ids, logprobs = ([row for group in drawn for row in group[i]] for i in (0, 1))
        self.calls.append((self.sent, prompts, ids))
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}

    def _group(self, prompt, n, temperature, max_tokens, weights):
        draw = torch.Generator().manual_seed(zlib.crc32(bytes(prompt) + weights))
        text, logps = torch.tensor([prompt] * n), []
        for _ in range(max_tokens):
            step = (self.model(text).logits[:, -1] / temperature).log_softmax(-1)
            token = torch.multinomial(step.exp(), 1, generator=draw)
            text, logps = torch.cat([text, token], 1), [*logps, step.gather(1, token)]
        ids, logps = text[:, len(prompt) :].tolist(), torch.cat(logps, 1).tolist()
        ends = [row.index(1) + 1 if 1 in row else len(row) for row in ids]
        return [row[:e] for row, e in zip(ids, ends)], [[[x] for x in row[:e]] for row, e in zip(logps, ends)]


def replace(put=setattr):
    """A test hands over monkeypatch's."""
    put(vllm_generation, "is_vllm_available", lambda: True)
    put(vllm_generation, "VLLMClient", Client)
