// commit(): which file is written, what is refused, and that a failure leaves no trace. What a
// file has besides its bytes is in commit_attributes_test.cpp, kills are in commit_kill_test.cpp.
#include "libprobe/rewrite/commit.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <string>

#include "catch.hpp"
#include "commit_folder.hpp"

using namespace reprobe;
using namespace reprobe::testing;
namespace fs = std::filesystem;

namespace {

ino_t inode_of(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

Result<void> complain(const fs::path&) {
  return fail(ErrorCode::internal, ".text", "the check found something");
}

}  // namespace

TEST_CASE("in place, the file is replaced as a whole and nothing else appears", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const ino_t before = inode_of(folder / "app");
  REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz"));
  CHECK(read_file(folder / "app") == "012xyz6789");
  CHECK(inode_of(folder / "app") != before);
  CHECK(names_in(folder.path()) == "app");
}

TEST_CASE("appended bytes follow the input's", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const auto source = map_file(folder / "app").value();
  Plan plan;
  REQUIRE(plan.append(*source, bytes_of("tail"), Size{4}, "test"));
  REQUIRE(plan.replace(*source, FileOffset{0}, bytes_of("x"), "test"));
  REQUIRE(commit(plan, *source, {.input = folder / "app"}, accept));
  CHECK(read_file(folder / "app") == std::string("x123456789\0\0tail", 16));
}

TEST_CASE("with an output the input stays as it is", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const bool exists = GENERATE(false, true);
  CAPTURE(exists);
  if (exists) write_file(folder / "out", "something longer than the input");
  const ino_t before = inode_of(folder / "app");
  REQUIRE(commit_edit({.input = folder / "app", .output = folder / "out"}, 3, "xyz"));
  CHECK(read_file(folder / "out") == "012xyz6789");
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(inode_of(folder / "app") == before);
  CHECK(names_in(folder.path()) == "app out");
}

TEST_CASE("an output without a folder in its name is made in the current one", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const auto result = commit_edit({.input = "app", .output = "out"}, 0, "x");
  fs::current_path(before);
  REQUIRE(result);
  CHECK(read_file(folder / "out") == "x123456789");
}

TEST_CASE("a plan without edits writes nothing in place", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  fs::create_symlink("app", folder / "link");
  const ino_t before = inode_of(folder / "app");
  const auto source = map_file(folder / "app").value();
  REQUIRE(commit(Plan{}, *source, {.input = folder / "app"}, complain));
  REQUIRE(commit(Plan{}, *source, {.input = folder / "app", .output = folder / "link"}, complain));
  CHECK(inode_of(folder / "app") == before);
  CHECK(names_in(folder.path()) == "app link");
}

TEST_CASE("a plan without edits copies the file to another output", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const auto source = map_file(folder / "app").value();
  const CommitOptions options{.input = folder / "app", .output = folder / "out"};
  CHECK_FALSE(commit(Plan{}, *source, options, complain));
  CHECK(names_in(folder.path()) == "app");
  REQUIRE(commit(Plan{}, *source, options, accept));
  CHECK(read_file(folder / "out") == "0123456789");
}

TEST_CASE("the check sees the finished file, in a forked child too", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  REQUIRE(::chmod((folder / "app").c_str(), 0750) == 0);
  std::string seen;
  mode_t mode = 0;
  bool same_in_child = false;
  const auto check = [&](const fs::path& path) -> Result<void> {
    seen = read_file(path);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) mode = status.st_mode & 07777;
    const pid_t child = ::fork();
    if (child == 0) ::_exit(read_file(path) == seen ? 0 : 1);
    int ended = -1;
    same_in_child = ::waitpid(child, &ended, 0) == child && ended == 0;
    return {};
  };
  REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz", check));
  CHECK(seen == "012xyz6789");
  CHECK(mode == 0750);
  CHECK(same_in_child);
}

TEST_CASE("an error of the check stops the rename and leaves no trace", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const ino_t before = inode_of(folder / "app");
  const bool in_place = GENERATE(true, false);
  CAPTURE(in_place);
  CommitOptions options{.input = folder / "app"};
  if (!in_place) options.output = folder / "out";
  const auto result = commit_edit(options, 3, "xyz", complain);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::internal);
  CHECK(result.error().where == ".text");
  CHECK(result.error().message == "the check found something");
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(inode_of(folder / "app") == before);
  CHECK(names_in(folder.path()) == "app");
}

