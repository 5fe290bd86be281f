"""Tools, environments and images, which TRL runs: without a guide the losses are GRPOTrainer's, and a guide leaves alone what
a tool wrote (docs/howto/tools_and_images.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.errors import UserError
from sage_rlvr.train import SAGEConfig, SAGETrainer

from . import tiny

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call><|im_end|>'
PLAIN = {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": False}  # of both trainers
SEES = (  # a chat template for images; for tools TRL must know the template
    "{% for m in messages %}<|im_start|>{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def tokenizer():
    """Bytes, with Qwen2.5's chat template: TRL knows how its tool calls are written."""
    vocab = {t: i for i, t in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    inner = Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=SPECIAL[0], eos_token=SPECIAL[2], padding_side="left",
        additional_special_tokens=[SPECIAL[1], SPECIAL[3]],
    )  # fmt: skip
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    return made


def text_config():
    return Qwen2Config(
        vocab_size=len(tokenizer()), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0, eos_token_id=2, initializer_range=0.5,
    )  # fmt: skip


def save(model, processing_class, path):
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, 2
    model.save_pretrained(path)
    processing_class.save_pretrained(path)
    return str(path)


# ---- tools and environments ----------------------------------------------------------------------------------------


def multiply(a: int, b: int) -> int:
    """
    Multiplies two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


class Counter:
    """An environment that owns its reward: was the tool called?"""

    def reset(self, **row):
        self.calls = 0

    def multiply(self, a: int, b: int) -> int:
        """
        Multiplies two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.calls += 1
        return a * b

    def get_reward(self) -> float:
        return float(self.calls)


def scripted(cls):
    """Every other completion calls the tool first and then answers; the text is written here, not sampled."""

    class Scripted(cls):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            later = kwargs.get("num_generations") == 1
            texts = [f"it is {'12' if i % 3 else '7'}<|im_end|>" for i in range(len(prompt_ids))]
            texts = texts if later else [CALL if i % 2 else text for i, text in enumerate(texts)]
            return [self._tokenizer(text)["input_ids"] for text in texts], None

        def held_log_q(self, inputs, logps, entropies, mask):
            log_q = super().held_log_q(inputs, logps, entropies, mask)
            seen.append((log_q, mask, inputs["tool_mask"]))
            return log_q

    seen = Scripted.seen = []
    return Scripted


def right(completions, **columns):
    return [float("12" in turns[-1]["content"]) for turns in completions]


KINDS = {
    "tools": {"reward_funcs": right, "tools": [multiply]},
    "environment": {"reward_funcs": None, "environment_factory": Counter},
}


def run_tools(tmp_path, kind, cls=SAGETrainer, config=SAGEConfig, **settings):
    folder = tmp_path / "model"
    if not folder.exists():
        torch.manual_seed(0)
        save(Qwen2ForCausalLM(text_config()), tokenizer(), folder)
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i} times 4?"}] for i in range(8)]})
    args = tiny.config(config, tmp_path / "run", max_completion_length=256, **settings)
    trainer = scripted(cls)(str(folder), args=args, train_dataset=data, processing_class=tokenizer(), **KINDS[kind])
    trainer.train()
    return trainer


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_guide_tools_train_as_in_trl(tmp_path, kind):
    ours = run_tools(tmp_path, kind, guide="none", **PLAIN)
    theirs = run_tools(tmp_path, kind, GRPOTrainer, GRPOConfig, **PLAIN)
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-6)
    assert losses(ours)[-1] != 0
    assert ours.state.log_history[0]["tools/call_frequency"] == 0.5


@pytest.mark.parametrize(
    "settings", [{"anchor_estimator": "k3"}, {"anchor_estimator": "k1-reward", "advantage": "rarity"}]
)
def test_a_guide_leaves_alone_what_a_tool_wrote(tmp_path, settings):
    trainer = run_tools(tmp_path, "tools", guide="branch", guide_args={"threshold": 0.0}, **settings)
    assert trainer.seen
    for log_q, mask, own in trainer.seen:
        assert (own == 0).any()
        assert (log_q[own == 0] == 0).all()
        assert (mask[own == 0] == 0).all()
        assert (log_q[mask.bool()] != 0).any()


# ---- images --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eye(tmp_path_factory):
    """A LLaVA of random weights that sees 28 × 28 pixels, and its processor."""
    pil = pytest.importorskip(
        "transformers.models.clip.image_processing_pil_clip", reason="this Transformers has no PIL processor"
    )
    seen = pil.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = LlavaProcessor(
        image_processor=seen, tokenizer=tokenizer(), patch_size=14, vision_feature_select_strategy="full",
        chat_template=SEES, num_additional_image_tokens=1,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=text_config(),
            vision_config=vision,
            image_token_id=SPECIAL.index("<image>"),
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=False,
        )
    )
    return save(model, processor, tmp_path_factory.mktemp("eye")), processor


def run_images(eye, tmp_path, cls=SAGETrainer, config=SAGEConfig, **settings):
    folder, processor = eye
    pixels = np.random.default_rng(0).integers(0, 255, (8, 28, 28, 3), dtype=np.uint8)
    data = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"{i}?"}] for i in range(8)],
            "image": [Image.fromarray(x) for x in pixels],
        }
    )
    args = tiny.config(config, tmp_path, **settings)
    trainer = cls(folder, lambda completions, **columns: even(completions), args, data, processing_class=processor)
    trainer.train()
    return trainer


def even(completions):
    return [float(len(turns[-1]["content"]) % 2) for turns in completions]


def test_without_a_guide_images_train_as_in_trl_and_a_guide_shapes_them(eye, tmp_path):
    theirs = losses(run_images(eye, tmp_path, GRPOTrainer, GRPOConfig, **PLAIN))
    assert losses(run_images(eye, tmp_path, guide="none", **PLAIN)) == pytest.approx(theirs, abs=1e-5)
    shaped = run_images(eye, tmp_path, guide="branch", beta=0.2)
    assert shaped.state.log_history[0]["kl"] > shaped.state.log_history[0]["kl_ref"]
    assert losses(shaped) != pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("setting", ["dynamic_sampling", "tokens_per_microbatch"])
def test_what_images_cannot_do_is_said(eye, tmp_path, setting):
    with pytest.raises(UserError, match=f"{setting}.* text batches"):
        run_images(eye, tmp_path, guide="none", **{setting: 64})
