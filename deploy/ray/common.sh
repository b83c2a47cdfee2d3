# shellcheck shell=bash
# What head.sh and worker.sh have in common; it is sourced by them.

fail() {
  echo "error: $1" >&2
  exit 2
}

require_ray() {
  command -v ray >/dev/null || fail "there is no \`ray\` on the PATH: activate the environment in which autofit is installed"
}

# A cluster without a token runs whatever anybody sends to its port. Ray reads it in this order, of a file the first
# line, and looks no further than the first place that is set; where there is none, it ends in a traceback.
require_token() {
  local token="${RAY_AUTH_TOKEN:-}" file="${RAY_AUTH_TOKEN_PATH:-${HOME:-.}/.ray/auth_token}" place=RAY_AUTH_TOKEN
  export RAY_AUTH_MODE=token
  if [ -z "$token" ]; then
    place="the first line of $file"
    ! [ -r "$file" ] || IFS= read -r token <"$file" || true
  fi
  [ -n "${token//[[:space:]]/}" ] || fail "the cluster has no token: none is in $place; put the same one on every node; \
\`ray get-auth-token --generate\` makes one in ~/.ray/auth_token, if RAY_AUTH_TOKEN_PATH and RAY_AUTH_TOKEN are not set"
}
