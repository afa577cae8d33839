#!/usr/bin/env bash
# Continue the campaign of protocols/README.md on one processor core. Stop it at any time, and commit results/.
#
#     nice bash scripts/campaign.sh                    everything
#     nice bash scripts/campaign.sh limits-fig3@T64    experiments whose name begins with this
#
# Parts in */results/medium/ are reused, whatever machine measured them. A new experiment begins with the protocol of the same name in
# protocols/. Each finished seed of an experiment is stored in results/medium/.
set -euo pipefail

# step EXPERIMENT[@SETTING] SEEDS COUNT [OPTION...]: run the first seeds of an experiment; SEEDS - for one without seeds
step() {
  local name=$1 seeds=$2 first=$3 begin
  shift 3
  [[ $name = "$only"* ]] || return 0
  protocol=$(ls */protocols/"$name.json" 2>/dev/null || true)
  [ -f "$protocol" ] || { echo "$name: has no protocol yet; see protocols/README.md" && return 0; }
  begin="--protocol $protocol"
  kept=$(ls -d */results/medium/"$name" 2>/dev/null || true)
  [ -d "$kept" ] && begin="--reuse $kept"
  [ "$seeds" = - ] || begin="$begin --seeds $seeds --only-first $first --jobs 1"
  # shellcheck disable=SC2086
  hmmscope run "${name%@*}" --scale medium --out "runs/medium/$name" --resume $begin "$@"
  python scripts/write_pages.py --only --keep "runs/medium/$name"
}

export OMP_NUM_THREADS=1
only=${1:-}
step multitask-lemma1 - 0
step multitask-theorem2 - 0
for seeds in 10 20 30 40; do
  step multitask-context-length "$(seq -s, 50 89)" "$seeds"
done
for seeds in 1 2 3 4 5 6 7 8; do
  step construction-vs-trained 40,41,42,43,44,45,46,47 "$seeds"
done
for seeds in 1 2 3 4 5 6 7 8; do
  step limits-fig3@T64 40,41,42,43,44,45,46,47 "$seeds" --plan.tasks cyclic-det,cyclic-hard --plan.length 64
done
for seeds in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
  for name in multitask-fig1 multitask-fig3b multitask-fig3a multitask-fig2 multitask-fig7; do
    step "$name@fifteen" 10,11,12,13,14,15,16,17,18,19,20,21,22,23,24 "$seeds" --plan.parts 224 --plan.cycles 12/6 \
      --training.num_steps 24000
  done
done