TEST_CASE("a symbolic link stays and its target is rewritten", "[commit]") {
  const TempFolder folder;
  fs::create_directory(folder / "lib");
  write_file(folder / "lib/app.1", "0123456789");
  write_file(folder / "other", "abc");
  fs::create_symlink("lib/app.1", folder / "app");
  SECTION("as the input") { REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz")); }
  SECTION("as the output, with another input") {
    write_file(folder / "input", "012345678_");
    REQUIRE(commit_edit({.input = folder / "input", .output = folder / "app"}, 3, "xyz6789"));
    fs::remove(folder / "input");
  }
  SECTION("as the output that leads to the input") {
    REQUIRE(commit_edit({.input = folder / "lib/app.1", .output = folder / "app"}, 3, "xyz"));
  }
  CHECK(fs::read_symlink(folder / "app") == "lib/app.1");
  CHECK(read_file(folder / "lib/app.1") == "012xyz6789");
  CHECK(names_in(folder.path()) == "app lib other");
  CHECK(names_in(folder / "lib") == "app.1");
}

TEST_CASE("a file with several names is refused in place", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  fs::create_hard_link(folder / "app", folder / "other");
  CommitOptions options{.input = folder / "app"};
  SECTION("without an output") {}
  SECTION("with itself as the output") { options.output = folder / "app"; }
  SECTION("with its other name as the output") { options.output = folder / "other"; }

  const auto result = commit_edit(options, 3, "xyz");
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::refused);
  CHECK(result.error().message.find("2 names") != std::string::npos);
  CHECK(result.error().hint.find("--break-hardlinks") != std::string::npos);
  CHECK(check_committable(options).error().code == ErrorCode::refused);
  CHECK(read_file(folder / "app") == "0123456789");

  options.allow_hard_links = true;
  CHECK(check_committable(options));
  REQUIRE(commit_edit(options, 3, "xyz"));
  const bool other = options.output == folder / "other";
  CHECK(read_file(folder / "app") == (other ? "0123456789" : "012xyz6789"));
  CHECK(read_file(folder / "other") == (other ? "012xyz6789" : "0123456789"));
}

TEST_CASE("a file with several names may be the input of another output", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  fs::create_hard_link(folder / "app", folder / "other");
  REQUIRE(commit_edit({.input = folder / "app", .output = folder / "out"}, 3, "xyz"));
  CHECK(read_file(folder / "out") == "012xyz6789");
}

TEST_CASE("an input that is not a regular file is unreadable", "[commit]") {
  const TempFolder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  const std::string name = GENERATE("missing", "fifo", ".");
  CAPTURE(name);
  const auto result = check_committable({.input = folder / name});
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::unreadable);
  CHECK_FALSE(file_stamp(folder / "missing"));
}

TEST_CASE("an output that cannot be written is an error that names it", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  fs::create_directory(folder / "sub");
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  fs::create_symlink("nowhere", folder / "dangling");
  const std::string before = names_in(folder.path());
  struct Case {
    const char* output;
    const char* message;
  };
  const auto tried = GENERATE(Case{"sub", "it exists and is not a regular file"},
                              Case{"fifo", "it exists and is not a regular file"},
                              Case{"dangling", "it is a symbolic link to a missing file"},
                              Case{"no/out", "No such file or directory"},
                              Case{"app/out", "Not a directory"}, Case{"new/", "Is a directory"});
  CAPTURE(tried.output);
  const auto result =
      commit_edit({.input = folder / "app", .output = folder / tried.output}, 3, "xyz");
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::io);
  CHECK(result.error().message.find(tried.message) != std::string::npos);
  CHECK(result.error().message.find(folder.path().native()) != std::string::npos);
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(names_in(folder.path()) == before);
}

