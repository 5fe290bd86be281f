"""What pages say of records: between ``<!-- made: NAME -->`` and ``<!-- /made -->``, in a line or as a block, nothing is written
by hand. Here are the functions NAME of studies, whose facts benchmarks/results.py knows; doc_numbers.py has the others."""

import html
import json
import re
from pathlib import Path
from typing import Any

import doc_numbers
import room
import why

from sage_rlvr.show.figures_study import GREY, GUESS
from sage_rlvr.show.style import INK, MARK, Figure, legend, panels, save
from sage_rlvr.stats.frontier import in_order
from sage_rlvr.stats.table import markdown, shown

STUDIES, GATE = Path("docs/evidence/studies.json"), Path("results/gpu/hard_gate2.json")
TRACE, TRACED, ASKED, LONG = Path("results/gpu/qwen1.5b/explorer.html"), "tempered-s3/eval", "knights-knaves", 60
NAMES = {"winner": "verified_own_k1", "best": "rarity", "reference": "GRPO (k3+)"}  # of studies/confirm.yaml
KINDS = {"coverage": "reward", "rarity": "reward", "entropy_bonus": "loss", "forward_kl": "estimator"}  # others: guides
ARMS = {
    "base": "base", "grpo": "GRPO", "grpo_no_kl": "GRPO without KL", "branch": "Branch (k3)", "branch_exact": "Branch (exact)",
    "tempered": "Tempered",
}  # fmt: skip
FIGURE = "verdict.svg"
BLOCK = re.compile(r"(<!-- made: (\w+) -->)(.*?)(<!-- /made -->)", re.DOTALL)
Facts = dict[str, dict[str, Any]]


def filled_pages(root: Path, facts: Facts) -> dict[Path, bytes]:
    """README.md and the pages of docs and examples, with their blocks made again. Without its study's ``facts`` a block stays."""
    made: dict[Path, bytes] = {}
    for path in sorted(p for pages in ("README.md", "docs/**/*.md", "examples/*.md") for p in root.glob(pages)):
        text = path.read_text(encoding="utf-8")

        def block(found: re.Match[str]) -> str:
            start, name, old, end = found.groups()
            new = BLOCKS[name](root, facts) if name in BLOCKS else getattr(doc_numbers, name)()
            if new is None or old.split() == new.split():
                return found[0]  # with the line breaks it has
            return f"{start}\n\n{new.strip()}\n\n{end}" if old.startswith("\n") else f"{start}{new}{end}"

        if BLOCK.search(text):
            made[path.relative_to(root)] = BLOCK.sub(block, text).encode()
    return made


def families(_: Path, facts: Facts) -> str | None:
    """All families of the search, with their confirmation where they had one."""
    search, confirm = facts.get("frontier", {}), facts.get("confirm", {})
    if "found" not in search or "found" not in confirm:
        return None
    confirmed = {NAMES.get(name, name): name for name in confirm["judged"]}
    minutes = {name: of["gpu_minutes"] / sum(of["runs"].values()) for name, of in (("s", search), ("c", confirm))}

    def row(family: str) -> list[str]:
        again = confirmed.get(family)
        cost = minutes["s"] * search["runs"][family] + (minutes["c"] * confirm["runs"][again] if again else 0)
        return [
            f"`{family}`",
            KINDS.get(family, "guide"),
            shown(search["found"][family].gain, sign="+"),
            shown(confirm["found"][again].gain, sign="+") if again else "not run",
            shown(confirm["room"][again], sign="+") if again else shown(search["room"][family], sign="+"),
            "none",
            f"{cost:.1f}",
        ]

    order = sorted(search["judged"], key=lambda f: (f not in confirmed, -search["found"][f].gain.mean))
    n, room = search["n"], search["room_of"]
    head = ["family", "kind", "search, 5 seeds", "confirmation, 10 seeds", f"problems with room ({room}), post hoc"]
    if search["control"] or confirm["control"]:
        raise ValueError("a study has a low-rate control now: the column 'low-rate control' must say the gain over it")
    table = markdown([*head, "low-rate control", "GPU-minutes"], map(row, order))
    return (
        f"Gain in pass@{n} at the same pass@1 over GRPO with k3+, 95% intervals over problems and seeds:\n\n{table}\n"
        "Problems with room: the confirmation's where there was one, else the search's. GPU-minutes: the study's, shared by runs."
    )


