"""Random, malformed and huge text for every built-in scorer and reader: how many inputs, exceptions, and the longest verdict
(docs/reliability.md).

    python benchmarks/scorers.py --to results/cpu/scorers.json

The guard that turns what our own code raises into a verdict is taken out first, so that an exception is seen. Scorers of this
process are bounded by what they read (``limit``: characters), the verifier by its seconds. Tasks of reasoning-gym are judged by
that library's code, in the verifier's processes: they are not in here.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sage_rlvr.provenance import made_with
from sage_rlvr.tasks import distinct_solution, expressions, knights, make_scorer, scorers, task_reward
from sage_rlvr.verify import Verifier, extract_answer

GOLDS = {
    "countdown": json.dumps({"numbers": [3, 12, 69], "target": 84}),
    "countdown-ltr": json.dumps({"numbers": [1, 2, 3, 4], "target": 13}),
    "knights-knaves": json.dumps({"names": ["Amelia", "Mia", "Ian"], "solution": [True, True, False]}),
    "math500": r"\frac{1}{2}",
}
TAGS = ["<SOLUTION>", "</SOLUTION>", "</SOLU", "\\boxed{", "####", "the answer is ", "\n", "\n\n", " ", " ", " "]
MATHEMATICS = [*"0123456789+-*/=()[]{}^_,.%$|!",
               "\\frac{", "}{", "\\sqrt{", "\\times", "\\infty", "\\text{", "\\pi", "12", "69", "x"]  # fmt: skip
PEOPLE = ["Amelia", "Mia", "Mıa", "Ian", "knight", "knaves", "is a ", "are", "isn't", "not", "neither", "nor", "none", "all",
          "or", "others", "only", "and", "says", "it is false that", "there are no ", "->", "!=", ":", ";", ",", "."]  # fmt: skip
ODD = ["\0", "\u200f", "\u202e", "\ud800", "\udfff", "٣", "３", "³", "½", "①", "𝟙", "ſ",
       "K", "’s", "\\", "~", "¬", "\r", "\t"]  # fmt: skip
HUGE = 1_000_000


def texts(count: int, seed: int) -> Iterator[str]:
    """Pieces that scorers know, in any order; any character at all; one piece over and over; one in a thousand of a million
    characters."""
    rng = random.Random(seed)
    kinds = [TAGS + MATHEMATICS, TAGS + PEOPLE, TAGS + MATHEMATICS + PEOPLE + ODD]
    for i in range(count):
        if i % 1_000 == 999:
            piece = "".join(rng.choices(kinds[2], k=rng.randint(1, 4)))
            yield piece * (HUGE // len(piece))
            continue
        way, length = rng.random(), int(2 ** rng.uniform(0, 7))
        if way < 0.1:
            inner = "".join(chr(rng.randrange(sys.maxunicode + 1)) for _ in range(length))
        elif way < 0.2:
            inner = "".join(rng.choices(kinds[2], k=rng.randint(1, 3))) * int(2 ** rng.uniform(0, 10))
        else:
            inner = rng.choice(["", " "]).join(rng.choices(rng.choice(kinds), k=length))
        yield inner if rng.random() < 0.4 else f"<SOLUTION>{inner}</SOLUTION>"


def thrown(name: str, call: Callable[[str], Any], count: int, seed: int, **limit: Any) -> dict[str, Any]:
    """What came of ``count`` inputs, one at a time. Seconds are this thread's own, which a busy machine does not change; the
    verifier's, which works elsewhere, are the clock's, its processes' start and end included."""
    clock = time.perf_counter if "limit_s" in limit else time.thread_time
    longest, length, raised, first = 0.0, 0, 0, None
    for text in texts(count, seed):
        began = clock()
        try:
            call(text)
        except Exception as error:
            raised, first = raised + 1, first or f"{type(error).__name__} on {text[:80]!a}"
        took = clock() - began
        if took > longest:
            longest, length = took, len(text)
    found = {
        "inputs": count,
        "exceptions": raised,
        "longest_s": round(longest, 4),
        "longest_characters": length,
        **limit,
    }
    print(f"{name:<34} {json.dumps(found)}", flush=True)
    return found | ({"first": first} if first else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each scorer and reader")
    parser.add_argument("--math", type=int, help="of the verifier, where one may take 5 s (default: --inputs)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, help="JSON file")
    args = parser.parse_args()
    scorers._safely = lambda what, read, otherwise: read()
    limits = {"countdown": expressions.MAX_CHARACTERS, "countdown-ltr": expressions.MAX_CHARACTERS}
    limits["knights-knaves"] = knights.MAX_CHARACTERS
    tried = {}
    with Verifier(workers=2) as verifier:
        for task, gold in GOLDS.items():
            scorer = make_scorer(task, verifier, fallback=True)
            limit = {"limit_characters": limits[task]} if task in limits else {"limit_s": verifier.timeout_s}
            call = lambda text, scorer=scorer, gold=gold: scorer.score([text], [gold])  # noqa: E731
            count = args.inputs if task in limits or args.math is None else args.math
            tried[f"scorer {task}"] = thrown(f"scorer {task}", call, count, args.seed, **limit)
    lenient = {task: task_reward(task, "plain") for task in GOLDS}
    readers: dict[str, Callable[[str], Any]] = {
        "extract_answer": lambda text: (extract_answer(text), extract_answer(text, fallback=True)),
        "final_answer": lambda text: [scorers.final_answer(text, True, block) for block in (False, True)],
        "distinct_solution": lambda text: [distinct_solution(task, text, True) for task in GOLDS],
        "TaskReward.extract": lambda text: [reward.extract(text) for reward in lenient.values()],
        "TaskReward.key": lambda text: [reward.key(text) for reward in lenient.values()],
    }
    for name, call in readers.items():
        limit = {} if name == "extract_answer" else {"limit_characters": scorers.MAX_CHARACTERS}
        tried[name] = thrown(name, call, args.inputs, args.seed + 1, **limit)
    found = {"command": " ".join(["python", *sys.argv]), "tried": tried, **made_with()}
    if args.to:
        args.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
