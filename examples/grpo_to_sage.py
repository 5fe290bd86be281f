"""From GRPOTrainer to SAGETrainer: the two lines that change are marked. Everything else is TRL as you know it.

python examples/grpo_to_sage.py                               # a random tiny model: shows the log lines, learns little
python examples/grpo_to_sage.py Qwen/Qwen2.5-0.5B-Instruct    # a real one, from the Hub or a folder
"""

import random
import sys
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sage_rlvr import SAGEConfig, SAGETrainer  # ← was: from trl import GRPOConfig, GRPOTrainer


def tiny_model() -> str:
    """A two-layer Qwen2 over characters, saved to a folder."""
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", *"0123456789+= "])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    folder = tempfile.mkdtemp()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(vocab), num_key_value_heads=2, **size)).save_pretrained(folder)
    return folder


def reward_sum(completions, answer, **kwargs):
    """1 if the completion begins with the right sum."""
    return [float(c.strip().startswith(a)) for c, a in zip(completions, answer)]


random.seed(0)
pairs = [(random.randint(0, 4), random.randint(0, 4)) for _ in range(512)]
data = Dataset.from_list([{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs])

options = {  # TRL's own; guide="tempered" and anchor_estimator="k1-reward" are SAGE's other two ways
    "output_dir": "runs/grpo_to_sage", "per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 4,
    "max_steps": 20, "learning_rate": 1e-3, "logging_steps": 5, "beta": 0.05, "report_to": "none", "save_strategy": "no",
}  # fmt: skip
model = sys.argv[1] if len(sys.argv) > 1 else tiny_model()

trainer = SAGETrainer(
    model, reward_sum, SAGEConfig(**options), data
)  # ← was: GRPOTrainer(model, …, GRPOConfig(**options), …)
trainer.train()