def verdicts(_: Path, facts: Facts) -> str | None:
    told = facts.get("confirm", {}).get("told")
    if not told:
        return None
    for short, name in NAMES.items():
        told = [line.replace(f"- Rule 4: `{short}`: ", f"- `{name}`: ") for line in told]
    return "\n".join(told)


def room_families(_: Path, facts: Facts) -> str | None:
    """All families of the harder miniature, over GRPO and over the low-rate control."""
    hard = facts.get("hard", {})
    if "rows" not in hard or "far" not in hard:
        return None
    per_run = hard["gpu_minutes"] / sum(hard["runs"].values())
    minutes = {family: per_run * runs for family, runs in hard["runs"].items()}
    return (
        f"Gain in pass@{hard['n']} at the same pass@1, mean over four strata of problems, 95% intervals over problems and seeds, "
        f"corrected for nothing:\n\n{room.table(hard['rows'], hard['far'], minutes)}"
    )


def room_rules(_: Path, facts: Facts) -> str | None:
    told = facts.get("hard", {}).get("told")
    return "\n".join(told) if told else None


def room_shifts(_: Path, facts: Facts) -> str | None:
    """How far training moved problems' log-odds, by arm and by stratum."""
    hard = facts.get("hard", {})
    names = ["0 of 256", "1–2", "3–8", "9–25"]
    return why.table(hard, names) if "shifts" in hard else None


def room_even(_: Path, facts: Facts) -> str | None:
    """In a sentence: what an even shift would give at the pass@1 of one arm."""
    hard = facts.get("hard", {})
    if "shifts" not in hard:
        return None
    one, many, level = why.even_at(hard, f"{room.GRPO}+beta0.012")
    short = doc_numbers.short
    return f"GRPO at β .012 has pass@1 {short(one)} and pass@64 {short(many, 2)}; lifted alike: {short(level, 2)}"


def room_gate(root: Path, facts: Facts) -> str | None:
    """GRPO without a KL in the gate, by rate and by how often a problem is seen, beside GRPO's curve over β in the search."""
    hard, gate = facts.get("hard", {}), root / GATE
    if "line" not in hard or not gate.is_file():
        return None
    return why.gate_table(hard, json.loads(gate.read_text(encoding="utf-8")))


def room_confirmed(_: Path, facts: Facts) -> str | None:
    return _confirmation(facts.get("hard_confirm", {}))


def room_once(_: Path, facts: Facts) -> str | None:
    return _confirmation(facts.get("hard_once", {}))


def _confirmation(own: dict[str, Any]) -> str | None:
    """Of the harder miniature: once it is whole, every family with its verdict."""
    if "done" not in own:
        return None
    if "found" not in own:
        done, of = own["done"]
        return f"{done - 1} of {of - 1} runs are done. No arm is shown before the last one."
    minutes, body = own["gpu_minutes"] / sum(own["runs"].values()), []
    for family in [*own["judged"], room.CONTROL]:
        f, control = own["found"][family], own["over_control"].get(family)
        over = "itself" if family == room.CONTROL else shown(control and control.gain, sign="+")
        cells = [shown(f.gain, sign="+"), shown(f.corrected, sign="+"), over, f"{minutes * own['runs'][family]:.1f}"]
        body.append([f"`{family}`", str(f.seeds), *cells])
    at_once = f"corrected for {len(own['judged'])}"
    head = ["family", "seeds", "gain over GRPO", at_once, f"gain over the low rate, {at_once}", "GPU-minutes"]
    told = "\n".join(line.replace("- Rule 1: ", "- ") for line in own["told"])
    return f"{markdown(head, body)}\n{told}"


def states(root: Path, facts: Facts) -> str | None:
    """The state of each study is in studies.json alone; how many of its runs are done is counted."""
    if not facts:
        return None
    body = []
    for s in json.loads((root / STUDIES).read_text(encoding="utf-8")):
        done = facts.get(s["study"], {}).get("done")
        runs = f"{done[0]} of {done[1]} runs" if done else "no run"
        if s["state"] != ("not started" if not done else "done" if done[0] == done[1] else "open"):
            raise ValueError(f"{s['study']}: studies.json says {s['state']}, {runs} are done")
        cost = f"{facts[s['study']]['gpu_minutes']:.0f}" if done else "0"
        body.append([s["link"], s["question"], f"**{s['state']}**: {s['so']}", runs, cost])
    return markdown(["study", "question", "state", "recorded", "GPU-minutes"], body)


