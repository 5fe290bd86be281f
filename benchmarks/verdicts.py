r"""Which verdicts of mathematics a revision changes, one by one: golds as answers, echoes of the question, written variants.

Run: ``python benchmarks/verdicts.py --data DATA --against REV``; needs the benchmarks' files and git. REV's own code judges in
a process of its own, with questions where its verifier takes them. Writes results/cpu/verdicts.json. Completions of models are
not here: no study has stored their text.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sage_rlvr.provenance import made_with
from sage_rlvr.tasks import load_task
from sage_rlvr.verify import Verifier

TASKS = {"math": 1000, "math500": None, "gsm8k": None, "amc23": None, "aime24": None, "minerva": None}
SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
VARIANTS = {  # gold → ways to write it, and what only looks like it
    "5": "x=5|f(2)=5|AB = 5|m+n=5|2+3=5|5 eggs|5 dollars|5°|$5$|\\$5|5.0|1+1=5|6 = 5|x+1=5|6 \\mid 5|6 \\lor 5|\\neg 5|\\le 5"
    "|\\ge 5|6 \\to 5|5 \\text{ million}|5\\%|5%|5 \\text{ or more}|5 \\text{ halves}|5, 6|5 \\text{ or } 6|\\approx 5",
    "1000": "1\\,000|1,000|1{,}000|1 000",
    "-3": "–3|−3|-3.0",
    "(1,2)": "\\langle 1,2\\rangle|1<x<2|[1,2]|(2,1)",
    "[0,\\infty)": "x\\ge 0|x>0|0 \\le x",
    "1e-7": "0|0.0|0.0000002|1 \\times 10^{-7}",
    "50\\%": "50|0.5|\\frac12|0.5\\%",
    "\\frac{1}{3}": "0.333333|0.33|33.3333\\%|2/6",
}
Row = dict[str, Any]  # kind, task, id, question, gold, answer


def rows(data: str, every: bool) -> list[Row]:
    out = [
        {"kind": "variant", "task": "", "id": "", "question": None, "gold": gold, "answer": answer}
        for gold, answers in VARIANTS.items()
        for answer in re.split(r"(?<!\\)\|", answers)
    ]
    for task, limit in TASKS.items():
        for p in load_task(task, data, limit):
            row = {"task": task, "id": p.id, "question": p.question, "gold": p.answer}
            out.append({"kind": "gold", **row, "answer": p.answer})
            formulas = dict.fromkeys(next(filter(None, m.groups())).strip() for m in SPAN.finditer(p.question))
            longest = max(formulas, key=len, default="")
            out += [{"kind": "echo", **row, "answer": f} for f in formulas if f and (every or f == longest)]
    return out


def judge(asked: list[Row]) -> list[list[Any]]:
    texts, golds = [f"<SOLUTION>{row['answer']}</SOLUTION>" for row in asked], [row["gold"] for row in asked]
    with Verifier(workers=2, timeout_s=10) as verifier:
        knows = "questions" in inspect.signature(verifier.judge).parameters
        more = {"questions": [row["question"] for row in asked]} if knows else {}
        return [[v.score, v.reason] for v in verifier.judge(texts, golds, **more)]


def judge_at(revision: str, asked: list[Row]) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", revision, "src"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=tree, check=True)
        environment = {**os.environ, "PYTHONPATH": str(Path(folder, "src"))}
        command = [sys.executable, __file__, "--judge"]
        said = json.dumps(asked)
        done = subprocess.run(command, input=said, capture_output=True, text=True, check=True, env=environment)
        return json.loads(done.stdout)


def compared(asked: list[Row], before: list[list[Any]], after: list[list[Any]]) -> dict[str, Any]:
    """Counts of right answers by kind and task, and the changed verdicts. Those on a problem are printed with their text and
    kept by its id: the benchmarks' own words stay where they are."""
    right: dict[str, list[int]] = {}
    changed: Counter[str] = Counter()
    for row, (was, _), (now, reason) in zip(asked, before, after):
        entry = right.setdefault(f"{row['kind']} {row['task']}".strip(), [0, 0, 0])
        for i, count in enumerate((1, was == 1, now == 1)):
            entry[i] += count
        if was != now:
            text, verdict = f"{row['gold']} | {row['answer']}", f"{was} → {now} ({reason})"
            print(row["kind"], row["id"], text, verdict, sep=" | ")
            changed[" | ".join([row["kind"], row["id"] or text, verdict])] += 1
    return {
        "right": {key: dict(zip(("judged", "before", "after"), counts)) for key, counts in right.items()},
        "changed": [key + (f" ×{n}" if n > 1 else "") for key, n in changed.items()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the benchmarks' files")
    parser.add_argument("--against", default="HEAD~1", help="the revision to compare with (default: %(default)s)")
    parser.add_argument("--every", action="store_true", help="every formula of a question, not only the longest")
    parser.add_argument("--out", default="results/cpu/verdicts.json")
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)  # rows on stdin, verdicts on stdout
    args = parser.parse_args()
    if args.judge:
        print(json.dumps(judge(json.load(sys.stdin))))
        return
    asked = rows(args.data, args.every)
    found = compared(asked, judge_at(args.against, asked), judge(asked))
    for name, counts in found["right"].items():
        print(f"{name}: {counts}")
    against = subprocess.run(["git", "rev-parse", "--short", args.against], capture_output=True, text=True, check=True)
    command = f"python benchmarks/verdicts.py --data DATA --against {against.stdout.strip()}{' --every' * args.every}"
    record = {"made": {**made_with(), "command": command}, "against": against.stdout.strip(), **found}
    Path(args.out).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
