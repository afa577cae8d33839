#!/usr/bin/env bash
# The leaderboard of docs/benchmark.md: models that come with hmmscope, five seeds each, on one processor core; stop it at any
# time, and call it again. What is finished is copied to results/hmm-bench, where scripts/write_pages.py reads it.
#
#     nice bash scripts/leaderboard.sh                  all of them
#     nice bash scripts/leaderboard.sh gru mamba2       these
set -euo pipefail

export OMP_NUM_THREADS=1
models=${*:-rnn lstm gru roformer decoder linear-attention llama delta-rule xlstm mamba2 rwkv gated-deltanet mamba}
for model in $models; do
  hmmscope benchmark "$model" --seeds 5 --out "runs/hmm-bench/$model" --keep results/hmm-bench --resume -q
done
