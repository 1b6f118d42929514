// What a committed file keeps besides its bytes. The values are written and read with the system
// calls themselves; what needs root, or an attribute the file system lacks, says so and is skipped.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "catch.hpp"
#include "commit_folder.hpp"

using namespace reprobe;
using namespace reprobe::testing;
namespace fs = std::filesystem;

namespace {

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) status.st_mode = 0;
  return status;
}

mode_t mode_of(const fs::path& path) { return status_of(path).st_mode & 07777; }

bool set_attribute(const fs::path& path, const char* name, const std::string& value) {
  return ::setxattr(path.c_str(), name, value.data(), value.size(), 0) == 0;
}

// "absent" where there is no such attribute; no value in these tests is that word.
std::string attribute(const fs::path& path, const char* name) {
  std::string value(65536, '\0');
  const ssize_t size = ::getxattr(path.c_str(), name, value.data(), value.size());
  if (size < 0) return "absent";
  value.resize(static_cast<std::size_t>(size));
  return value;
}

// linux/posix_acl_xattr.h: version 2, then {tag, permissions, id} of 8 bytes, little-endian:
// owner rwx, user 4321 r-x, group r-x, mask r-x, other ---.
std::string access_list() {
  const auto entry = [](char tag, char perm, std::string id) {
    return std::string{tag, 0, perm, 0} + id;
  };
  const std::string none = "\xff\xff\xff\xff";
  return std::string("\2\0\0\0", 4) + entry(0x01, 7, none) +
         entry(0x02, 5, std::string("\xe1\x10\0\0", 4)) + entry(0x04, 5, none) +
         entry(0x10, 5, none) + entry(0x20, 0, none);
}

// linux/capability.h, struct vfs_cap_data: revision 2 with the effective bit, CAP_NET_RAW (13).
std::string file_capability() {
  return std::string("\1\0\0\2\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
}

// chattr(1), by its own system calls.
unsigned flags_of(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  unsigned flags = 0;
  if (file < 0 || ::ioctl(file, FS_IOC_GETFLAGS, &flags) != 0) flags = 0;
  ::close(file);
  return flags;
}

bool set_flags(const fs::path& path, unsigned flags) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool set = file >= 0 && ::ioctl(file, FS_IOC_SETFLAGS, &flags) == 0;
  ::close(file);
  return set && flags_of(path) == flags;
}

bool is_root() { return ::geteuid() == 0; }

