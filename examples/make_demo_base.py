"""Makes the model that the demo starts from (src/sage_rlvr/studies/demo-base): about two minutes on one core.

    python examples/make_demo_base.py runs/demo-base

A Qwen2 over characters, 0.2M parameters, on countdown-ltr-3. First it is shown right answers, mostly in the order in which the
numbers stand. Then it gets a bad habit: 60% of what it is shown are guesses, the last number first. So it knows more than its
first answer says, which RL can bring out; and its guesses solve problems that it cannot work out, which RL can lose.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from sage_rlvr.provenance import made_with
from sage_rlvr.study.job import build_base

SFT: dict[str, Any] = {
    "prompt_format": "symbols",
    "use_peft": False,
    "use_cpu": True,
    "per_device_train_batch_size": 256,
    "max_length": 64,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_steps": 1000,
    "save_total_limit": 1,
    "logging_steps": 50,
    "disable_tqdm": True,
}
SHOWN = {"task": "countdown-ltr-3", "problems": 1300, "after": 260}  # the first 260 are the demo's RL problems
BASE: dict[str, Any] = {
    "scratch": {"characters": "0123456789+-*=: ", "width": 64, "layers": 3, "heads": 4},
    "demonstrations": {**SHOWN, "copies": 20},
    "sft": {**SFT, "max_steps": 350, "learning_rate": 4e-3},
}
HABIT: dict[str, Any] = {
    "demonstrations": {**SHOWN, "copies": 12, "guesses": 0.6},
    "sft": {**SFT, "max_steps": 60, "learning_rate": 1e-3},
}
KEPT = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

if __name__ == "__main__":
    work = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo-base")
    skilled = build_base(BASE, work / "right")
    model = Path(build_base({"model_name_or_path": skilled, **HABIT}, work / "habit"))
    to = Path(__file__).parents[1] / "src" / "sage_rlvr" / "studies" / "demo-base"
    to.mkdir(exist_ok=True)
    for name in KEPT:
        shutil.copy(model / name, to / name)
    made = {"script": "examples/make_demo_base.py", "base": BASE, "habit": HABIT, **made_with()}
    (to / "made.json").write_text(json.dumps(made, indent=1) + "\n")
    print(f"written: {to}")
