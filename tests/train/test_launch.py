"""``--accelerate_config``: what is refused, what Accelerate makes of the packaged files, and real processes on CPU."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from sage_rlvr import SAGEConfig, SAGETrainer, UserError, cli
from sage_rlvr.launch import multi_process
from sage_rlvr.launch.recipes import shelf
from sage_rlvr.names import shown_flags
from sage_rlvr.runs.checkpoint import last_complete, load_state
from tests.paths import python_path
from tests.slow import but_few

from .. import forked
from . import run_tiny, server, tiny
from .test_distributed import launch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpus(monkeypatch):
    """A machine with so many GPUs, as far as the launcher can see."""
    return lambda count: monkeypatch.setattr(multi_process, "devices", lambda: count)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "count", "sentence"),
    [
        (["--accelerate_config", "fsdp3"], 8, "no accelerate config 'fsdp3', neither as a file nor with the package: "
         "perhaps you mean fsdp2"),
        (["--accelerate_config"], 8, "--accelerate_config has no value: write --accelerate_config VALUE."),
        (["--accelerate_config", "--beta", "1"], 8, "--accelerate_config has no value"),
        (["--num_processes", "2"], 8, "--num_processes needs --accelerate_config: choose one of cpu, ddp,"),
        (["--accelerate_config", "ddp", "--num_processes=two"], 8, "num_processes='two' is not a whole number."),
        (["--accelerate_config", "fsdp2"], 0, "--accelerate_config fsdp2 is for GPUs and there is none here: take cpu"),
        (["--accelerate_config", "ddp", "--num_processes", "8"], 2, "ddp has 8 processes and there are 2 GPUs"),
        (["--accelerate_config", "zero3"], 8, "--accelerate_config zero3 needs DeepSpeed: pip install deepspeed, or take fsdp2"),
        (["--accelerate_config", "odd.yaml"], 8, "odd.yaml is not a config of Accelerate"),
        (["--accelerate_config", "none.yaml", "--num_processes", "2"], 8, "says distributed_type: NO and 2 processes"),
        (["--accelerate_config", "sharded.yaml"], 8, "has use_cpu with FSDP, which Accelerate drops on CPU"),
        (["--accelerate_config", "hosted.yaml"], 8, "is for a hosted service: write compute_environment: LOCAL_MACHINE"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys, gpus, argv, count, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(multi_process, "find_spec", lambda name: None)
    gpus(count)
    hosted = {"ec2_instance_type": "x", "iam_role_name": "x", "compute_environment": "AMAZON_SAGEMAKER"}
    files = {
        "odd": {"distributed_type": "FSDP", "fsdp_versoin": 2}, "none": {"distributed_type": "NO"},
        "sharded": {"distributed_type": "FSDP", "use_cpu": True}, "hosted": hosted | {"distributed_type": "DATA_PARALLEL"},
    }  # fmt: skip
    for name, settings in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    assert cli.main(["train", "--config", "branch", *argv]) == 2
    assert sentence in capsys.readouterr().err


def test_a_launch_inside_a_launch_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match="starts the processes itself"):
        multi_process.launch([], "cpu", 2)


def test_a_process_that_is_alone_or_unsharded_by_accident_refuses(monkeypatch):
    cpu = torch.device("cpu")
    multi_process.check_joined(1, cpu)
    monkeypatch.setenv(multi_process.ASKED, "2")
    multi_process.check_joined(2, cpu)
    with pytest.raises(UserError, match="2 processes were asked for and this one is one of 1"):
        multi_process.check_joined(1, cpu)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    multi_process.check_joined(2, torch.device("cuda"))
    with pytest.raises(UserError, match="trains unsharded and does not say so"):
        multi_process.check_joined(2, cpu)


# ---- what Accelerate makes of the packaged files -------------------------------------------------------------------


def accelerates(name, count=4):
    file, command = shelf("launchers")[name], ["sage_rlvr.cli", "train", "--beta", "1"]
    args = multi_process.accelerate_arguments(file, multi_process._read(file), count, command)
    args, _, _ = _validate_launch_command(args)
    assert (args.num_processes, args.module, args.training_script) == (count, True, "sage_rlvr.cli")
    assert args.training_script_args == ["train", "--beta", "1"]
    assert args.shutdown_timeout == multi_process.GRACE_S
    return args


def test_ddp_and_fsdp2_as_accelerate_reads_them():
    args = accelerates("ddp")
    assert (args.multi_gpu, args.use_fsdp, args.use_deepspeed) == (True, False, False)
    assert prepare_multi_gpu_env(args)["ACCELERATE_MIXED_PRECISION"] == "bf16"
    args = accelerates("fsdp2")
    env = prepare_multi_gpu_env(args)
    assert (args.multi_gpu, args.use_fsdp, args.nproc_per_node) == (False, True, "4")
    assert int(args.master_port) != 29500, "two runs on a machine must not meet"
    wanted = {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_OFFLOAD_PARAMS": "false",
    }  # fmt: skip
    assert {k: env[k] for k in wanted} == wanted


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_as_accelerate_reads_it(stage):
    args = accelerates(f"zero{stage}")
    assert (args.use_deepspeed, args.use_fsdp) == (True, False)
    args.deepspeed_fields_from_accelerate_config = ""
    _, env = prepare_deepspeed_cmd_env(args)
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == str(stage)
    assert env["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == str(stage == 3).lower()
    assert env.get("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false") == str(stage == 3).lower()


def test_gpus_go_through_accelerate_one_process_each(monkeypatch, gpus, tmp_path):
    seen = []
    monkeypatch.setattr(
        "accelerate.commands.launch.launch_command", lambda a: seen.append((a, os.environ[multi_process.ASKED]))
    )
    gpus(8)
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"distributed_type": "MULTI_GPU", "num_processes": 3, "main_process_port": 12345}))
    for config, count, expected in (("fsdp2", None, 8), ("fsdp2", 1, 1), (str(mine), None, 3), (str(mine), 2, 2)):
        assert multi_process.launch(["train"], config, count) == 0
        args, asked = seen.pop()
        assert (args.num_processes, asked) == (expected, str(expected))
        assert args.main_process_port == (None if config == str(mine) else 0), "the file's own port is left to it"
    assert multi_process.ASKED not in os.environ


# ---- real processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7])
def test_exit_codes_pass_through(tmp_path, monkeypatch, code):
    monkeypatch.setenv("PYTHONPATH", python_path())
    assert multi_process.launch([str(code), str(tmp_path)], "cpu", 2, module="tests.train.run_exit") == code
    assert [p.read_text().split()[:3] for p in sorted(tmp_path.iterdir())] == [["2", "2", "true"]] * 2


def started(argv, cwd, **kwargs):
    env = os.environ | {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *argv], cwd=cwd, env=env, **pipes, **kwargs)


def until(ready, process, what):
    for _ in range(6000):
        if ready():
            return
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"{what} did not happen")


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("how", but_few(["sleep", "deaf"], fast=[1]))
def test_ctrl_c_ends_every_process(tmp_path, how):
    """Those that do not listen too, at the second."""
    call = f"launch([{how!r}, {str(tmp_path)!r}], 'cpu', 2, 'tests.train.run_exit')"
    process = started(["-c", f"import sys; from sage_rlvr.launch.multi_process import launch; sys.exit({call})"], ROOT)
    until(lambda: sum(bool(p.read_text()) for p in tmp_path.glob("rank*")) == 2, process, "start")
    process.send_signal(signal.SIGINT)
    while how == "deaf" and process.poll() is None:
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=1200)
    assert process.returncode in (
        130,
        -signal.SIGINT,
    )  # the latter: one more as Python itself ended; a shell says 130 too
    assert all(gone(int(p.read_text().split()[3])) for p in tmp_path.glob("rank*"))


FLAGS = {
    "model_name_or_path": "base", "task": "dapo-math-17k", "data_dir": "data", "rows": 16, "max_steps": 60, "save_steps": 50,
    "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 12, "beta": 0.1, "logging_steps": 1,
    "bf16": "false", "optim": "adamw_torch", "report_to": "none", "gradient_checkpointing": "false", "disable_tqdm": "true",
    "dtype": "float32", "output_dir": "run", "guide": "random", "decontaminate": "false",
}  # fmt: skip


@pytest.mark.slow
def test_a_run_in_two_processes_stops_on_either_signal_with_a_checkpoint_and_goes_on(tmp_path):
    """Ctrl-C is a person's, SIGTERM a scheduler's (SLURM): the second run goes on from the first one's checkpoint. Forked:
    that two processes that import anew come to the end of a run is in tests/test_working_directory.py."""
    tiny.folder(tmp_path / "base")
    (tmp_path / "data").mkdir()
    sums = [{"prompt": f"what is {i}+{i % 5}=", "solution": str(i + i % 5)} for i in range(24)]
    (tmp_path / "data" / "dapo_math_17k_en.jsonl").write_text("".join(json.dumps(r) + "\n" for r in sums))
    command = ["train", *(word for name, value in FLAGS.items() for word in (f"--{name}", str(value)))]
    several = [*command, "--accelerate_config", "cpu", "--num_processes", "2"]
    log, done = tmp_path / "run" / "log.jsonl", 0

    for number in (signal.SIGINT, signal.SIGTERM):
        process = forked.Started(run_tiny.several, str(tmp_path), several)
        process.wait_for(lambda before=done: log.is_file() and log.read_text().count("\n") > before + 1, "a step")
        process.send_signal(number)
        ended = process.end(timeout=1200)
        out, err = ended.stdout, ended.stderr
        assert ended.returncode == 128 + number, err[-3000:]
        assert out.count("to go on, run the same command again") == 1, "one process does the talking"
        assert shlex.join(["sage-rlvr", *shown_flags(several)]) in out
        saved = max((tmp_path / "run").glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
        assert {p.name for p in saved.glob("sage_state_*.pt")} == {"sage_state_0.pt", "sage_state_1.pt"}
        before, done = done, int(saved.name.rpartition("-")[2])
        assert before < done < FLAGS["max_steps"]
        assert last_complete(tmp_path / "run") == str(saved)
        steps = [entry["step"] for entry in map(json.loads, log.read_text().splitlines()) if "loss" in entry]
        assert steps == list(range(1, done + 1)), "no step is lost, and none is taken twice"

    with pytest.raises(UserError, match="was written by 2 processes and this run has 1: resume with as many"):
        load_state(saved, rank=0, world=1)  # another batch, and half of the state


# ---- vLLM on other GPUs --------------------------------------------------------------------------------------------


def test_trls_vllm_server_flags_are_taken_as_they_are(tmp_path):
    from sage_rlvr.launch import run

    flags = "--use_vllm true --vllm_mode server --vllm_server_base_url http://10.0.0.7:8000 --bf16 false --use_cpu true"
    _, args, _ = run.parse(
        ["--config", "branch", *flags.split(), "--optim", "adamw_torch", "--output_dir", str(tmp_path)]
    )
    assert isinstance(args, SAGEConfig)
    assert (args.use_vllm, args.vllm_mode, args.vllm_server_base_url) == (True, "server", "http://10.0.0.7:8000")


@pytest.mark.parametrize("estimator", ["k3", "k1-reward"])
def test_the_trainer_needs_no_engine_of_its_own(folder, tmp_path, monkeypatch, estimator):
    """TRL's own VLLMGeneration, a stand-in for its client. The real server: tests_vllm/test_server.py."""
    server.replace(monkeypatch.setattr)
    options = server.OPTIONS | {"vllm_server_base_url": "http://10.0.0.7:8000", "stop_strings": [*"=aeiou"]}
    args = tiny.config(SAGEConfig, tmp_path, dynamic_sampling=1, anchor_estimator=estimator, **options)
    seen = []
    reward = lambda completions, **_: seen.extend(completions) or tiny.hash_reward(completions)  # noqa: E731
    trainer = SAGETrainer(folder, reward, args, tiny.dataset())
    trainer.train()
    generation = trainer.vllm_generation
    assert (generation.mode, generation.server_base_url) == ("server", "http://10.0.0.7:8000")
    assert generation.vllm_client.sent == args.max_steps
    assert generation.generation_kwargs == {"stop": [*"=aeiou"], "include_stop_str_in_output": True}
    stopped = [c for c in seen if {*c} & {*"=aeiou"}]
    assert stopped
    assert not any({*c[:-1]} & {*"=aeiou"} for c in stopped), "cut at the stop string"
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == args.max_steps
    assert all(entry["sage/active"] > 0 for entry in log)