// Runs the body as an unprivileged user; gives what it returns (0 .. 254), 255 where that failed.
template <typename Body>
int as_nobody(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(255);
    ::_exit(body());
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("the mode is kept", "[commit]") {
  const TempFolder folder;
  const mode_t mode = GENERATE(0644U, 0755U, 0500U, 0711U, 04755U, 02755U, 06711U);
  const bool in_place = GENERATE(true, false);
  CAPTURE(mode, in_place);
  write_file(folder / "app", "0123456789");
  REQUIRE(::chmod((folder / "app").c_str(), mode) == 0);
  const mode_t umask = ::umask(077);
  CommitOptions options{.input = folder / "app"};
  if (!in_place) options.output = folder / "out";
  const auto result = commit_edit(options, 3, "xyz");
  ::umask(umask);
  REQUIRE(result);
  CHECK(mode_of(options.output.value_or(options.input)) == mode);
}

TEST_CASE("dates are kept on request alone", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const std::array<struct timespec, 2> old{timespec{1000000000, 123456789},
                                           timespec{1100000000, 987654321}};
  REQUIRE(::utimensat(AT_FDCWD, (folder / "app").c_str(), old.data(), 0) == 0);
  const bool keep = GENERATE(true, false);
  CAPTURE(keep);
  REQUIRE(commit_edit({.input = folder / "app", .preserve_dates = keep}, 3, "xyz"));
  const struct stat status = status_of(folder / "app");
  CHECK((status.st_mtim.tv_sec == 1100000000) == keep);
  if (keep) {
    CHECK(status.st_mtim.tv_nsec == 987654321);
    CHECK(status.st_atim.tv_sec >= 1000000000);
  }
}

TEST_CASE("extended attributes are kept", "[commit]") {
  const TempFolder folder;
  struct Case {
    const char* name;
    std::string value;
  };
  const auto tried =
      GENERATE(Case{"user.origin", "built here"}, Case{"user.empty", ""},
               Case{"user.large", std::string(2000, 'x')}, Case{"trusted.note", "kept"},
               Case{"system.posix_acl_access", access_list()},
               Case{"security.capability", file_capability()}, Case{"security.label", "a:b:c"});
  const bool in_place = GENERATE(true, false);
  CAPTURE(tried.name, in_place);
  write_file(folder / "app", "0123456789");
  REQUIRE(::chmod((folder / "app").c_str(), 0750) == 0);
  if (!set_attribute(folder / "app", tried.name, tried.value)) {
    WARN("skipped: cannot set " << tried.name << " here: " << std::strerror(errno));
    return;
  }
  CommitOptions options{.input = folder / "app"};
  if (!in_place) options.output = folder / "out";
  REQUIRE(commit_edit(options, 3, "xyz"));
  const fs::path result = options.output.value_or(options.input);
  CHECK(read_file(result) == "012xyz6789");
  CHECK(attribute(result, tried.name) == tried.value);
  CHECK(mode_of(result) == 0750);
}

TEST_CASE("the folder's default access list does not reach the file", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  if (!set_attribute(folder.path(), "system.posix_acl_default", access_list())) {
    WARN("skipped: the file system has no access lists: " << std::strerror(errno));
    return;
  }
  write_file(folder / "new", "");
  REQUIRE(attribute(folder / "new", "system.posix_acl_access") != "absent");
  REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz"));
  CHECK(attribute(folder / "app", "system.posix_acl_access") == "absent");
}

TEST_CASE("in place, the flags of chattr are kept", "[commit]") {
  const TempFolder folder;
  const unsigned flag = GENERATE(FS_NODUMP_FL, FS_NOATIME_FL, FS_SYNC_FL, FS_JOURNAL_DATA_FL,
                                 FS_COMPR_FL, FS_NOCOW_FL);
  CAPTURE(flag);
  write_file(folder / "app", "0123456789");
  const unsigned before = flags_of(folder / "app");
  if (!set_flags(folder / "app", before | flag)) {
    WARN("skipped: the file system has no such flag: " << flag);
    return;
  }
  REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz"));
  CHECK(read_file(folder / "app") == "012xyz6789");
  CHECK(flags_of(folder / "app") == (before | flag));
}

TEST_CASE("in place, what the folder gives new files does not reach the file", "[commit]") {
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  const unsigned before = flags_of(folder / "app");
  if (!set_flags(folder.path(), flags_of(folder.path()) | FS_NODUMP_FL)) {
    WARN("skipped: the file system has no flags");
    return;
  }
  write_file(folder / "new", "");
  if ((flags_of(folder / "new") & FS_NODUMP_FL) == 0) WARN("no flag is inherited here");
  REQUIRE(commit_edit({.input = folder / "app"}, 3, "xyz"));
  CHECK(flags_of(folder / "app") == before);
}

TEST_CASE("a file that may not be replaced is refused in place", "[commit]") {
  const TempFolder folder;
  const unsigned flag = GENERATE(FS_IMMUTABLE_FL, FS_APPEND_FL);
  CAPTURE(flag);
  write_file(folder / "app", "0123456789");
  const unsigned before = flags_of(folder / "app");
  if (!set_flags(folder / "app", before | flag)) {
    WARN("skipped: needs root, and a file system with such flags");
    return;
  }
  const auto refused = commit_edit({.input = folder / "app"}, 3, "xyz");
  const auto elsewhere = commit_edit({.input = folder / "app", .output = folder / "out"}, 3, "xyz");
  const auto checked = check_committable({.input = folder / "app"});
  REQUIRE(set_flags(folder / "app", before));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::refused);
  CHECK(refused.error().hint.find("chattr -") == 0);
  CHECK_FALSE(checked);
  CHECK(elsewhere);
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(read_file(folder / "out") == "012xyz6789");
  CHECK(names_in(folder.path()) == "app out");
}

TEST_CASE("in place, what this user may not set is refused", "[commit]") {
  if (!is_root()) {
    WARN("skipped: needs root, to become another user");
    return;
  }
  const TempFolder folder;
  const fs::path app = folder / "app";
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  write_file(app, "0123456789");
  REQUIRE(::chown(app.c_str(), 65534, 65534) == 0);
  std::string named;
  SECTION("a flag that takes CAP_SYS_RESOURCE") {
    if (!set_flags(app, flags_of(app) | FS_JOURNAL_DATA_FL)) {
      WARN("skipped: the file system has no such flag");
      return;
    }
    named = "its flag j (chattr)";
  }
  SECTION("a capability") {
    REQUIRE(set_attribute(app, "security.capability", file_capability()));
    named = "security.capability";
  }
  SECTION("an attribute of a security module") {
    if (!set_attribute(app, "security.label", "a:b:c")) return;
    named = "security.label";
  }
  if (named.empty()) return;
  const int code = as_nobody([&] {
    const auto result = commit_edit({.input = app}, 3, "xyz");
    return !result && result.error().code == ErrorCode::refused &&
                   result.error().message.find(named) != std::string::npos
               ? 0
               : 1;
  });
  CAPTURE(named);
  CHECK(code == 0);
  CHECK(read_file(app) == "0123456789");
  CHECK(names_in(folder.path()) == "app");
}

