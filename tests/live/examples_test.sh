#!/bin/bash
# examples_test.sh BUILD: builds each folder of examples/ with the installed tool, as its file says,
# and looks at what readelf and the program say. A build system that is not here is named.
set -uo pipefail
build=$(realpath "$1")
examples=$(cd "$(dirname "$0")/../../examples" && pwd)

skip() { echo "SKIP: $*"; exit 77; }
for tool in cmake make gcc ld.lld readelf; do
  command -v "$tool" >/dev/null || skip "no $tool"
done
echo '#include <sys/sdt.h>' | gcc -M -MG -x c - | grep -q /sys/sdt.h || skip "no sys/sdt.h"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
cmake --install "$build" --prefix "$directory/usr" >"$directory/install.log" 2>&1 ||
  { cat "$directory/install.log"; exit 1; }
export PATH="$directory/usr/bin:$PATH"
unset REPROBE_STEPS REPROBE_LD COMPILER_PATH

probes() { readelf -nW "$1" | sed -n 's/^ *Name: //p' | sort | xargs; }
check() {  # check EXAMPLE FILE: it runs, and has the live probe and the base alone
  local said
  said=$("$2") || fail "$1: the program's exit code is $?"
  [ "$said" = "done" ] || fail "$1: the program says '$said'"
  [ "$(probes "$2")" = start ] || fail "$1: probes: $(probes "$2")"
  readelf -SW "$2" | grep -q '\.stapsdt\.base' || fail "$1: no .stapsdt.base"
  echo "ok: $1"
}
cd "$directory" || exit 1
cp -r "$examples"/. .

make -C make >log 2>&1 || { cat log; fail "make"; }
check make make/app

{ cmake -S cmake -B cmake/build "-DCMAKE_PREFIX_PATH=$directory/usr" && cmake --build cmake/build; } \
  >log 2>&1 || { cat log; fail "cmake"; }
check cmake cmake/build/app

# Beside a rustup that has no toolchain cargo is there and does nothing.
if cargo --version >log 2>&1; then
  (cd cargo && CARGO_HOME="$directory/cargo-home" cargo build --offline --release) >log 2>&1 ||
    { cat log; fail "cargo"; }
  check cargo cargo/target/release/app
else
  echo "not here: cargo ($(head -1 log))"
fi

echo "$failures checks failed"
[ "$failures" -eq 0 ]
