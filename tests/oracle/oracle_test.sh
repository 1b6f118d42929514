#!/bin/sh
# oracle_test.sh ORACLE [PATH...]: our reader and LIEF read every ELF file under the paths, and the
# shared libraries of this system up to 4 MB.
set -eu
oracle=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -ne 0 ]; then
  find "$@" -type f ! -name '*.json' ! -name 'mass*' -print0 >"$work/list"
  # Those with thousands of notes.
  mkdir "$work/mass"
  find "$@" -type f ! -name '*.json' -name 'mass*' -print0 |
    xargs -0 -r python3 "$(dirname "$0")/hide_notes.py" "$work/mass"
  find "$work/mass" -type f -print0 >>"$work/list"
fi
find /usr/lib /usr/lib64 -maxdepth 2 -type f -name '*.so*' -size -8192 -print0 2>/dev/null |
  sort -z >>"$work/list" || true
if [ ! -s "$work/list" ]; then
  echo "SKIP: no ELF files to read"
  exit 77
fi
xargs -0 "$oracle" <"$work/list"
