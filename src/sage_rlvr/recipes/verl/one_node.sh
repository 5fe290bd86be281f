#!/usr/bin/env bash
# The paper's settings on one node with 8 GPUs. More overrides may follow, and win:
#   MODEL=sft-merged TRAIN=train.parquet REWARD=reward.py ROW=branch bash one_node.sh trainer.save_freq=100
# DRY_RUN=1 prints the overrides, one a line, and starts nothing.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
SETTINGS+=(trainer.nnodes=1 trainer.n_gpus_per_node="${GPUS:-8}" "$@")
if [ -n "${DRY_RUN:-}" ]; then printf '%s\n' "${SETTINGS[@]}"; exit; fi
python -m sage_rlvr.doctor.verl  # verl says nothing when a plug-in fails; this stops here instead
exec python -m verl.trainer.main_ppo "${SETTINGS[@]}"
