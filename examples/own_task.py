"""A task of your own: problems, a judge, and a short run on it. Half a minute on a CPU.
python examples/own_task.py     # in this folder, every verb knows it by name: sage-rlvr --import own_task tasks show plus-minus
"""

import random
import re
from importlib.resources import files

from datasets import Dataset

from sage_rlvr import SAGEConfig, SAGETrainer
from sage_rlvr.tasks import Problem, Source, Task, load_task, register_scorer, register_task, rows, task_reward


def problems(n: int, seed: int, split: str) -> list[Problem]:
    """Such as '3 8 1=10:'. Training targets are odd and test targets even, so that the two never meet."""
    rng, found = random.Random(seed), []
    while len(found) < n:
        digits = rng.choices(range(1, 10), k=3)
        target = abs(sum(d * rng.choice((1, -1)) for d in digits))
        found += [f"{' '.join(map(str, digits))}={target}"] if target % 2 == (split == "train") else []
    return [Problem(f"{split}-{i}", "plus-minus", f"{gold}:", gold) for i, gold in enumerate(found)]


@register_scorer("plus-minus")
def judge(answer: str, gold: str) -> float:
    """1 where the answer joins the numbers, each once, by + and −, and reaches the target."""
    (numbers, target), terms = gold.split("="), re.findall(r"[+-]?\d", answer)
    fits = "".join(terms) == answer and sorted(t[-1] for t in terms) == sorted(numbers.split())
    return float(fits and sum(map(int, terms)) == int(target))


register_task(Task("plus-minus", "reach a target with + and −", kind="generated", scorer="plus-minus", licence="CC0-1.0",
                   splits={"train": (Source("generated"),), "test": (Source("generated"),)}, generate=problems))  # fmt: skip
if __name__ == "__main__":
    base = str(files("sage_rlvr") / "studies" / "demo-base")  # the demo's small model; yours: a Hub id or a folder
    data = Dataset.from_list(rows(load_task("plus-minus", limit=200, split="train"), "plain", conversational=False))
    size = {"max_steps": 10, "per_device_train_batch_size": 64, "max_completion_length": 9}
    config, reward = SAGEConfig("runs/task", guide="none", **size), task_reward("plus-minus", "plain")
    SAGETrainer(base, reward, config, data).train()