@pytest.mark.parametrize(
    ("ahead", "at", "steps", "every"),
    [(False, 2, 2, 100), (True, 2, 2, 100), (True, 3, 3, 100), (True, 3, 3, 1)],
    ids=["in turn", "ahead", "ahead, later", "ahead, saved before it is noticed"],
)
def test_a_server_that_goes_away_ends_the_run_with_a_checkpoint(folder, tmp_path, monkeypatch, ahead, at, steps, every):
    server.replace(monkeypatch.setattr)
    options = server.OPTIONS | {"max_steps": 5, "rollout_ahead": ahead, "save_strategy": "steps", "save_steps": every}

    def built():
        return SAGETrainer(
            folder, tiny.hash_reward, tiny.config(SAGEConfig, tmp_path / "run", **options), tiny.dataset()
        )

    made = built()
    made.vllm_generation.vllm_client.answers = at
    with pytest.raises(UserError) as said:
        made.train()
    assert str(said.value).startswith("the vLLM server at http://0.0.0.0:8000 does not answer (nobody there); ")
    assert f"run/checkpoint-{steps}" in str(said.value)
    assert ". Fix it and run the same command again" in str(said.value)
    again = built()
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 5
    assert [e["step"] for e in again.state.log_history if "loss" in e] == [1, 2, 3, 4, 5]


