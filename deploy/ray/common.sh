# shellcheck shell=bash
# What head.sh and worker.sh have in common; it is sourced by them.

fail() {
  echo "error: $1" >&2
  exit 2
}

require_ray() {
  command -v ray >/dev/null || fail "there is no \`ray\` on the PATH: activate the environment in which autofit is installed"
}

# A cluster without a token runs whatever anybody sends to its port.
require_token() {
  local file="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
  export RAY_AUTH_MODE=token
  if [ -z "${RAY_AUTH_TOKEN:-}" ] && ! [ -s "$file" ]; then
    fail "the cluster has no token: put the same one on every node, into the file that RAY_AUTH_TOKEN_PATH names \
(looked at $file); \`ray get-auth-token --generate\` makes one"
  fi
}
