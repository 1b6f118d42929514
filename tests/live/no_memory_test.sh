#!/bin/bash
# no_memory_test.sh NO_MEMORY SOURCE: a program with dead probes, on which the
# library is called while memory runs out.
set -uo pipefail
no_memory=$(realpath "$1")
source=$(realpath "$2")
for tool in gcc ld.lld; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
gcc -O2 -ffunction-sections -fuse-ld=lld -Wl,--gc-sections "$source/fixtures/demo/demo.c" -o demo ||
  exit 1
"$no_memory" demo
