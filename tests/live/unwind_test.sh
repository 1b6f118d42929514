#!/bin/bash
# A program whose code was moved to stubs by hand, with the tables that libprobe makes, gives the
# frames of the untouched one: to libgcc, to other unwinders and to gdb; exceptions pass through.
# Usage: unwind_test.sh ATTACH
set -u
attach=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
[ "$(uname -m)" = x86_64 ] || { echo "SKIP: the program is for x86-64"; exit 77; }
command -v g++ >/dev/null || { echo "SKIP: no g++"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
failed=0
fail() { echo "FAIL: $*"; failed=1; }

# same NAME LINES COMMAND...: the same output from both programs, and as many lines as there must be.
same() {
  local name=$1 lines=$2
  shift 2
  "$@" ./before/prog "$mode" >before.txt 2>&1 || fail "$name: the original ends with $?"
  "$@" ./after/prog "$mode" >after.txt 2>&1 || fail "$name: the other ends with $?"
  [ "$(wc -l <before.txt)" -eq "$lines" ] || fail "$name: the original prints something else"
  cmp -s before.txt after.txt || { fail "$name"; diff before.txt after.txt | head; }
}

frames_in_gdb() {
  cat >gdb.cmd <<'END'
set pagination off
set confirm off
set style enabled off
run
bt
continue
bt
continue
bt
continue
bt
continue
bt
kill
END
  # gdb names a stub after its own symbol, and has no line for it.
  timeout 60 gdb -nx -q -batch -x gdb.cmd --args "$1" gdb 2>/dev/null | grep '^#' |
    sed -E 's/0x[0-9a-f]+ in //; s/ at .*//; s/\.sled//'
}

for build in "-no-pie" "-no-pie over" "-static" "-no-pie -Wl,--no-eh-frame-hdr"; do
  kind=${build% over}
  over=${build#"$kind"}
  rm -rf before after
  mkdir before after
  # Frames outside the interrupted one are compared by place too; -rdynamic: dladdr() names them.
  # shellcheck disable=SC2086
  g++ -std=c++20 -O1 -g -fnon-call-exceptions -rdynamic $kind "$here/unwind_test.main.cpp" \
    "$here/unwind_test.S" -o before/prog || exit 1
  # shellcheck disable=SC2086
  "$attach" before/prog after/prog $over || { fail "$build: no tables"; continue; }
  chmod +x after/prog
  cmp -s before/prog after/prog && fail "$build: nothing was moved"
  readelf -wF after/prog 2>warnings.txt >/dev/null
  [ -s warnings.txt ] && fail "$build: readelf says $(head -1 warnings.txt)"
  if command -v gdb >/dev/null; then
    frames_in_gdb before/prog >before.txt
    frames_in_gdb after/prog >after.txt
    [ "$(grep -c '^#0' before.txt)" -eq 5 ] || fail "$build: gdb does not stop where it should"
    cmp -s before.txt after.txt || { fail "$build: gdb"; diff before.txt after.txt | head; }
  fi
  # Without a table no unwinder finds anything, before or after.
  case $build in *no-eh-frame-hdr*) continue ;; esac
  for mode in backtrace frames quiet; do
    lines=32
    [ $mode = quiet ] && lines=16
    same "$build: $mode" $lines timeout 20
    [ "$kind" = -static ] && continue
    for library in /usr/lib/llvm-*/lib/libunwind.so.1 /usr/lib/*/libunwind.so.8; do
      [ -e "$library" ] && [ $mode != backtrace ] &&
        same "$build: $mode with $library" $lines timeout 20 env LD_PRELOAD="$library"
    done
  done
done
exit $failed
