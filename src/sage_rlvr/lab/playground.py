"""The lab as a page: the same worlds, descended in the browser. One file, nothing is fetched."""

import json
from importlib.resources import files

from sage_rlvr.lab.world import World, random_world

SEEDS = (0, 1, 2)
SCRIPTS = ("playground.js", "playground_page.js")


def playground() -> str:
    """The whole page as HTML."""
    assets = files("sage_rlvr.lab") / "assets"
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    worlds = [{"name": f"random tree {seed}", **written(random_world(seed))} for seed in SEEDS]
    page = (assets / "playground.html").read_text(encoding="utf-8")
    return page.replace("WORLDS", json.dumps(worlds)).replace("SCRIPT", script)


def written(world: World) -> dict[str, object]:
    """Logits rounded to four digits: a test descends these very numbers."""
    return {
        "depth": world.tokens.shape[1],
        "ref": [[round(x, 4) for x in row] for row in world.ref_logits.tolist()],
        "reward": [int(r) for r in world.reward.tolist()],
    }
