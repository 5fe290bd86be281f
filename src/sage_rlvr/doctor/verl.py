"""Is the plug-in active in this environment's verl? verl passes over a plug-in that fails with a line at debug level, so this
proves it: a fresh process imports verl as a run would, asks its table of trainers, and shapes a reference with it."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

from sage_rlvr.doctor.machine import Check
from sage_rlvr.extensions import leave_working_directory

TESTED, TIMEOUT_S = "0.9.1", 180
PLUGIN = "sage_rlvr.integrations.verl"
UNDECLARED = "cachetools, uvicorn, fastapi"  # verl 0.9.1's V1 trainer imports them; its package does not ask for them

# What runs in the fresh process: one JSON line at the end. No import of ours comes before verl's own.
PROBE = """
import json, math, sys
import verl
loaded = "sage_rlvr.integrations.verl" in sys.modules
import verl.trainer.ppo.v1
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
found = {"loaded": loaded, "modes": sorted(TRAINER_REGISTRY)}
if "sage_sync" in TRAINER_REGISTRY:
    import torch
    from verl.trainer.ppo.core_algos import kl_penalty
    from sage_rlvr.anchor import BranchGuide
    from sage_rlvr.integrations.verl.shape import log_q
    logps = torch.full((1, 2), -1.0)
    shape = log_q(BranchGuide(), logps, logps, torch.ones(1, 2), torch.tensor([[0.0, 2.2]]), None, seed=0, step=0, max_steps=1)
    found["kl"] = kl_penalty(logps, logps + shape, "low_var_kl")[0].tolist()
    q = 1 + 0.3 * (2.2 - 1.2)
    found["expected"] = [0.0, q - math.log(q) - 1]
print("SAGE-DOCTOR " + json.dumps(found))
"""


def check_verl() -> list[Check]:
    """Whether verl is here, whether it will load the plug-in, and whether the plug-in then does its work."""
    checks = [_library("verl", TESTED), _library("TransferQueue", None)]
    if checks[0].ok is False:
        return checks
    return [*checks, _entry_point(), _policy(), *_probe()]


def _library(name: str, tested: str | None) -> Check:
    try:
        installed = version(name)
    except PackageNotFoundError:
        fix = f"pip install 'sage-rlvr[verl]' where {name} is to run."
        return Check(name, False, "not installed in this environment", fix)
    if tested is not None and installed != tested:
        return Check(name, None, f"{installed}; the plug-in is tested with {tested}", f"pip install {name}=={tested}.")
    return Check(name, True, installed)


def _entry_point() -> Check:
    for point in entry_points(group="verl.plugins"):
        if point.value == PLUGIN:
            return Check("entry point", True, f"verl.plugins: {point.name} = {PLUGIN}")
    fix = "install sage-rlvr into verl's environment again (pip install --no-deps sage-rlvr): the entry point comes with it."
    return Check("entry point", False, f"no entry point of group verl.plugins names {PLUGIN}", fix)


def _policy() -> Check:
    """verl reads the variable itself: auto, none, or a list of names."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    allowed = policy == "auto" or "sage" in {name.strip() for name in policy.split(",")}
    fix = "" if allowed else "unset it, or add sage to its list."
    return Check("plug-ins allowed", allowed, f"VERL_USE_EXTERNAL_PLUGINS={policy}", fix)


def _probe() -> list[Check]:
    name, command = "plug-in active", [sys.executable, "-P", "-W", "ignore", "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [Check(name, None, f"a fresh process did not import verl in {TIMEOUT_S} s", "try again when idle.")]
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAGE-DOCTOR ")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        fix = f"fix verl's V1 trainer first; it also imports {UNDECLARED}, which its package does not ask for."
        return [Check(name, False, f"verl.trainer.ppo.v1 does not import: {last}", fix)]
    answer = json.loads(lines[-1].removeprefix("SAGE-DOCTOR "))
    modes = ", ".join(answer["modes"])
    if "sage_sync" not in answer["modes"]:
        why = [line for line in done.stderr.splitlines() if "could not be registered" in line or "Error" in line]
        known = f"a fresh process knows {modes}, not sage_sync" + (f" ({why[-1].strip()})" if why else "")
        return [Check(name, False, known, "see the checks above; runs with trainer_mode=sage_sync stop at once.")]
    kl, expected = answer["kl"], answer["expected"]
    close = all(abs(a - b) < 1e-5 for a, b in zip(kl, expected))
    values = f"verl's k3 toward ref + log q is {kl[1]:.5f} at a fork, in closed form {expected[1]:.5f}"
    fix = "" if close else "verl's kl_penalty is not the one of 0.9.1: install the tested version."
    active = Check(name, True, f"import verl alone leads to trainer_mode=sage_sync ({modes})")
    return [active, Check("anchor shaped", close, values, fix)]


def main() -> int:
    """``python -m sage_rlvr.doctor.verl``: these checks alone, in an environment that has verl and not our other libraries."""
    checks = check_verl()
    for check in checks:
        mark = {True: "ok  ", False: "FAIL", None: "?   "}[check.ok]
        print(f"{mark} {check.name}: {check.found}" + (f" -> {check.fix}" if check.fix else ""))
    return 1 if any(check.ok is False for check in checks) else 0


if __name__ == "__main__":
    leave_working_directory()
    sys.exit(main())
