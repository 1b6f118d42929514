#!/bin/bash
# consumer_test.sh BUILD: installs the tool from the build directory BUILD and uses the installed
# package in the project of this folder, with Ninja and with Unix Makefiles.
set -uo pipefail
build=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)

skip() { echo "SKIP: $*"; exit 77; }

for tool in cmake gcc ld.lld readelf ninja make; do
  command -v "$tool" >/dev/null || skip "no $tool"
done
echo '#include <sys/sdt.h>' | gcc -M -MG -x c - | grep -q /sys/sdt.h || skip "no sys/sdt.h"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
# A blank in the paths: what a command line gets wrong first.
prefix="$directory/pre fix"
project="$directory/the project"
cp -r "$here" "$project"

failures=0
fail() { echo "FAILED: $generator: $*"; failures=$((failures + 1)); }
expect() {  # expect WHAT COMMAND...: the command succeeds
  local what=$1
  shift
  if "$@" >out 2>&1; then echo "ok: $generator: $what"; else fail "$what"; cat out; fi
}
said() {  # said PATTERN: the last command that had to fail printed it
  if grep -q -- "$1" refused.out; then echo "ok: $generator: it said $1"; else
    fail "it said $1"; cat refused.out; fi
}
refuse() {  # refuse WHAT COMMAND...: the command fails
  local what=$1
  shift
  if "$@" >refused.out 2>&1; then fail "$what: succeeded"; cat refused.out; else echo "ok: $generator: $what"; fi
}

probes() { readelf -nW "$1" | sed -n 's/.*Provider: //p;s/^ *Name: //p' | xargs; }
mended() {  # mended FILE PROVIDER: of its two probes, only the live one is left
  if [ "$(probes "$1")" != "$2 live" ]; then
    echo "$1 has probes: $(probes "$1")"
    return 1
  fi
}
newer() { [ "$1" -nt "$2" ]; }
absent() { [ ! -e "$1" ]; }

generator=install
expect "cmake --install" cmake --install "$build" --prefix "$prefix"
tool="$prefix/bin/reprobe"
expect "the installed tool runs" "$tool" --version
printf '#include <reprobe/index.h>\nconst struct reprobe_index *index_of_mine;\n' >index.c
expect "the installed header is C99" gcc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only \
  "-I$prefix/include" index.c
cp -p "$tool" good-tool
# A tool that exits $1. It keeps the time of the good one: what is up to date stays so.
break_tool() {
  printf '#!/bin/sh\necho "reprobe: error: refused" >&2\nexit %s\n' "$1" >"$tool"
  touch -r good-tool "$tool"
}
mend_tool() { cp -p good-tool "$tool"; }

refuse_target() {  # refuse_target TARGET FILE SOURCE
  touch "$3"
  refuse "build $1 with a tool that refuses" "${build_it[@]}" --target "$1"
  said "failed: 4"
  expect "no $1 is left" absent "$2"
  refuse "the next build does not take it for done" "${build_it[@]}" --target "$1"
}

try_generator() {
  local b="$directory/build $generator"
  local build_it=(cmake --build "$b")
  mend_tool
  expect "configure" cmake -G "$generator" -S "$project" -B "$b" "-DCMAKE_PREFIX_PATH=$prefix"
  expect "build" "${build_it[@]}"
  expect "the executable is mended" mended "$b/hello" hello
  expect "the shared library is mended" mended "$b/libgreeting.so.1.2.3" greeting
  expect "the module is mended" mended "$b/libplugin.so" greeting
  expect "the program runs" "$b/hello"
  refuse "a link that is only audited fails on its dead probe" "${build_it[@]}" --target audited
  expect "and leaves no file" absent "$b/audited"

  # A build with nothing to do runs nothing.
  touch marker
  sleep 0.01
  expect "build again" "${build_it[@]}"
  refuse "nothing is linked again" newer "$b/hello" marker

  touch "$project/hello.c"
  expect "build after a change of a source" "${build_it[@]}"
  expect "it is linked again" newer "$b/hello" marker
  expect "and mended again" mended "$b/hello" hello

  # A tool that fails: no half output, also where an earlier good file lies there.
  break_tool 4
  refuse_target hello "$b/hello" "$project/hello.c"
  refuse_target greeting "$b/libgreeting.so.1.2.3" "$project/greeting.c"
  mend_tool
  expect "build with the good tool" "${build_it[@]}"
  expect "the executable is mended" mended "$b/hello" hello
  expect "the library is mended" mended "$b/libgreeting.so.1.2.3" greeting
  expect "the program runs" "$b/hello"

  # A new tool: its result may differ, so what it made is made again.
  touch marker
  sleep 0.01
  touch "$tool"
  expect "build after an update of the tool" "${build_it[@]}"
  expect "the executable is linked again" newer "$b/hello" marker
  expect "and mended" mended "$b/hello" hello
}

refused_call() {  # refused_call ARGUMENTS MESSAGE
  refuse "reprobe_postlink($1)" cmake -G Ninja -S "$project" -B "$directory/refused" \
    "-DCMAKE_PREFIX_PATH=$prefix" "-DREFUSED_CALL=$1"
  tr -s '\n ' '  ' <refused.out >line
  mv line refused.out
  said "$2"
}

for generator in Ninja "Unix Makefiles"; do
  try_generator
done
generator=configure
mend_tool
refused_call "archive" "of type STATIC_LIBRARY"
refused_call "alias" "imported or alias target"
refused_call "nothing" "no such target"
refused_call "hello FIXX" "unknown argument 'FIXX'"

echo "$failures checks failed"
[ "$failures" -eq 0 ]
