#!/usr/bin/env bash
# The campaign of protocols/README.md, from where it was left, on one processor core; stop it at any time, and commit results/.
#
#     nice bash scripts/campaign.sh                     all of it
#     nice bash scripts/campaign.sh header-filtering    what begins so
#
# What results/medium/ has of an experiment is taken over, whatever machine it was measured on; what it has not is begun by the
# protocol of the same name in protocols/. Each part is kept in results/medium/ when its experiment comes to its end or seed.
set -euo pipefail

# step EXPERIMENT[@SETTING] SEEDS HOW-MANY [OPTION...]: the first seeds of an experiment, or as far as its pool has them
step() {
  local name=$1 seeds=$2 first=$3 begin
  shift 3
  [[ $name = "$only"* ]] || return 0
  [ -f "protocols/$name.json" ] || { echo "$name: waits for its protocol, see protocols/README.md" && return 0; }
  begin="--protocol protocols/$name.json"
  [ -d "results/medium/$name" ] && begin="--from results/medium/$name"
  # shellcheck disable=SC2086
  hmmscope run "${name%@*}" --scale medium --seeds "$seeds" --only-first "$first" --jobs 1 --out "runs/medium/$name" --resume $begin "$@"
  python scripts/write_pages.py --only --keep "runs/medium/$name"
}

export OMP_NUM_THREADS=1
only=${1:-}
for seeds in 1 2 3 4 5; do
  step header-filtering 20,21,22,23,24 "$seeds"
  step header-filtering@others 20,21,22,23,24 "$seeds" --plan.sizes 2,3 \
    --plan.architectures gru,transformer-none,transformer-learned,linear-attention,delta-rule,mamba2
  step limits-law 8,9,10,11,12 $((seeds < 2 ? 2 : seeds))
  for name in multitask-fig1 multitask-fig3b multitask-fig3a multitask-fig2 multitask-fig7; do
    step "$name" 5,6,7,8,9 "$seeds" --plan.parts 224 --plan.cycles 12/6 --training.num_steps 24000
  done
done
