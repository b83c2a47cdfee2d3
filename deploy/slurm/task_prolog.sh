#!/usr/bin/env bash
# A Slurm task prolog that stops a job before it wastes its hours: does the batch fit on this node's card?
#
#   export CHECK="--model resnet50 --batch-size 128 --precision amp-bf16"
#   srun --task-prolog="$PWD/deploy/slurm/task_prolog.sh" python train.py
#
# An administrator names it in slurm.conf as TaskProlog; a job without CHECK is left alone. It runs as the user, in
# the task's environment. Slurm shows the lines that begin with `print`, and cancels the task where a prolog fails.
# Not a Prolog: when one of those fails, Slurm takes the node out of service.
set -uo pipefail

[ -n "${CHECK:-}" ] || exit 0
[ "${SLURM_LOCALID:-0}" = 0 ] || exit 0  # once a node

read -ra options <<<"$CHECK"
answer=$(autofit check "${options[@]}" --quiet 2>&1)
code=$?
# The answer is one line, and what may help follows it; where there is none, the last line says why.
said=$(grep -m 1 -E '^(fits|does not fit|unsure)' <<<"$answer" || tail -n 1 <<<"$answer")
echo "print autofit: $said"
case $code in
  3) echo "print autofit: job ${SLURM_JOB_ID:-?} is stopped before it starts"; exit 1 ;;
  0 | 6) exit 0 ;;  # fits, or may fit
  *) echo "print autofit: not checked (exit code $code), the job starts all the same"; exit 0 ;;
esac
