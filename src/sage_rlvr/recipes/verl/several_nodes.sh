#!/usr/bin/env bash
# The paper's settings on several nodes of 8 GPUs, with sage-rlvr installed on each. First, on every node, Ray:
#   head:   ray start --head --port=6379        others: ray start --address=HEAD:6379
# then here, on the head: NNODES=4 MODEL=… TRAIN=… REWARD=… ROW=branch bash several_nodes.sh
# MODEL, TRAIN and REWARD must be readable on all nodes. 8 prompts × 8 do not fill 32 GPUs: the batch grows with the nodes,
# and PROMPTS says otherwise. DRY_RUN=1 prints the overrides and starts nothing.
set -euo pipefail
: "${NNODES:?set NNODES to the number of nodes}"
source "$(dirname "$0")/settings.sh"
PROMPTS="${PROMPTS:-$((8 * NNODES))}"
SETTINGS+=(
  trainer.nnodes="$NNODES" trainer.n_gpus_per_node="${GPUS:-8}"
  data.train_batch_size="$PROMPTS" actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS"
  transfer_queue.backend.SimpleStorage.num_data_storage_units="$((2 * NNODES))"  # TransferQueue: twice the nodes
  +ray_kwargs.ray_init.address=auto
  "$@"
)
if [ -n "${DRY_RUN:-}" ]; then printf '%s\n' "${SETTINGS[@]}"; exit; fi
python -m sage_rlvr.doctor.verl
exec python -m verl.trainer.main_ppo "${SETTINGS[@]}"
