"""What was logged of a step is not lost where a run is resumed inside a window of ``logging_steps``."""

from . import tiny

BY_TRANSFORMERS = {"loss", "train_loss", "epoch"}  # its own mean, of the steps since it began: not ours to keep


def test_a_window_open_at_the_checkpoint_is_averaged_over_all_its_steps(folder, tmp_path):
    options = {"guide": "branch", "logging_steps": 4, "max_steps": 8, "save_strategy": "steps", "save_steps": 6}
    whole = tiny.build(folder, tmp_path / "whole", **options)
    whole.train()
    resumed = tiny.build(folder, tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    expected, got = (_window(trainer, 8) for trainer in (whole, resumed))
    assert got == expected
    alone = _window(_only_the_end(folder, tmp_path, options), 8)
    assert any(alone[name] != value for name, value in expected.items()), "steps 5 and 6 weigh"


def _window(trainer, step):
    (entry,) = (e for e in trainer.state.log_history if e["step"] == step and "reward" in e)
    return {k: v for k, v in entry.items() if k not in tiny.TIMES | BY_TRANSFORMERS}


def _only_the_end(folder, tmp_path, options):
    """The same steps, with steps 7 and 8 in a window of their own."""
    trainer = tiny.build(folder, tmp_path / "apart", **(options | {"logging_steps": 2, "save_strategy": "no"}))
    trainer.train()
    return trainer
