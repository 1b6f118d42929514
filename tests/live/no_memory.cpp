// no_memory FILE: memory runs out at one allocation after another of list, audit, plan, verify and
// commit. Each must give an Error or, where the allocation can be done without, what it gives
// otherwise; an exception that leaves one, or that meets a noexcept, ends this program.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <reprobe/reprobe.hpp>
#include <string>

namespace {

long allocations = 0;
long failing = -1;      // the number of the allocation that fails; -1: none
bool for_good = false;  // and all after it

}  // namespace

void* operator new(std::size_t size) {
  const long number = allocations++;
  if (failing >= 0 && (number == failing || (for_good && number > failing))) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace reprobe;

int failures = 0;
long runs = 0;
long errors = 0;

// `function` gives whether it succeeded; `undo` makes the next call find what the first found.
void starve(
    const char* name, const std::function<bool()>& function,
    const std::function<void()>& undo = [] {}) {
  constexpr long kPlaces = 150;
  allocations = 0;
  if (!function()) {
    std::printf("FAILED: %s fails with all memory there\n", name);
    ++failures;
    return;
  }
  undo();
  const long count = allocations;
  const long step = std::max(1L, count / kPlaces);
  long refused = 0;
  for (const bool all : {false, true}) {
    for (long at = 0; at < count; at += step) {
      allocations = 0;
      failing = at;
      for_good = all;
      const bool good = function();
      failing = -1;
      refused += good ? 0 : 1;
      ++runs;
      undo();
    }
  }
  std::printf("%s: %ld allocations, %ld errors\n", name, count, refused);
  if (refused == 0) {
    std::printf("FAILED: %s never runs out of memory\n", name);
    ++failures;
  }
  errors += refused;
}

template <typename Value>
bool given(const Result<Value>& result) {
  if (!result && result.error().message.empty()) {
    std::printf("FAILED: an error without a message\n");
    ++failures;
  }
  return result.has_value();
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path path = argv[1];
  const std::filesystem::path fixed = path.string() + ".fixed";
  const std::filesystem::path again = path.string() + ".again";
  const auto input = open_input(path);
  if (!input) return 1;
  const FixRequest request;
  const auto planned = plan(*input, request);
  if (!planned || planned->plan().empty()) return 1;
  const WriteRequest to_fixed{.output = fixed, .second_opinion = SecondOpinionMode::never};
  if (!commit(*input, *planned, to_fixed)) return 1;
  const VerifyRequest check{.proof = planned->proof, .second_opinion = SecondOpinionMode::never};
  const WriteRequest to_again{.output = again, .second_opinion = SecondOpinionMode::never};
  const std::string whole = contents(fixed);

  starve("open_elf", [&] { return given(open_elf(path)); });
  starve("list", [&] { return given(list(input->file)); });
  starve("audit", [&] { return given(audit(input->file, {})); });
  starve("plan fix", [&] { return given(plan(*input, request)); });
  starve("plan sled", [&] { return given(plan(*input, SledRequest{})); });
  starve("plan guards", [&] { return given(plan(*input, GuardsRequest{})); });
  starve("plan relativize", [&] { return given(plan(*input, RelativizeRequest{})); });
  starve("verify", [&] { return given(verify(path, fixed, check)); });
  // After an error there is no new file, and after a success all of it.
  bool done = false;
  starve(
      "commit", [&] { return done = given(commit(*input, *planned, to_again)); },
      [&] {
        if (contents(again) != (done ? whole : "")) {
          std::printf("FAILED: %s\n", done ? "not the whole file" : "a file after an error");
          ++failures;
        }
        std::filesystem::remove(again);
      });
  std::printf("%ld runs, %ld errors, %d failures\n", runs, errors, failures);
  return failures == 0 ? 0 : 1;
}
