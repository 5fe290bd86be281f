"""Makes the model that the demo starts from (src/sage_rlvr/studies/demo-base): about five minutes on one core.

    python examples/make_demo_base.py runs/demo-base

A Qwen2 over characters, 0.45M parameters, taught 8,000 countdown-ltr problems with one right answer each, skewed to the order
in which the numbers stand. Stopped before it memorises: it knows many right answers faintly, which is what RL can lose.
"""

import json
import shutil
import sys
from pathlib import Path

from sage_rlvr.provenance import made_with
from sage_rlvr.study.job import build_base

BASE = {
    "scratch": {"characters": "0123456789+-*=: ", "width": 96, "layers": 3, "heads": 4},
    "demonstrations": {"problems": 8000, "after": 2000, "skew": 0.9},  # the first 2,000 are the demo's RL problems
    "sft": {
        "prompt_format": "symbols",
        "use_peft": False,
        "use_cpu": True,
        "max_steps": 600,
        "per_device_train_batch_size": 256,
        "learning_rate": 2e-3,
        "max_length": 64,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_steps": 100,
        "save_total_limit": 1,
        "logging_steps": 50,
        "disable_tqdm": True,
    },
}
KEPT = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

if __name__ == "__main__":
    work = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo-base")
    model = Path(build_base(BASE, work))
    to = Path(__file__).parents[1] / "src" / "sage_rlvr" / "studies" / "demo-base"
    to.mkdir(exist_ok=True)
    for name in KEPT:
        shutil.copy(model / name, to / name)
    made = {"script": "examples/make_demo_base.py", "base": BASE, **made_with()}
    (to / "made.json").write_text(json.dumps(made, indent=1) + "\n")
    print(f"written: {to}")
