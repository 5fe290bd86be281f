"""The entry point in fresh processes, and what happens when it breaks (shut out: test_doctor.py)."""

import os
import subprocess
import sys

NAMES = "from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY as T; print('modes', *sorted(T))"


def python(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | env, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def test_importing_verl_loads_the_plugin_and_no_trainer_yet():
    out, _ = python(
        "import sys, verl; print('sage_rlvr.integrations.verl' in sys.modules, 'verl.trainer.ppo.v1' in sys.modules, "
        "'sage_rlvr.integrations.verl.trainer' in sys.modules, 'trl' in sys.modules)"
    )
    assert out.split("\n")[0] == "True False False False"


def test_a_plugin_that_breaks_says_so_and_leaves_verl_whole(tmp_path):
    (tmp_path / "broken.py").write_text("import sys; sys.modules['sage_rlvr.integrations.verl.loss'] = None\n")
    out, err = python(
        "import broken, verl; " + NAMES, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    )
    assert "sage_sync" not in out
    assert "the trainer 'sage_sync' could not be registered with verl" in err  # at error level, not at debug
