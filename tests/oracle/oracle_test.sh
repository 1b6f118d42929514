#!/bin/sh
# oracle_test.sh ORACLE [PATH...]: our reader and LIEF read every file under the paths, and the
# shared libraries of this system up to 4 MB.
set -eu
oracle=$1
shift
list=$(mktemp)
trap 'rm -f "$list"' EXIT
[ $# -eq 0 ] || find "$@" -type f -print0 >"$list"
find /usr/lib /usr/lib64 -maxdepth 2 -type f -name '*.so*' -size -8192 -print0 2>/dev/null |
  sort -z >>"$list" || true
if [ ! -s "$list" ]; then
  echo "SKIP: no ELF files to read"
  exit 77
fi
xargs -0 "$oracle" <"$list"
