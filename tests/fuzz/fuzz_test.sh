#!/bin/bash
# fuzz_test.sh SOURCE BUILD [SECONDS]: builds the fuzz target of the tree SOURCE in the folder
# BUILD, replays the inputs that once found something and files that are costly to read, then fuzzes
# from small valid files: SECONDS long with a new seed or, without SECONDS, a number of runs with
# always the same seed, so that the same tree gives the same answer twice. What it finds is kept in
# BUILD/found.
set -uo pipefail
source=$(realpath "$1")
build=$2
length=(-seed=1 -runs=1500)
[ $# -lt 3 ] || length=(-max_total_time="$3")

skip() { echo "SKIP: $*"; exit 77; }

for tool in cmake ninja python3 clang++-14; do
  command -v "$tool" >/dev/null || skip "no $tool"
done
mkdir -p "$build"
build=$(realpath "$build")
cd "$build" || exit 1
echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' >probe.cpp
clang++-14 -fsanitize=fuzzer,address probe.cpp -o probe 2>probe.log ||
  skip "clang++-14 cannot link libFuzzer (libclang-rt-14-dev)"

launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
if ! (cd "$source" && cmake --preset fuzz -B "$build" "${launcher[@]}") >configure.log 2>&1; then
  cat configure.log
  exit 1
fi
if ! cmake --build . --target fuzz_file >build.log 2>&1; then
  tail -n 40 build.log
  exit 1
fi

rm -rf seeds costly run
mkdir -p found run
python3 "$source/tests/fuzz/make_seeds.py" seeds || exit 1
python3 "$source/tests/fuzz/make_costly.py" costly || exit 1
limits=(-timeout=10 -rss_limit_mb=2048 -max_len=16384 -artifact_prefix="$build/found/")

# Each file is run once, by its name.
replay() {  # replay SECONDS MIB FILE...
  local seconds=$1 memory=$2
  shift 2
  if ! tests/fuzz/fuzz_file -runs=1 -timeout="$seconds" -rss_limit_mb="$memory" "$@" \
    >replay.log 2>&1; then
    tail -n 60 replay.log
    echo "FAILED: the last file above"
    exit 1
  fi
  echo "ok: $#: ${*##*/}" | cut -c1-78
}
replay 10 2048 "$source"/tests/fuzz/corpus/* seeds/*
# Each takes up to ten seconds and some 100 MiB, beside what the sanitizer holds back. Without what
# keeps one cheap it takes more than 30 times that.
for file in costly/*; do replay 60 1024 "$file"; done

if ! tests/fuzz/fuzz_file "${length[@]}" -print_final_stats=1 "${limits[@]}" run \
  "$source/tests/fuzz/corpus" seeds >fuzz.log 2>&1; then
  tail -n 60 fuzz.log
  echo "FAILED: the input is in $build/found"
  exit 1
fi
grep -E 'DONE|stat::' fuzz.log