TEST_CASE("an input that changes meanwhile is refused", "[commit]") {
  const TempFolder folder;
  const fs::path app = folder / "app";
  write_file(app, "0123456789");
  // So that a write within one tick of the file system's clock is seen.
  fs::last_write_time(app, fs::file_time_type::clock::now() - std::chrono::hours(1));
  CommitOptions options{.input = app, .stamp = file_stamp(app).value()};
  const auto rebuild = [&] {
    write_file(folder / "new", "ABCDEFGHIJ");
    fs::rename(folder / "new", app);
  };
  const auto source = map_file(app).value();
  Plan plan;
  REQUIRE(plan.replace(*source, FileOffset{3}, bytes_of("xyz"), "test"));
  std::string kept = "ABCDEFGHIJ";
  auto check = std::function<Result<void>(const fs::path&)>(accept);
  SECTION("replaced after it was mapped") { rebuild(); }
  SECTION("replaced after it was mapped, without a stamp") {
    options.stamp.reset();
    rebuild();
  }
  SECTION("written to after it was mapped") { write_file(app, kept = "012345678_"); }
  SECTION("grown after it was mapped, without a stamp") {
    options.stamp.reset();
    write_file(app, kept = "0123456789+");
  }
  SECTION("replaced during the check") {
    check = [&](const fs::path&) -> Result<void> { return rebuild(), Result<void>{}; };
  }
  SECTION("removed during the check") {
    kept = "";
    check = [&](const fs::path&) -> Result<void> { return fs::remove(app), Result<void>{}; };
  }
  const auto result = commit(plan, *source, options, check);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::refused);
  CHECK(result.error().message.find("was changed by another program") != std::string::npos);
  CHECK(read_file(app) == kept);
  CHECK(names_in(folder.path()) == (kept.empty() ? "" : "app"));
}

TEST_CASE("a plan that was made from other bytes is not written", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const auto other = memory_source(bytes_of("0123_56789"));
  Plan plan;
  REQUIRE(plan.replace(*other, FileOffset{4}, bytes_of("x"), "test"));
  const auto source = map_file(folder / "app").value();
  const auto result = commit(plan, *source, {.input = folder / "app"}, accept);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::internal);
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(names_in(folder.path()) == "app");
}

TEST_CASE("temporary files of killed runs are removed, all others stay", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  write_file(folder / ".reprobe-0123456789abcdef.tmp", "left behind");
  write_file(folder / ".reprobe-fedcba9876543210.tmp", "of a run that is alive");
  write_file(folder / ".reprobe-notes.tmp", "somebody's");
  write_file(folder / ".reprobe-0123456789abcdeg.tmp", "somebody's");
  fs::create_directory(folder / ".reprobe-0000000000000000.tmp");
  fs::create_symlink("app", folder / ".reprobe-1111111111111111.tmp");
  const int alive = ::open((folder / ".reprobe-fedcba9876543210.tmp").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(alive, LOCK_EX | LOCK_NB) == 0);
  const auto result = commit_edit({.input = folder / "app"}, 3, "xyz");
  ::close(alive);
  REQUIRE(result);
  CHECK(names_in(folder.path()) ==
        ".reprobe-0000000000000000.tmp .reprobe-0123456789abcdeg.tmp "
        ".reprobe-1111111111111111.tmp .reprobe-fedcba9876543210.tmp .reprobe-notes.tmp app");
  CHECK(read_file(folder / "app") == "012xyz6789");
}

TEST_CASE("a sparse file stays sparse", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  constexpr std::uint64_t kSize = std::uint64_t{5} << 30;
  fs::resize_file(folder / "app", kSize);
  {
    std::fstream file(folder / "app", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(kSize - 4));
    file << "tail";
  }
  const auto source = map_file(folder / "app").value();
  Plan plan;
  REQUIRE(plan.replace(*source, FileOffset{3}, bytes_of("xyz"), "test"));
  REQUIRE(plan.replace(*source, FileOffset{kSize / 2}, bytes_of("middle"), "test"));
  REQUIRE(plan.append(*source, bytes_of("end"), Size{1}, "test"));
  REQUIRE(commit(plan, *source, {.input = folder / "app", .output = folder / "out"}, accept));
  CHECK(fs::file_size(folder / "out") == kSize + 3);
  struct stat status {};
  REQUIRE(::stat((folder / "out").c_str(), &status) == 0);
  CHECK(status.st_blocks * 512 < 1024 * 1024);
  const auto written = map_file(folder / "out").value();
  const auto text = [&](std::uint64_t at, std::uint64_t size) {
    return std::string(as_text(written->slice(FileOffset{at}, Size{size}, "test").value()));
  };
  CHECK(text(0, 10) == "012xyz6789");
  CHECK(text(kSize / 2, 6) == "middle");
  CHECK(text(kSize - 4, 7) == "tailend");
}
