#!/bin/bash
# library_test.sh SOURCE BUILD: installs from the build directory BUILD, builds the example of
# docs/library.md with the installed package and with pkg-config, and runs it on a program with dead
# probes.
set -uo pipefail
source=$(realpath "$1")
build=$(realpath "$2")

skip() { echo "SKIP: $*"; exit 77; }
for tool in cmake g++ gcc ld.lld pkg-config readelf; do
  command -v "$tool" >/dev/null || skip "no $tool"
done

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
prefix="$directory/prefix"

failures=0
expect() {  # expect WHAT COMMAND...: the command succeeds
  local what=$1
  shift
  if "$@" >out 2>&1; then echo "ok: $what"; else
    echo "FAILED: $what"; cat out; failures=$((failures + 1)); fi
}

mkdir example
sed -n '/^```cpp$/,/^```$/p' "$source/docs/library.md" | grep -v '^```' >example/repair.cpp
{
  echo 'cmake_minimum_required(VERSION 3.17)'
  echo 'project(example LANGUAGES CXX)'
  sed -n '/^```cmake$/,/^```$/p' "$source/docs/library.md" | grep -v '^```' |
    sed 's/^target_link/add_executable(repair repair.cpp)\n&/'
} >example/CMakeLists.txt
expect "cmake --install" cmake --install "$build" --prefix "$prefix"
expect "configure" cmake -S example -B built "-DCMAKE_PREFIX_PATH=$prefix" -DCMAKE_BUILD_TYPE=Debug
expect "build" cmake --build built

export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name reprobe.pc)")
flags() { pkg-config "$1" reprobe; }
# The prefix is where the .pc file lies now.
expect "reprobe.pc names its own folder" grep -q "$prefix" <(pkg-config --libs reprobe)
# shellcheck disable=SC2046
expect "build with pkg-config" g++ -O0 $(flags --cflags) example/repair.cpp -o repair $(flags --libs)

link() {
  gcc -O2 -ffunction-sections -fuse-ld=lld -Wl,--gc-sections,--build-id=sha1 \
    "$source/fixtures/demo/demo.c" -o "$1"
}
link demo.tool
expect "the tool repairs" "$prefix/bin/reprobe" fix demo.tool
for program in built/repair ./repair; do
  link demo
  expect "$program" "$program" demo
  grep -q '^dangling evict: ' out || { echo "FAILED: no finding"; failures=$((failures + 1)); }
  grep -qx 'removed 4' out || { echo "FAILED: not 4 removed"; failures=$((failures + 1)); }
  expect "$program gives what the tool gives" cmp demo demo.tool
  expect "the program runs" ./demo 10
done
echo "no ELF file" >text
if built/repair text >out 2>&1; then
  echo "FAILED: no error for a text"
  failures=$((failures + 1))
fi
echo "$failures checks failed"
[ "$failures" -eq 0 ]
