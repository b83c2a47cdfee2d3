#!/usr/bin/env bash
# Compares with the lock, and leaves the table and the exit code to the later steps of the action: a comment is
# to be written before the job fails.
#
# Environment: LOCK_FILE, NAMES, TOLERANCE (the action's inputs); GITHUB_OUTPUT, GITHUB_STEP_SUMMARY, RUNNER_TEMP.
set -euo pipefail

report="$RUNNER_TEMP/autofit-memory.md"
sarif="$RUNNER_TEMP/autofit-memory.sarif"
rm -f "$report" "$sarif"
read -ra chosen <<<"$NAMES"
arguments=(--lock --file "$LOCK_FILE" --findings "markdown=$report" --findings "sarif=$sarif")
if [[ -n "$TOLERANCE" ]]; then
  arguments+=(--tolerance "$TOLERANCE")
fi

code=0
autofit check "${arguments[@]}" ${chosen[@]+"${chosen[@]}"} || code=$?

echo "exit-code=$code" >>"$GITHUB_OUTPUT"
# A comparison that failed has said why in the log, and has written neither.
if [[ -e "$report" ]]; then
  echo "report=$report" >>"$GITHUB_OUTPUT"
  cat "$report" >>"$GITHUB_STEP_SUMMARY"
fi
if [[ -e "$sarif" ]]; then
  echo "sarif=$sarif" >>"$GITHUB_OUTPUT"
fi