def real_model(_: Path, facts: Facts) -> str | None:
    found = facts.get("qwen1.5b", {})
    if "arms" not in found:
        return None
    less = {x.variant: x for x in found["less"]}
    body = []
    for x in found["arms"]:
        d = less.get(x.variant)
        more = [shown(d.pass_1, sign="+"), shown(d.pass_n, sign="+"), d.verdict()] if d else ["–"] * 3
        body.append([ARMS.get(x.variant, x.variant), str(x.seeds), shown(x.pass_1), shown(x.pass_n), *more])
    n = found["n"]
    head = ["arm", "seeds", "pass@1", f"pass@{n}", "pass@1 minus GRPO's", f"pass@{n} minus GRPO's", "verdict"]
    return markdown(head, body).replace("pass@n", f"pass@{n}")


def tokens(root: Path, _: Facts) -> str | None:
    """The part of a stored right completion that training moved most, its tokens coloured by log π − log π_ref."""
    if not (root / TRACE).is_file():
        return None
    page = (root / TRACE).read_text(encoding="utf-8")

    def embedded(mark: str) -> Any:
        found = re.search(rf"<script type=.application/json. {mark}>(.*?)</script>", page, re.DOTALL)
        return json.loads(found[1]) if found else None

    run = [r["name"] for r in embedded('id="data"')["runs"]].index(TRACED)
    trace = next(r["trace"] for r in embedded(f'data-samples="{run}"') if r["t"] == ASKED and r["v"] and "trace" in r)
    words, q = trace["tokens"], trace["q"][-1]
    shift = [(ref - own) / 1000 for own, ref in zip(trace["surprisal"][-1], trace["ref"][-1])]  # thousandths of a nat
    starts = [i + 1 for i, word in enumerate(words) if word.rstrip("\n").endswith(".")]  # of sentences
    first = max((i for i in starts if i < len(words) - LONG), key=lambda i: sum(map(abs, shift[i : i + LONG])))
    end = max(i for i in starts if i <= first + LONG)

    def span(i: int) -> str:
        size = sum(abs(shift[i]) >= x for x in (0.05, 0.3, 1.0))
        kind = f"{'up' if shift[i] > 0 else 'down'}{size}" if size else "still"
        text = html.escape(words[i]).replace("\n", "↵ ")
        return f'<span class="{kind}" title="shift {shift[i]:+.2f} nats, q {q[i] / 1000:.2f}">{text}</span>'

    return f'<p class="tokens">{"".join(map(span, range(first, end)))}</p>'


BLOCKS = {
    "families": families, "room_families": room_families, "room_rules": room_rules, "room_confirmed": room_confirmed,
    "room_once": room_once, "room_gate": room_gate,
    "room_shifts": room_shifts, "room_even": room_even,
    "verdicts": verdicts, "states": states, "real_model": real_model, "tokens": tokens,
}  # fmt: skip


def verdict_figure(stem: Path, facts: Facts) -> Figure | None:
    """The confirmation's plane, one panel: GRPO's β under two estimators, the two arms that were confirmed, base and guessing."""
    confirm = facts.get("confirm", {})
    if confirm.get("guess") is None or confirm["base"] is None:
        return None
    drawn = {"reference": (GREY, "-"), "grpo_k3": (GREY, "--"), "winner": (INK[0], "-"), "best": (INK[1], "-")}
    with panels(1, width=6.4, height=4.2) as (figure, axes):
        ax = axes[0, 0]
        for (family, (colour, dash)), mark in zip(drawn.items(), MARK):
            own = in_order([p for p in confirm["points"].values() if p.family == family])
            x, y = ([getattr(p, which).mean for p in own] for which in ("pass_1", "pass_n"))
            ax.plot(x, y, color=colour, ls=dash, marker=mark, ms=4, label=NAMES.get(family, "GRPO (k3)"))
        ax.plot(*confirm["base"], "*", color="black", ms=10, ls="none", label="base")
        ax.axhline(confirm["guess"], color=GUESS, ls=":", lw=1.2, label="guessing")
        ax.set_xlabel("pass@1")
        ax.set_ylabel(f"pass@{confirm['n']}")
        legend(figure, axes)
        told = (
            f"Miniature world, confirmation: pass@{confirm['n']} against pass@1 over six β. GRPO's two lines and those of "
            f"verified_own_k1 and rarity lie within a hundredth of each other; guessing has {confirm['guess']:.2f}."
        )
        return save(figure, stem.with_name(FIGURE), told)
