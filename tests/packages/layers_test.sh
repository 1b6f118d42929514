#!/bin/bash
# layers_test.sh SOURCE: a file of verify that includes a header of rewrite does not build, nor one
# of rewrite that includes verify, nor any include that goes upward; the sources as they are do.
set -uo pipefail
source=$(realpath "$1")

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
cp -r "$source"/{CMakeLists.txt,cmake,include,libprobe,tool} .

failures=0
expect() {  # expect WHAT RESULT: RESULT is "yes" or "no"
  if [ "$2" = yes ]; then echo "ok: $1"; else
    echo "FAILED: $1"; cat out; failures=$((failures + 1)); fi
}
builds() {  # builds TARGET [MESSAGE]: yes where it builds, "no: MESSAGE" where it fails for that
  if cmake --build build --target "$1" >out 2>&1; then echo yes
  elif grep -qF -- "$2" out; then echo "no: $2"
  else echo "no, for another reason"; fi
}
is() { [ "$1" = "$2" ] && echo yes || echo no; }

cmake -G Ninja -S . -B build -DREPROBE_BUILD_TESTS=OFF >out 2>&1 || { cat out; exit 1; }
expect "the sources as they are" "$(is "$(builds reprobe_layers)" yes)"

try() {  # try FILE HEADER TARGET: the include stops the build of the target, and only while it is there
  cp "$1" kept
  echo "#include \"$2\"" >>"$1"
  expect "$1 must not include $2" "$(is "$(builds "$3" "$1 includes $2")" "no: $1 includes $2")"
  cp kept "$1"
}
try libprobe/verify/compare.cpp libprobe/rewrite/fix.hpp probe_verify
try libprobe/verify/byte_ranges.hpp libprobe/rewrite/fix.hpp probe_verify
try libprobe/rewrite/fix.cpp libprobe/verify/compare.hpp probe_rewrite
try libprobe/elf/file.hpp libprobe/notes/stapsdt.hpp probe_base
try libprobe/code/cfi.cpp tool/text.hpp probe_base
mkdir libprobe/other
echo "int other;" >libprobe/other/other.cpp
expect "a folder without a place" \
  "$(is "$(builds reprobe_layers "libprobe/other has no place")" "no: libprobe/other has no place")"
rm -r libprobe/other
expect "the sources as they were" "$(is "$(builds reprobe_layers)" yes)"
exit $((failures != 0))
