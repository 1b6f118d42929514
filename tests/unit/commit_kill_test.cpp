// SIGKILL at any moment: there is the old file or the new one, and no other file. A child commits
// in a loop, flipping the file between two contents, and is killed after a random time.
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <random>
#include <string>

#include "catch.hpp"
#include "commit_folder.hpp"

using namespace reprobe;
using namespace reprobe::testing;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMiddle = 100000;

std::string contents(char letter) {
  std::string text(2 * kMiddle, '.');
  text.front() = text[kMiddle] = text.back() = letter;
  return text;
}

Result<void> flip(const fs::path& app) {
  const auto source = map_file(app);
  if (!source) return tl::unexpected(source.error());
  const auto first = (*source)->slice(FileOffset{0}, Size{1}, "letter");
  if (!first) return tl::unexpected(first.error());
  const std::string letter = as_text(*first) == "A" ? "B" : "A";
  Plan plan;
  for (const std::size_t at : {std::size_t{0}, kMiddle, 2 * kMiddle - 1}) {
    if (auto planned = plan.replace(**source, FileOffset{at}, bytes_of(letter), "flip"); !planned) {
      return planned;
    }
  }
  return commit(plan, **source, {.input = app}, accept);
}

struct Tally {
  int mixed{};   // neither the one nor the other content
  int litter{};  // another file is there
  int flips{};   // the content is another than before
  int ended{};   // the child ended on its own
  bool skipped{};
};

// A killed process may leave the child that renames for it: this one becomes its parent.
void wait_for_all() {
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

bool hide_proc() {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr) == 0 &&
         ::mount("none", "/proc", "tmpfs", 0, "size=4k") == 0;
}

Tally kill_often(const fs::path& folder, int kills, bool without_proc) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const fs::path app = folder / "app";
  // Kills are spread over about two commits, whatever the disk costs here.
  const auto start = std::chrono::steady_clock::now();
  constexpr int kSamples = 4;
  Tally tally;
  for (int i = 0; i < kSamples; ++i) tally.ended += flip(app) ? 0 : 1;
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  std::mt19937 random(20240607);
  std::uniform_int_distribution<useconds_t> microseconds(
      0, static_cast<useconds_t>(2 * took.count() / kSamples));
  char last = 'A';
  for (int i = 0; i < kills && !tally.skipped; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (without_proc && !hide_proc()) ::_exit(77);
      while (flip(app)) {
      }
      ::_exit(1);
    }
    ::usleep(microseconds(random));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    wait_for_all();
    tally.skipped = WIFEXITED(status) && WEXITSTATUS(status) == 77;
    if (WIFEXITED(status)) ++tally.ended;
    const std::string text = read_file(app);
    if (text != contents('A') && text != contents('B')) ++tally.mixed;
    if (names_in(folder) != "app") ++tally.litter;
    if (!text.empty() && text.front() != last) ++tally.flips, last = text.front();
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  return tally;
}

bool has_unnamed_files(const fs::path& app) {
  bool unnamed = false;
  const auto look = [&](const fs::path& path) -> Result<void> {
    unnamed = path.native().starts_with("/proc/");
    return fail(ErrorCode::io, "", "only looking");
  };
  static_cast<void>(commit_edit({.input = app}, 0, "B", look));
  return unnamed;
}

}  // namespace

TEST_CASE("killed at any moment: the old file or the new one, and no other", "[commit][kill]") {
  const TempFolder folder;
  write_file(folder / "app", contents('A'));
  if (!has_unnamed_files(folder / "app")) {
    WARN("skipped: the file system of " << folder.path() << " has no O_TMPFILE");
    return;
  }
  const Tally tally = kill_often(folder.path(), 300, false);
  CHECK(tally.mixed == 0);
  CHECK(tally.litter == 0);
  CHECK(tally.ended == 0);
  CHECK(tally.flips > 0);
}

TEST_CASE("killed with a named temporary file: the next run removes it", "[commit][kill]") {
  const TempFolder folder;
  write_file(folder / "app", contents('A'));
  const Tally tally = kill_often(folder.path(), 100, true);
  if (tally.skipped) {
    WARN("skipped: mounting is not permitted");
    return;
  }
  CHECK(tally.mixed == 0);
  CHECK(tally.ended == 0);
  REQUIRE(flip(folder / "app"));
  CHECK(names_in(folder.path()) == "app");
}
