#!/usr/bin/env bash
# Measure the leaderboard of docs/benchmark.md: models that come with hmmscope, five seeds each after three trainings of each
# task for the learning rate, on one processor core. It can be stopped and restarted. Finished cards are copied to
# studies/results/hmm-bench-2, where scripts/write_pages.py reads them. Models whose default size exceeds the light track have
# two layers of width 64, or what 600 seconds of a core allow; the reference implementation of mamba exceeds them at any size.
#
#     nice bash scripts/leaderboard.sh                  all models
#     nice bash scripts/leaderboard.sh gru mamba2       these models
set -euo pipefail

export OMP_NUM_THREADS=1
models=${*:-rnn lstm gru roformer decoder linear-attention llama delta-rule gated-deltanet mamba2 xlstm rwkv}
for model in $models; do
  sizes=(--model.width 64 --model.num-layers 2)
  case $model in
    rnn | lstm | gru | roformer | decoder) sizes=() ;;
    gated-deltanet) sizes+=(--model.chunk-length 16) ;;
    mamba2) sizes+=(--model.chunk-length 16 --model.state-size 16) ;;
    xlstm) sizes=(--model.width 64 --model.num-layers 1) ;;
  esac
  hmmscope benchmark "$model" "${sizes[@]}" --num-seeds 5 --out "runs/hmm-bench-2/$model" --copy-card studies/results/hmm-bench-2 --resume -q
done
