"""It learns, and its anchor stays or follows."""

import pytest
import torch

from . import tiny
from .tiny import build


def even_digit(completions, **kwargs):
    """Right if the completion begins with an even digit: a thing a random model does one time in ten."""
    return [float(c[:1] in tuple("02468")) for c in completions]


def test_a_tiny_model_learns(tmp_path):
    """Under a guide; without one it is GRPO bit for bit (test_parity.py)."""
    folder = tiny.folder(tmp_path / "model", spread=0.05)
    options = {
        "guide": "branch",
        "per_device_train_batch_size": 64,
        "num_generations": 16,
        "max_steps": 40,
        "learning_rate": 3e-3,
        "beta": 0.02,
    }
    options |= {"max_completion_length": 4, "temperature": 1.0, "logging_steps": 40}
    trainer = build(folder, tmp_path / "run", given=False, reward=even_digit, **options)
    tok = trainer.processing_class

    def share_of_even():
        """Read from text, sampled anew with a fixed seed."""
        torch.manual_seed(123)
        batch = tok([f"{i}+{i}=" for i in range(8)] * 32, return_tensors="pt", padding=True)
        with torch.no_grad():
            out = trainer.model.generate(**batch, max_new_tokens=2, do_sample=True, pad_token_id=0)
        texts = tok.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return sum(t[:1] in tuple("02468") for t in texts) / len(texts)

    before = share_of_even()
    trainer.train()
    after = share_of_even()
    assert before < 0.25
    assert after > before + 0.5, (before, after)


def test_sync_ref_model_moves_the_anchor(folder, tmp_path):
    """With it the anchor follows the policy: after a full copy the plain KL is 0 again."""
    options = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0, "max_steps": 3}
    trainer = build(folder, tmp_path, **options)
    trainer.train()
    assert all(h["kl_ref"] == pytest.approx(0, abs=1e-6) for h in trainer.state.log_history if "kl_ref" in h)
    trainer = build(folder, tmp_path, max_steps=3)
    trainer.train()
    assert trainer.state.log_history[2]["kl_ref"] > 1e-3
