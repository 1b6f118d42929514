#!/bin/bash
# trace_test.sh REPROBE: what real tracers make of a program with a dangling note, before and
# after `reprobe fix`. The truth is the program's own count of its hits.
# Needs root, uprobes and BPF; exits 77 where they are missing.
set -uo pipefail
reprobe=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
readonly hits=1234

skip() { echo "SKIP: $*"; exit 77; }

[ "$(uname -m)" = x86_64 ] || skip "the programs are written for x86-64"
[ "$(id -u)" -eq 0 ] || skip "tracing needs root"
[ -e /sys/bus/event_source/devices/uprobe ] || skip "this kernel has no uprobes"
for tool in unshare gcc clang-14 ld.lld mold bpftrace gdb readelf nm; do
  command -v "$tool" >/dev/null || skip "no $tool"
done
for header in sys/sdt.h bpf/libbpf.h bpf/usdt.bpf.h; do
  echo "#include <$header>" | gcc -M -MG -x c - | grep -q "/$header" || skip "no $header"
done

# bpftrace wants tracefs, but counts without it too. A mount namespace of its own leaves the machine
# as it was.
if [ ! -e /sys/kernel/tracing/trace ] && [ -z "${TRACE_TEST_NAMESPACE:-}" ] &&
  unshare --mount true 2>/dev/null; then
  TRACE_TEST_NAMESPACE=1 exec unshare --mount "$0" "$reprobe"
fi
[ -z "${TRACE_TEST_NAMESPACE:-}" ] || mount -t tracefs none /sys/kernel/tracing 2>/dev/null

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1

failures=0
check() {  # check WHAT GOT EXPECTED
  if [ "$2" = "$3" ]; then
    echo "ok: $1: $2"
  else
    echo "FAILED: $1: got '$2', expected '$3'"
    failures=$((failures + 1))
  fi
}

compile() {  # compile OUT FLAGS...
  local out=$1
  shift
  # lld's own build-id has 8 bytes, which is a finding of its own.
  gcc -O2 -fcf-protection=none -ffunction-sections -Wl,--gc-sections -Wl,--build-id=sha1 "$@" \
    "$here/probes.c" -o "$out" || exit 1
}

# Each prints the hits that the tracer counted, or "refused".
libbpf_hits() {
  if ./libbpf_attach count.bpf.o "./$1" demo:work -- "./$1" $hits >libbpf.out 2>libbpf.err; then
    sed -n 's/^demo:work \(hits \)\{0,1\}//p' libbpf.out
  else
    echo "error: $(tail -n 1 libbpf.err)"
  fi
}
bpftrace_hits() {
  timeout 60 bpftrace -e "usdt:./$1:demo:work { @ = count(); }" -c "./$1 $hits" \
    >bpftrace.out 2>bpftrace.err
  local counted
  counted=$(sed -n 's/^@: //p' bpftrace.out)
  echo "${counted:-refused}"
}
gdb_probes() { gdb -nx -batch -ex 'info probes stap' "./$1" 2>/dev/null | grep -c '^stap '; }
notes() { readelf -nW "./$1" 2>/dev/null | grep -c '^ *Location: '; }
address() { nm "./$1" | sed -n "s/^0*\([0-9a-f]*\) [Tt] $2\$/\1/p"; }

clang-14 -O2 -g -target bpf -D__TARGET_ARCH_x86 -I/usr/include/x86_64-linux-gnu \
  -c "$here/libbpf_attach.bpf.c" -o count.bpf.o || exit 1
gcc -O1 "$here/libbpf_attach.c" -o libbpf_attach -lbpf || exit 1

# A program without a dangling note: where even that cannot be traced, it is the environment.
compile healthy -fuse-ld=bfd -Wl,--no-gc-sections
[ "$(libbpf_hits healthy)" = $hits ] || skip "libbpf cannot trace here: $(tail -n 1 libbpf.err)"
[ "$(bpftrace_hits healthy)" = $hits ] || skip "bpftrace cannot trace here: $(tail -n 1 bpftrace.err)"

fixed() {  # fixed NAME [OPTION]: repairs NAME into NAME.fixed and checks all tracers on it
  if ! "$reprobe" fix ${2:+"$2"} "$1" -o "$1.fixed"; then
    check "$1: reprobe fix" failed "done"
    return
  fi
  check "$1 after: notes" "$(notes "$1.fixed")" 1
  check "$1 after: it runs" "$("./$1.fixed" $hits)" "program $hits"
  check "$1 after: libbpf counts" "$(libbpf_hits "$1.fixed")" $hits
  check "$1 after: bpftrace counts" "$(bpftrace_hits "$1.fixed")" $hits
  check "$1 after: gdb lists probes" "$(gdb_probes "$1.fixed")" 1
  "$reprobe" audit "$1.fixed" >audit.out 2>&1
  check "$1 after: reprobe audit exits" $? 0
}

for linker in lld mold; do
  # The dangling note's location is 0, in a segment that is not executable. --gc-sections has
  # dropped .stapsdt.base too, without which gdb lists nothing.
  compile "zero-$linker" -fuse-ld=$linker
  check "zero-$linker before: notes" "$(notes "zero-$linker")" 2
  check "zero-$linker before: libbpf" "$(libbpf_hits "zero-$linker")" refused
  check "zero-$linker before: gdb lists probes" "$(gdb_probes "zero-$linker")" 0
  fixed "zero-$linker"

  # Its location is the address of a function without a probe; -u keeps .stapsdt.base. Nothing in
  # such a file shows that code was dropped, so the note stays until its removal is asked for.
  compile "aimed-$linker" -fuse-ld=$linker -Wl,-u,_.stapsdt.base -DDEAD_OFFSET=16
  target=$(address "aimed-$linker" bystander)
  compile "aimed-$linker" -fuse-ld=$linker -Wl,-u,_.stapsdt.base "-DDEAD_OFFSET=0x$target"
  check "aimed-$linker before: bystander stays" "$(address "aimed-$linker" bystander)" "$target"
  check "aimed-$linker before: notes" "$(notes "aimed-$linker")" 2
  check "aimed-$linker before: libbpf misfires" "$(libbpf_hits "aimed-$linker")" $((2 * hits))
  check "aimed-$linker before: bpftrace misfires" "$(bpftrace_hits "aimed-$linker")" $((2 * hits))
  check "aimed-$linker before: gdb lists probes" "$(gdb_probes "aimed-$linker")" 2
  check "aimed-$linker before: ambiguous" "$("$reprobe" list "aimed-$linker" | grep -c ambiguous)" 1
  fixed "aimed-$linker" --remove-ambiguous
done

echo "$failures checks failed"
[ "$failures" -eq 0 ]
