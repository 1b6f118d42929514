#!/bin/bash
# completion_test.sh REPROBE: what bash completes, asked as readline does.
set -uo pipefail
PATH="$(dirname "$(realpath "$1")"):$PATH"
here=$(cd "$(dirname "$0")/../.." && pwd)
command -v gcc >/dev/null || { echo "SKIP: no gcc"; exit 77; }
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
gcc -O2 "$here/fixtures/demo/demo.c" -o app || exit 1
# shellcheck source=/dev/null
source "$here/completions/reprobe.bash"

failures=0
complete_line() {  # complete_line LINE: sets `got`, one word a line
  COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  # As readline: a colon is a word of its own.
  local spaced=${1//:/ : }
  read -ra COMP_WORDS <<<"$spaced"
  [[ $1 != *[[:space:]] ]] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _reprobe
  got=$(printf '%s\n' "${COMPREPLY[@]}" | sort | xargs)
}
check() {  # check LINE EXPECTED
  complete_line "$1"
  if [ "$got" = "$2" ]; then echo "ok: '$1'"; else
    echo "FAILED: '$1': expected '$2', found '$got'"; failures=$((failures + 1)); fi
}
check "reprobe re" "relativize"
check "reprobe sl" "sled"
check "reprobe fix --remove" "--remove-ambiguous"
check "reprobe list --ob" "--objects"
check "reprobe sled --kin" "--kind"
check "reprobe list ap" "app"
check "reprobe list app -p demo:re" "reply reply_v1 request"
check "reprobe list app -p de" \
  "demo:compress demo:done demo:evict demo:parse demo:reply demo:reply_v1 demo:request demo:start"
echo "$failures checks failed"
[ "$failures" -eq 0 ]
