#!/usr/bin/env bash
# Joins this machine to a cluster, with all its CPUs and GPUs.
#
#   HEAD_ADDRESS          the head's host:port, as head.sh names it, usually HOST:6379
#   RAY_AUTH_TOKEN_PATH   a file whose first line is the cluster's token [~/.ray/auth_token]; RAY_AUTH_TOKEN, the
#                         token itself, wins over it
#   ACCELERATOR_TYPE      Ray's name for the card, such as T4 or A100-40G; only where Ray does not find it by itself
#                         (`ray status -v` shows accelerator_type), or to tell a 40 GB A100 from one of 80 GB
#
# Arguments go to `ray start` and win over what is said here.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

require_ray
require_token
[ -n "${HEAD_ADDRESS:-}" ] || fail "HEAD_ADDRESS is not set: give the head's host:port, such as head.example.org:6379"

card=()
if [ -n "${ACCELERATOR_TYPE:-}" ]; then
  card=(--resources="{\"accelerator_type:$ACCELERATOR_TYPE\": 1}" --labels="ray.io/accelerator-type=$ACCELERATOR_TYPE")
fi
exec ray start --address="$HEAD_ADDRESS" "${card[@]}" "$@"
