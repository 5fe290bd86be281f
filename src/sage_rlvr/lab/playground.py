"""The lab as a page: the same worlds, descended in the browser. One file, nothing is fetched."""

import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from sage_rlvr.lab.groups import credit
from sage_rlvr.lab.world import World, random_world

SEEDS = (0, 1, 2)
SCRIPTS = ("anchor/anchor.js", "lab/assets/playground.js", "lab/assets/playground_page.js")
ADVANTAGES: dict[str, tuple[str, dict[str, Any]]] = {  # label → name and arguments; those that look at rewards alone
    "GRPO: group": ("group", {}),
    "group, no scaling": ("group", {"scale": "none"}),
    "maxrl": ("maxrl", {}),
    "passk, k = 4": ("passk", {"k": 4}),
    "pkpo, k = 4": ("pkpo", {"k": 4, "anneal": 0}),
    "focal, γ = 1": ("focal", {"gamma": 1.0}),
    "signed, 0.1": ("signed", {"right": 0.1}),
    "risk, b = 2": ("risk", {"b": 2.0}),
}


def playground() -> str:
    """The whole page as HTML."""
    room = files("sage_rlvr")
    script = "\n".join((room / name).read_text(encoding="utf-8") for name in SCRIPTS)
    worlds = [{"name": f"random tree {seed}", **written(random_world(seed))} for seed in SEEDS]
    pays = {label: asdict(credit(name, **args)) for label, (name, args) in ADVANTAGES.items()}
    page = (room / "lab/assets/playground.html").read_text(encoding="utf-8")
    return page.replace("WORLDS", json.dumps(worlds)).replace("PAYS", json.dumps(pays)).replace("SCRIPT", script)


def written(world: World) -> dict[str, object]:
    """Logits rounded to four digits: a test descends these very numbers."""
    return {
        "depth": world.tokens.shape[1],
        "ref": [[round(x, 4) for x in row] for row in world.ref_logits.tolist()],
        "reward": [int(r) for r in world.reward.tolist()],
    }
