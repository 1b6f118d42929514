// commit() where the file system says no: full, read-only, a size limit, without /proc. The mounts
// are made in a child's own mount namespace and vanish with it.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "catch.hpp"
#include "commit_folder.hpp"

using namespace reprobe;
using namespace reprobe::testing;
namespace fs = std::filesystem;

namespace {

struct ChildResult {
  bool skipped{};
  int signal{};      // that ended it
  std::string text;  // what the body returned
};

constexpr int kSkipped = 77;

// Runs the body in a forked child, in a mount namespace of its own if `mounts`.
ChildResult in_child(const TempFolder& folder, bool mounts,
                     const std::function<std::string()>& body) {
  const fs::path answer = folder / "answer";
  const pid_t child = ::fork();
  if (child == 0) {
    if (mounts && (::unshare(CLONE_NEWNS) != 0 ||
                   ::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr) != 0)) {
      ::_exit(kSkipped);
    }
    write_file(answer, body());
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ChildResult result;
  result.skipped = WIFEXITED(status) && WEXITSTATUS(status) == kSkipped;
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.text = read_file(answer);
  fs::remove(answer);
  if (result.skipped) WARN("skipped: mounting is not permitted");
  return result;
}

void mount_memory(const fs::path& path, const char* options, unsigned long flags = 0) {
  if (::mount("none", path.c_str(), "tmpfs", flags, options) != 0) ::_exit(kSkipped);
}

// "io: cannot write ...: No space left on device | names | first bytes of app"
std::string outcome(const Result<void>& result, const fs::path& folder) {
  std::string text = "done";
  if (!result) {
    text = result.error().code == ErrorCode::io ? "io: " : "other: ";
    text += result.error().message;
  }
  return text + " | " + names_in(folder) + " | " + read_file(folder / "app").substr(0, 4);
}

std::string random_text(std::size_t size) {
  std::mt19937 random(1);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() & 0xff);
  return "0123" + text;
}

}  // namespace

TEST_CASE("on a full file system the input stays and nothing is left", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  const auto result = in_child(folder, true, [&] {
    mount_memory(disk, "size=64k");
    write_file(disk / "app", random_text(40000));
    return outcome(commit_edit({.input = disk / "app"}, 0, "xyz"), disk);
  });
  if (result.skipped) return;
  CHECK(result.text ==
        "io: cannot write " + (disk / "app").native() + ": No space left on device | app | 0123");
}

TEST_CASE("appended bytes that do not fit leave the input as it is", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  const auto result = in_child(folder, true, [&] {
    mount_memory(disk, "size=64k");
    write_file(disk / "app", random_text(20000));
    const auto source = map_file(disk / "app").value();
    Plan plan;
    const auto appended = plan.append(*source, bytes_of(random_text(30000)), Size{1}, "test");
    if (!appended) return std::string("not planned");
    return outcome(commit(plan, *source, {.input = disk / "app", .output = disk / "out"}, accept),
                   disk);
  });
  if (result.skipped) return;
  CHECK(result.text ==
        "io: cannot write " + (disk / "out").native() + ": No space left on device | app | 0123");
}

TEST_CASE("on a read-only file system the error says so", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  write_file(disk / "app", "0123456789");
  const auto result = in_child(folder, true, [&] {
    if (::mount(disk.c_str(), disk.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, disk.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      ::_exit(kSkipped);
    }
    return outcome(commit_edit({.input = disk / "app"}, 0, "xyz"), disk);
  });
  if (result.skipped) return;
  CHECK(result.text ==
        "io: cannot write in the folder " + disk.native() + ": Read-only file system | app | 0123");
}

TEST_CASE("above the limit for file sizes there is an error, not a signal", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  write_file(disk / "app", random_text(40000));
  const auto result = in_child(folder, false, [&] {
    const struct rlimit limit { 20000, 20000 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return outcome(commit_edit({.input = disk / "app"}, 0, "xyz"), disk);
  });
  CHECK(result.signal == 0);
  CHECK(result.text ==
        "io: cannot write " + (disk / "app").native() + ": File too large | app | 0123");
}

TEST_CASE("to another file system, what it cannot keep is left out", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  write_file(folder / "app", "0123456789");
  const auto result = in_child(folder, true, [&] {
    mount_memory(disk, "size=64k", MS_NOSUID);
    const auto done = commit_edit({.input = folder / "app", .output = disk / "app"}, 0, "xyz");
    return outcome(done, disk);
  });
  if (result.skipped) return;
  CHECK(result.text == "done | app | xyz3");
}

// Without /proc an unnamed temporary file cannot be given a name, as where a file system has no
// O_TMPFILE: the named one is used.
TEST_CASE("with a named temporary file", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  write_file(disk / "app", "0123456789");
  std::string during;
  auto check = std::function<Result<void>(const fs::path&)>([&](const fs::path& path) {
    during = path.filename().native() + " " + read_file(path);
    return Result<void>{};
  });
  const auto run = [&](const std::function<std::string()>& body) {
    return in_child(folder, true, [&] {
      mount_memory("/proc", "size=4k");
      return body();
    });
  };
  SECTION("the file is replaced and nothing is left") {
    const auto result = run([&] {
      const auto done = commit_edit({.input = disk / "app"}, 0, "xyz", check);
      return outcome(done, disk) + " | " + during.substr(0, 9) + during.substr(25);
    });
    if (result.skipped) return;
    CHECK(result.text == "done | app | xyz3 | .reprobe-.tmp xyz3456789");
  }
  SECTION("a new output is made") {
    const auto result = run([&] {
      return outcome(commit_edit({.input = disk / "app", .output = disk / "out"}, 0, "xyz"), disk);
    });
    if (result.skipped) return;
    CHECK(result.text == "done | app out | 0123");
  }
  SECTION("an error of the check leaves nothing") {
    check = [](const fs::path&) -> Result<void> { return fail(ErrorCode::io, "", "no"); };
    const auto result =
        run([&] { return outcome(commit_edit({.input = disk / "app"}, 0, "xyz", check), disk); });
    if (result.skipped) return;
    CHECK(result.text == "io: no | app | 0123");
  }
  SECTION("a signal that ends the process leaves nothing") {
    const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP, SIGQUIT);
    CAPTURE(signal);
    check = [&](const fs::path&) -> Result<void> {
      ::raise(signal);
      return {};
    };
    const auto result = run([&] {
      const struct rlimit none {};
      ::setrlimit(RLIMIT_CORE, &none);
      ::signal(signal, SIG_DFL);
      return outcome(commit_edit({.input = disk / "app"}, 0, "xyz", check), disk);
    });
    if (result.skipped) return;
    CHECK(result.signal == signal);
    CHECK(names_in(disk) == "app");
    CHECK(read_file(disk / "app") == "0123456789");
  }
}

TEST_CASE("with an unnamed temporary file a signal ends the process at once", "[commit]") {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  write_file(disk / "app", "0123456789");
  const auto result = in_child(folder, false, [&] {
    ::signal(SIGTERM, SIG_DFL);
    const auto check = [&](const fs::path&) -> Result<void> {
      ::raise(SIGTERM);
      write_file(folder / "survived", "");
      return {};
    };
    return outcome(commit_edit({.input = disk / "app"}, 0, "xyz", check), disk);
  });
  CHECK(result.signal == SIGTERM);
  CHECK(names_in(disk) == "app");
  CHECK(read_file(disk / "app") == "0123456789");
}