TEST_CASE("a signed file is refused, or loses its signature on request", "[commit]") {
  const TempFolder folder;
  const char* name = GENERATE("security.ima", "security.evm");
  const bool in_place = GENERATE(true, false);
  CAPTURE(name, in_place);
  write_file(folder / "app", "0123456789");
  if (!set_attribute(folder / "app", name, std::string("\4\4sixteen bytes...", 18))) {
    WARN("skipped: cannot set " << name << " here: " << std::strerror(errno));
    return;
  }
  CommitOptions options{.input = folder / "app"};
  if (!in_place) options.output = folder / "out";
  const auto refused = commit_edit(options, 3, "xyz");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::refused);
  CHECK(refused.error().message.find(name) != std::string::npos);
  CHECK(refused.error().hint.find("--drop-signature") != std::string::npos);
  CHECK(check_committable(options).error().code == ErrorCode::refused);
  CHECK(read_file(folder / "app") == "0123456789");
  CHECK(names_in(folder.path()) == "app");

  options.allow_signature = true;
  REQUIRE(check_committable(options));
  REQUIRE(commit_edit(options, 3, "xyz"));
  CHECK(attribute(options.output.value_or(options.input), name) == "absent");
}

TEST_CASE("the owner is kept by root", "[commit]") {
  if (!is_root()) {
    WARN("skipped: needs root");
    return;
  }
  const TempFolder folder;
  const bool in_place = GENERATE(true, false);
  CAPTURE(in_place);
  write_file(folder / "app", "0123456789");
  REQUIRE(::chown((folder / "app").c_str(), 1234, 2345) == 0);
  REQUIRE(::chmod((folder / "app").c_str(), 06755) == 0);
  REQUIRE(set_attribute(folder / "app", "security.capability", file_capability()));
  CommitOptions options{.input = folder / "app"};
  if (!in_place) options.output = folder / "out";
  REQUIRE(commit_edit(options, 3, "xyz"));
  const fs::path result = options.output.value_or(options.input);
  CHECK(status_of(result).st_uid == 1234);
  CHECK(status_of(result).st_gid == 2345);
  CHECK(mode_of(result) == 06755);
  CHECK(attribute(result, "security.capability") == file_capability());
}

TEST_CASE("another user's file: refused in place, without its privileges elsewhere", "[commit]") {
  if (!is_root()) {
    WARN("skipped: needs root, to become another user");
    return;
  }
  const TempFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  write_file(folder / "app", "0123456789");
  REQUIRE(::chmod((folder / "app").c_str(), 06755) == 0);
  REQUIRE(set_attribute(folder / "app", "security.capability", file_capability()));
  const fs::path app = folder / "app";
  const fs::path out = folder / "out";

  const int in_place = as_nobody([&] {
    const auto result = commit_edit({.input = app}, 3, "xyz");
    return !result && result.error().code == ErrorCode::refused &&
                   result.error().message.find("its owner 0:0") != std::string::npos &&
                   result.error().hint.find("-o") != std::string::npos
               ? 0
               : 1;
  });
  CHECK(in_place == 0);
  CHECK(read_file(app) == "0123456789");
  CHECK(names_in(folder.path()) == "app");

  const int elsewhere =
      as_nobody([&] { return commit_edit({.input = app, .output = out}, 3, "xyz") ? 0 : 1; });
  CHECK(elsewhere == 0);
  CHECK(read_file(out) == "012xyz6789");
  CHECK(status_of(out).st_uid == 65534);
  CHECK(mode_of(out) == 0755);
  CHECK(attribute(out, "security.capability") == "absent");
}

TEST_CASE("a folder that may not be written is an error", "[commit]") {
  if (!is_root()) {
    WARN("skipped: needs root, to become another user");
    return;
  }
  const TempFolder folder;
  write_file(folder / "app", "0123456789");
  REQUIRE(::chmod((folder / "app").c_str(), 0666) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const fs::path app = folder / "app";
  const int code = as_nobody([&] {
    const auto result = commit_edit({.input = app}, 3, "xyz");
    return !result && result.error().code == ErrorCode::io &&
                   result.error().message == "cannot write in the folder " +
                                                 app.parent_path().native() + ": Permission denied"
               ? 0
               : 1;
  });
  CHECK(code == 0);
  CHECK(read_file(app) == "0123456789");
}

TEST_CASE("a folder that may be written but not listed will do", "[commit]") {
  if (!is_root()) {
    WARN("skipped: needs root, to become another user");
    return;
  }
  const TempFolder folder;
  const fs::path app = folder / "app";
  write_file(app, "0123456789");
  REQUIRE(::chown(app.c_str(), 65534, 65534) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0733) == 0);
  CHECK(as_nobody([&] { return commit_edit({.input = app}, 3, "xyz") ? 0 : 1; }) == 0);
  CHECK(read_file(app) == "012xyz6789");
  CHECK(names_in(folder.path()) == "app");
}
