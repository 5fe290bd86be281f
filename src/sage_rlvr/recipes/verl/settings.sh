# The paper's RL settings (recipes/paper.yaml: Qwen2.5-Math-7B after SFT, 1,000 steps of 8 prompts × 8 rollouts) as verl 0.9.1 overrides.
# Sourced by one_node.sh and several_nodes.sh. Not run on GPUs by us: verl's config accepts every line and the trainer builds
# from it (tests_verl/test_recipes.py); what ran is said in docs/howto/verl.md.
#
#   MODEL   the merged SFT model. With LoRA verl's reference is the model without the adapter, so merge SFT's adapter first.
#   TRAIN   parquet in verl's format (prompt, data_source, reward_model.ground_truth); VAL the same for validation.
#   REWARD  a Python file with compute_score(data_source, solution_str, ground_truth, extra_info); Math-Verify in the paper.
#   ROW     branch (default) | grpo | grpo_no_kl | grpo_forward_kl | random | token | tempered | exact | maxrl | rarity_focal
#
# What verl has not, and the paper uses: min_p (top_p and top_k are off here), a linear learning rate (constant with the same
# warm-up, as in the authors' config).
: "${MODEL:?set MODEL to the merged SFT model}" "${TRAIN:?set TRAIN to a parquet file}" "${REWARD:?set REWARD to a Python file}"

SETTINGS=(
  trainer.v1.trainer_mode=sage_sync
  algorithm.adv_estimator=grpo
  data.train_files="$TRAIN" data.val_files="${VAL:-$TRAIN}" data.train_batch_size=8 data.seed=3407
  data.max_prompt_length=1024 data.max_response_length=2048
  reward.custom_reward_function.path="$REWARD"
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora_alpha=16
  actor_rollout_ref.model.target_modules='[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]'
  actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2
  actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean  # GRPO's mean over each completion
  actor_rollout_ref.actor.clip_ratio=0.2
  actor_rollout_ref.actor.optim.lr=5e-6 actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
  actor_rollout_ref.actor.optim.weight_decay=0.01
  actor_rollout_ref.actor.optim.optimizer=AdamW8bit actor_rollout_ref.actor.optim.optimizer_impl=torchao.optim
  actor_rollout_ref.actor.use_kl_loss=True
  actor_rollout_ref.actor.kl_loss_coef=0.05
  actor_rollout_ref.actor.kl_loss_type=low_var_kl  # k3, as published
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0 actor_rollout_ref.rollout.top_k=-1
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
  actor_rollout_ref.rollout.load_format=safetensors actor_rollout_ref.rollout.layered_summon=True
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
  trainer.total_training_steps=1000 trainer.total_epochs=1000 trainer.save_freq=50 trainer.test_freq=-1
  trainer.val_before_train=False 'trainer.logger=[console,tensorboard]'
  trainer.project_name=sage trainer.experiment_name="${ROW:-branch}"
  +sage.seed=3407
)
CLAMP="q_min: 0.6, q_max: 1.4"
case "${ROW:-branch}" in
  branch) SETTINGS+=(+sage.guide=branch "+sage.guide_args={ratio: 0.3, threshold: 1.2, $CLAMP}") ;;
  token) SETTINGS+=(+sage.guide=token "+sage.guide_args={alpha: [0.3, 0.1], sigma: [0.25, 0.1], $CLAMP}") ;;
  random) SETTINGS+=(+sage.guide=random "+sage.guide_args={epsilon: [0.1, 0.0], sigma: [0.15, 0.05], $CLAMP}") ;;
  grpo) SETTINGS+=(+sage.guide=none) ;;
  grpo_no_kl) SETTINGS+=(+sage.guide=none actor_rollout_ref.actor.use_kl_loss=False) ;;
  grpo_forward_kl) SETTINGS+=(+sage.guide=none +sage.estimator=forward-value) ;;
  tempered) # no row of the paper: a guide that looks at the token, under verl's k3+
    SETTINGS+=(+sage.guide=tempered actor_rollout_ref.actor.kl_loss_type=k3+) ;;
  exact) # no row of the paper: as derived. k1 in the reward, no std, constant denominators, on-policy
    SETTINGS+=(+sage.guide=branch "+sage.guide_args={ratio: 0.3, threshold: 1.2, $CLAMP}"
      actor_rollout_ref.actor.use_kl_loss=False algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl
      algorithm.kl_ctrl.kl_coef=0.05 algorithm.norm_adv_by_std_in_grpo=False
      actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm actor_rollout_ref.actor.loss_scale_factor=2048) ;;
  maxrl) # no row of the paper: MaxRL's advantage, without a KL as published
    SETTINGS+=(algorithm.adv_estimator=sage +sage.advantage=maxrl actor_rollout_ref.actor.use_kl_loss=False) ;;
  rarity_focal) # no row of the paper: unlikely right answers and hard prompts count more
    SETTINGS+=(algorithm.adv_estimator=sage "+sage.advantage=[rarity,focal]") ;;
  *) echo "ROW=$ROW is unknown: branch, token, random, grpo, grpo_no_kl, grpo_forward_kl, tempered, exact, maxrl or" \
      "rarity_focal" >&2; exit 2 ;;
esac
