#!/bin/bash
# deb_test.sh BUILD: the Debian packages that cpack makes of the build: what is in them, that dpkg can
# tell what they need, and that the tool works from where they put it.
set -uo pipefail
build=$(realpath "$1")

for tool in cpack dpkg-deb dpkg-shlibdeps gcc ld.lld readelf; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
failures=0
check() {  # check WHAT COMMAND...: the command succeeds
  local what=$1
  shift
  if "$@" >out 2>&1; then echo "ok: $what"; else
    echo "FAILED: $what"; cat out; failures=$((failures + 1)); fi
}

check "cpack" cpack -G DEB --config "$build/CPackConfig.cmake" -B "$directory"
[ "$failures" -eq 0 ] || exit 1
tool=$(echo reprobe_*.deb) dev=$(echo reprobe-dev_*.deb)
needs() { dpkg-deb -f "$1" Depends | grep -- "$2" >/dev/null; }
check "the tool needs libcapstone" needs "$tool" libcapstone
check "reprobe-dev needs reprobe of its version" needs "$dev" "reprobe (= "
holds() { dpkg-deb -c "$1" | grep -- "$2" >/dev/null; }
check "the tool" holds "$tool" '\./usr/bin/reprobe$'
check "the linkers' names" holds "$tool" 'ld\.mold -> .*bin/reprobe'
check "reprobe-cc" holds "$tool" 'reprobe-cc -> reprobe$'
check "the documents" holds "$tool" 'rules\.md$'
check "the CMake package" holds "$dev" 'reprobe-config\.cmake$'
check "the header" holds "$dev" 'include/reprobe/reprobe\.hpp$'
lacks() { ! holds "$@"; }
check "no header with the tool" lacks "$tool" '\.hpp$'

for package in "$tool" "$dev"; do check "unpack $package" dpkg-deb -x "$package" root; done
reprobe=root/usr/bin/reprobe
check "it runs" "$reprobe" --version
check "it finds its linkers" test -x "$("$reprobe" ld --dir)/ld.lld"
echo 'int main(void) { return 0; }' >a.c
check "a link through it" gcc "-B$("$reprobe" ld --dir)" -fuse-ld=lld a.c -o a
check "the program runs" ./a

echo "$failures checks failed"
[ "$failures" -eq 0 ]
