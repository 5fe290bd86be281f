"""The real trainer does what the lab says of endless text: exact credit pays for it, a centred guide and k3 do not."""

import pytest

from sage_rlvr.models import scratch_model
from tests.slow import but_few
from tests.train import tiny

CUT = 40


@pytest.mark.parametrize(
    ("options", "pays"),
    but_few(
        [({"guide_center": "none"}, True), ({"guide_center": "batch"}, False), ({"anchor_estimator": "k3"}, False)],
        fast=[0],
    ),
)
def test_exact_credit_pays_for_length_unless_it_is_centred(options, pays, tmp_path, capsys):
    """Nothing is ever right. A model that knows nothing ends with chance h at every token and is uncertain at all of them: q is
    the clamp, 1.4."""
    folder = scratch_model(tmp_path / "model", characters="0123456789+-*=: ", width=32, layers=1, heads=2, seed=0)
    trainer = tiny.build(
        str(folder), tmp_path / "out", given=False, reward=lambda completions, **_: [0.0] * len(completions),
        guide="branch", guide_args={"ratio": 0.3, "threshold": 0.8, "source": "reference"}, scale_rewards="none",
        loss_type="dr_grpo", beta=0.5, learning_rate=3e-3, temperature=1.0, max_steps=16, max_completion_length=CUT,
        per_device_train_batch_size=128, num_generations=16, **{"anchor_estimator": "k1-reward"} | options,
    )  # fmt: skip
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    cut, h = [entry["completions/clipped_ratio"] for entry in log], 1 / len(trainer.processing_class)
    assert cut[0] == pytest.approx((1 - h) ** CUT, abs=0.1)
    assert ((1 - h) * 1.4 - 1) / (1.4 - 1) > 0.75, "what the optimum of Eq. 6 cuts, at any length"
    assert min(cut[-4:]) > 0.5 if pays else max(cut[-4:]) < 0.3
    assert capsys.readouterr().out.count("the guide pays more than the task") == pays
    if pays:
        assert log[0]["sage/q_mean"] == pytest.approx(1.4, abs=0.01)
