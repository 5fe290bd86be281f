"""What policies that do not think earn on every task of the product (docs/reliability.md).

    python benchmarks/trivial_policies.py --data_dir ../shared/data --to results/cpu/trivial.json

The question itself, its longest formula, its last line, its last number, all its numbers, and some forty constants, each given
as the final answer and judged by the task's own scorer; gym:NAME by the judge its workers run, but in this process, since
these answers are no attack and a fresh process for each of 10,000 golds takes an hour. A task whose files are not in
--data_dir is named as missing. With --package the tasks above the limit are also written where ``tasks show`` and ``doctor``
read them.
"""

import argparse
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.provenance import made_with
from sage_rlvr.tasks import TASKS, Problem, get_task, load_task, make_scorer, trivial
from sage_rlvr.tasks.gym import CODE, GymJudge, generators
from sage_rlvr.tasks.gym_rules import EVALUATES
from sage_rlvr.verify import extract_answer

CONSTANTS = (
    "0", "1", "-1", "2", "3", "4", "5", "10", "24", "100", "1/2", "0.5", "nan", "inf", "[NaN]", "True", "False", "true",
    "yes", "no", "Yes", "No", "on", "off", "None", "null", "[]", "[[]]", "{}", "()", "x", "A", "B", "C", "a", "left", "up",
    "4*6*1*1", "len('a')", "ord('a')", "Monday", "red",
)  # fmt: skip
_FORMULA = re.compile(r"\$([^$]+)\$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def trivial_answers(question: str) -> dict[str, str]:
    """Policy → its answer to this question: the question, or a part of it, all its numbers, and each constant."""
    formulas = _FORMULA.findall(question)
    numbers = _NUMBER.findall(question)
    answers = {
        "echo": question.strip(),
        "longest formula": max(formulas, key=len, default=""),
        "last line": question.strip().rpartition("\n")[2],
        "last number": numbers[-1] if numbers else "",
        "all numbers": ", ".join(numbers),
        "list of all": "[" + ", ".join(numbers) + "]",
    }
    return {**answers, **{f"constant {c}": c for c in CONSTANTS}}


def names() -> list[str]:
    """Every task; of a union its parts are enough."""
    gym = [f"gym:{name}{CODE if name in EVALUATES else ''}" for name in sorted(generators())]
    return [name for name, task in TASKS.items() if not task.parts] + gym


def problems_of(name: str, n: int, data_dir: str | None) -> list[Problem]:
    """As many as asked for; a few generators have fewer."""
    for size in (n, n // 4, 1):
        try:
            return load_task(name, data_dir, limit=size)
        except UserError:
            if not name.startswith("gym:"):
                raise
    raise UserError(f"{name} makes no problems")


def earned(problems: list[Problem], scorer: Any) -> dict[str, float]:
    """Policy → share of the problems with a readable gold that it gets right."""
    answers = [trivial_answers(p.question) for p in problems]
    policies = list(answers[0])
    completions = [f"<SOLUTION>{given[policy]}</SOLUTION>" for given in answers for policy in policies]
    asked = [p for p in problems for _ in policies]
    verdicts = scorer.score(completions, [p.answer for p in asked], [p.question for p in asked])
    rows = [verdicts[i : i + len(policies)] for i in range(0, len(verdicts), len(policies))]
    judged = [row for row in rows if any(v is not None for v in row)]
    return {
        policy: round(sum(row[i] or 0.0 for row in judged) / max(1, len(judged)), 4)
        for i, policy in enumerate(policies)
    }


class InProcess:
    """A scorer around gym's judge, without the workers."""

    def __init__(self, name: str) -> None:
        self.judge = GymJudge(name.removeprefix("gym:").removesuffix(CODE))

    def score(self, completions: list[str], golds: list[str], questions: list[str]) -> list[float | None]:
        parsed = {gold: self.judge.parse_gold(gold) for gold in dict.fromkeys(golds)}
        return [self.one(parsed[gold], extract_answer(text)) for text, gold in zip(completions, golds)]

    def one(self, parsed: Any, answer: str | None) -> float | None:
        try:
            return parsed and float(answer is not None and self.judge.is_right(parsed, answer))
        except Exception:  # as in a worker: the judge's fault, no reward
            return 0.0


def measure(name: str, n: int, data_dir: str | None) -> dict[str, Any]:
    """How many problems, the share of each policy (of the constants the best one's), and the best policy of all."""
    problems = problems_of(name, n, data_dir)
    if get_task(name).scorer == "gym":
        shares = earned(problems, InProcess(name))
    else:
        with make_scorer(name) as scorer:
            shares = earned(problems, scorer)
    constants = {policy: share for policy, share in shares.items() if policy.startswith("constant ")}
    best = max(shares, key=shares.__getitem__)
    return {
        "problems": len(problems),
        **{policy: share for policy, share in shares.items() if policy not in constants},
        "best constant": max(constants.values()),
        "best": best if shares[best] else "none",
        "share": shares[best],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", help="folder of local task files (default: $SAGE_RLVR_DATA, then ./data)")
    parser.add_argument("--problems", type=int, default=100, help="of each task (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", help="only these; the rest of --to stays as it is")
    parser.add_argument("--to", type=Path, help="JSON file")
    parser.add_argument("--package", action="store_true", help="write src/sage_rlvr/tasks/trivial.json, too")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    record = json.loads(args.to.read_text()) if args.tasks and args.to and args.to.exists() else {"tasks": {}}
    command = "python benchmarks/trivial_policies.py " + " ".join(sys.argv[1:])
    record |= {"limit": trivial.LIMIT, "missing": [], "command": command, **made_with()}
    found = record["tasks"]
    for name in args.tasks or names():
        try:
            found[name] = measure(name, args.problems, args.data_dir)
        except UserError as e:
            record["missing"].append(name)
            print(f"{name}: {e}", file=sys.stderr)
            continue
        print(f"{name}: {found[name]['best']} {found[name]['share']:.1%}", file=sys.stderr)
        if args.to:  # each time: an hour's work is not lost to the last task
            args.to.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if record["missing"]:
        print("missing:", ", ".join(record["missing"]))
    if args.package:
        above = {name: (row["best"], row["share"]) for name, row in found.items() if row["share"] > trivial.LIMIT}
        (Path(trivial.__file__).parent / "trivial.json").write_text(
            json.dumps(above, indent=1, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
