"""Groups drawn again, at the edges: groups all alike, groups without a score, rows of another width."""

import pytest
import torch

from sage_rlvr.train import rollouts

NAN = float("nan")


def test_a_group_is_flat_unless_two_scores_differ():
    groups = [[1, 1, 1], [0, 1, 0], [NAN, 1, 1], [NAN, 0, 1], [NAN, NAN, NAN], [NAN, NAN, 0]]
    flat = rollouts.flat_groups(torch.tensor(groups).flatten(), 3)
    assert flat.tolist() == [True, False, True, False, True, True]


@pytest.mark.parametrize("fresh_is_wider", [True, False])
def test_a_replaced_group_keeps_its_padding_on_its_side(fresh_is_wider):
    """Prompts are padded on the left, completions on the right; ids with the pad id, the rest with 0."""
    narrow = {"prompt_ids": [[5, 6], [9, 7]], "prompt_mask": [[1, 1], [0, 1]], "completion_ids": [[3, 4], [3, 9]],
              "completion_mask": [[1, 1], [1, 0]], "advantages": [1.0, 2.0]}  # fmt: skip
    broad = {"prompt_ids": [[1, 2, 3], [9, 9, 4]], "prompt_mask": [[1, 1, 1], [0, 0, 1]],
             "completion_ids": [[7, 8, 9], [7, 7, 7]], "completion_mask": [[1, 1, 0], [1, 1, 1]],
             "advantages": [3.0, 4.0]}  # fmt: skip
    batch, fresh = ({k: torch.tensor(v) for k, v in rows.items()} for rows in (narrow, broad))
    if not fresh_is_wider:
        batch, fresh = fresh, batch
    before = {k: v.clone() for k, v in batch.items()}
    out = rollouts.replace_groups(batch, fresh, torch.tensor([1]), torch.tensor([0]), 1, pad_id=9)
    rows = {k: v.tolist() for k, v in out.items()}
    short, long = (
        (0, 1) if fresh_is_wider else (1, 0)
    )  # which row came from the narrow batch, and which from the broad one
    assert (rows["prompt_ids"][short], rows["prompt_ids"][long]) == ([9, 5, 6], [1, 2, 3])
    assert (rows["prompt_mask"][short], rows["prompt_mask"][long]) == ([0, 1, 1], [1, 1, 1])
    assert (rows["completion_ids"][short], rows["completion_ids"][long]) == ([3, 4, 9], [7, 8, 9])
    assert (rows["completion_mask"][short], rows["completion_mask"][long]) == ([1, 1, 0], [1, 1, 0])
    assert (rows["advantages"][short], rows["advantages"][long]) == (1.0, 3.0)
    assert all(torch.equal(batch[k], v) for k, v in before.items()), "the batch it came from is as it was"
