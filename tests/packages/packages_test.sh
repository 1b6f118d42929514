#!/bin/bash
# packages_test.sh SOURCE: the build takes the dependencies' current upstream releases, by the
# targets that their CMake configs give (LIEF::LIEF, capstone::capstone, Zydis::Zydis, Catch2 3's
# Catch2::Catch2WithMain), where they are found. The configs are stand-ins with those targets, in
# front of what is installed; what the build makes of them is read from its own build files.
set -uo pipefail
source=$(realpath "$1")

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1

failures=0
expect() {  # expect WHAT COMMAND...
  local what=$1
  shift
  if "$@" >out 2>&1; then echo "ok: $what"; else
    echo "FAILED: $what"; cat out; failures=$((failures + 1)); fi
}

upstream() {  # upstream FOLDER CONFIG_FILE TARGET...: a config that gives these targets
  local folder=upstream/lib/cmake/$1 file=$2
  shift 2
  mkdir -p "$folder"
  for target in "$@"; do
    local name=${target#*::}
    cat <<CONFIG
add_library($target SHARED IMPORTED)
set_target_properties($target PROPERTIES
  IMPORTED_LOCATION "$directory/upstream/lib/lib$name.so"
  INTERFACE_INCLUDE_DIRECTORIES "$directory/upstream/include/$name")
CONFIG
    mkdir -p "upstream/include/$name"
    touch "upstream/lib/lib$name.so"
  done >"$folder/$file"
}
upstream LIEF LIEFConfig.cmake LIEF::LIEF
upstream capstone capstone-config.cmake capstone::capstone
upstream zydis zydis-config.cmake Zydis::Zydis
upstream Catch2 Catch2Config.cmake Catch2::Catch2 Catch2::Catch2WithMain
# Catch2's config puts the folder of its Catch.cmake on the module path; the name it defines is all
# that a configure needs.
cat >>upstream/lib/cmake/Catch2/Catch2Config.cmake <<'CONFIG'
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
CONFIG
cat >upstream/lib/cmake/Catch2/Catch.cmake <<'CONFIG'
function(catch_discover_tests)
endfunction()
CONFIG

links() {  # links FILE LIBRARY: the link of FILE in build.ninja names LIBRARY
  sed -n "/^build .*$1: /,/^\$/p" build/build.ninja | grep -F -- "$2"
}
compiles_with() {  # compiles_with OBJECT_FOLDER FOLDER: its objects are compiled with that -isystem
  sed -n "\|^build $1|,/^\$/p" build/build.ninja | grep -F -- "upstream/include/$2"
}
links_only_upstream() {  # links_only_upstream FILE NAME: not the installed one besides
  ! sed -n "/^build .*$1: /,/^\$/p" build/build.ninja | grep -E "/usr/[^ ]*lib$2\.(so|a)"
}

expect "configure" cmake -G Ninja -S "$source" -B build -DCMAKE_PREFIX_PATH="$directory/upstream"
for triple in LIEF:LIEF:probe_verify capstone:capstone:probe_base zydis:Zydis:probe_verify; do
  IFS=: read -r package name library <<<"$triple"
  expect "reprobe links upstream's $package" links reprobe "upstream/lib/lib$name.so"
  expect "and not the installed one" links_only_upstream reprobe "$name"
  expect "$library compiles with upstream's $package" \
    compiles_with "CMakeFiles/$library.dir" "$name"
done
expect "the unit tests link Catch2 3 with its main" \
  links unit_tests upstream/lib/libCatch2WithMain.so

rm -rf build
expect "configure without them" cmake -G Ninja -S "$source" -B build
expect "reprobe links the installed LIEF" links reprobe libLIEF
expect "reprobe links the installed Capstone" links reprobe libcapstone
expect "reprobe links the installed Zydis" links reprobe libZydis

rm -rf build
expect "configure without LIEF" cmake -G Ninja -S "$source" -B build -DREPROBE_LIEF=OFF
links_no_lief() { ! links reprobe LIEF; }
expect "reprobe links no LIEF then" links_no_lief

echo "$failures checks failed"
[ "$failures" -eq 0 ]