def test_a_server_lost_while_weights_are_sent_ends_the_run_too(folder, tmp_path, monkeypatch):
    """The other processes gather all weights: so does the one that cannot send them."""
    server.replace(monkeypatch.setattr)

    def lost(self, metadata, params):
        next(params)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(server.Client, "update_named_params", lost)
    made = SAGETrainer(folder, tiny.hash_reward, tiny.config(SAGEConfig, tmp_path, **server.OPTIONS), tiny.dataset())
    walk, walked = made.vllm_generation._iter_named_params, []
    made.vllm_generation._iter_named_params = lambda: (walked.append(name) or (name, p) for name, p in walk())
    with pytest.raises(UserError, match=r"does not answer \(nobody there\); no step was finished"):
        made.train()
    names = [name for name, _ in made.model.named_parameters()]
    assert walked == 2 * names, "once to name them, once to send them"


def test_in_two_processes_both_stop(tmp_path):
    case = {"served": server.OPTIONS | {"max_steps": 4, "gone": 2, "save_strategy": "steps", "save_steps": 100}}
    with pytest.raises(AssertionError, match="does not answer"):
        launch(2, tmp_path, case)
    assert {p.name for p in (tmp_path / "out" / "served" / "checkpoint-2").glob("sage_state_*")} == {
        "sage_state_0.pt",
        "sage_state_1.pt",
    }


def test_a_server_that_cannot_be_used_is_one_sentence(folder, tmp_path, monkeypatch):
    server.replace(monkeypatch.setattr)

    def none(self, device):
        raise RuntimeError("The vLLM server has no weight-transfer engine.\nRestart it with …")

    monkeypatch.setattr(server.Client, "init_communicator", none)
    with pytest.raises(UserError, match=r"no weight-transfer engine\. Restart it"):
        SAGETrainer(folder, tiny.hash_reward, tiny.config(SAGEConfig, tmp_path, **server.OPTIONS), tiny.dataset())
