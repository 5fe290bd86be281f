"""A study of seconds: a model of one layer, two variants, four steps."""

SMALL = {
    "base": {
        "scratch": {"characters": "0123456789+-*=: ", "width": 16, "layers": 1, "heads": 2},
        "demonstrations": {"problems": 64},
        "sft": {"prompt_format": "symbols", "use_peft": False, "use_cpu": True, "max_steps": 6, "max_length": 64,
                "per_device_train_batch_size": 32, "learning_rate": 1e-2, "report_to": "none", "gradient_checkpointing": False,
                "disable_tqdm": True},
    },
    "train": {"task": "countdown-ltr", "rows": 32, "prompt_format": "symbols", "decontaminate": False, "max_steps": 4,
              "per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 10, "learning_rate": 1e-3,
              "report_to": "none", "save_steps": 1, "save_total_limit": 2, "use_cpu": True, "bf16": False, "logging_steps": 1,
              "gradient_checkpointing": False, "guide": "none"},
    "variants": {"grpo": {}, "branch": {"guide": "branch", "guide_args": {"threshold": 0.5}}},
    "seeds": [0],
    "evaluate": {"tasks": ["countdown-ltr"], "n": 4, "seeds": 1, "limit": 12, "temperature": 1.0, "min_p": 0.0, "max_tokens": 10,
                 "prompt_format": "symbols", "primary": {"k": 2}},
}  # fmt: skip
