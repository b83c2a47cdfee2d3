#!/usr/bin/env bash
# Starts the head of a cluster. It has room for the drivers of four jobs, and takes no trials.
#
#   RAY_AUTH_TOKEN_PATH   a file whose first line is the cluster's token [~/.ray/auth_token]; RAY_AUTH_TOKEN, the
#                         token itself, wins over it
#   AUTOFIT_STORAGE       where jobs and studies are kept, such as postgresql+psycopg://autofit:SECRET@db/autofit;
#                         drivers take it from here, so that no password travels with a job
#
# Arguments go to `ray start` and win over what is said here:
#
#   deploy/ray/head.sh --dashboard-host=0.0.0.0 --resources='{"autofit_driver": 8}'
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

require_ray
require_token
[ -n "${AUTOFIT_STORAGE:-}" ] || fail "AUTOFIT_STORAGE is not set: name the database that all jobs share, \
such as postgresql+psycopg://autofit:SECRET@db/autofit"
export AUTOFIT_STORAGE

exec ray start --head --port=6379 --dashboard-host=127.0.0.1 --num-cpus=0 --num-gpus=0 \
  --resources='{"autofit_driver": 4}' "$@"
