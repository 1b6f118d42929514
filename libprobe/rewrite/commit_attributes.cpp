#include "libprobe/rewrite/commit_attributes.hpp"

#include <fmt/format.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "libprobe/rewrite/commit_inode.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kAccessList = "system.posix_acl_access";

tl::unexpected<Error> cannot_keep(std::string_view what, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  return fail(full ? ErrorCode::io : ErrorCode::refused, "",
              fmt::format("the rewritten file cannot keep {}: {}", what,
                          std::generic_category().message(number)),
              "run as the file's owner or as root, or write to another file with -o");
}

// Linux limits a value, and the list of names, to XATTR_SIZE_MAX and XATTR_LIST_MAX: 64 KiB.
constexpr std::size_t kMaxAttribute = 65536;

// Error: the errno value, ENODATA where there is no such attribute.
tl::expected<std::string, int> read_attribute(int fd, const std::string& name) {
  std::string value(kMaxAttribute, '\0');
  const ssize_t size = ::fgetxattr(fd, name.c_str(), value.data(), value.size());
  if (size < 0) return tl::unexpected(errno);
  value.resize(static_cast<std::size_t>(size));
  return value;
}

// trusted.* is listed for CAP_SYS_ADMIN alone (xattr(7)), and nothing tells others of it.
tl::expected<std::vector<std::string>, int> attribute_names(int fd) {
  std::string list(kMaxAttribute, '\0');
  const ssize_t size = ::flistxattr(fd, list.data(), list.size());
  // A file system without attributes.
  if (size < 0 && errno != ENOTSUP && errno != ENOSYS) return tl::unexpected(errno);
  std::vector<std::string> names;
  for (std::size_t at = 0; size > 0 && at < static_cast<std::size_t>(size);) {
    names.emplace_back(list.c_str() + at);
    at += names.back().size() + 1;
  }
  std::ranges::sort(names);  // the order of the list is the file system's
  return names;
}

// xattr(7): these are the name spaces of files. Others are views of the file system itself.
bool is_carried(std::string_view name) {
  if (name == "security.ima" || name == "security.evm") return false;
  constexpr std::array<std::string_view, 4> kSpaces{"security.", "system.", "trusted.", "user."};
  return std::ranges::any_of(kSpaces, [&](auto space) { return name.starts_with(space); });
}

// Not allowed to this user, or not a thing of the output's file system.
bool is_not_possible(int number) {
  return number == EPERM || number == EACCES || number == ENOTSUP || number == EINVAL ||
         number == EROFS;
}

Result<void> carry_extended(int input, int output, bool must_keep) {
  // From the folder's default list; the input's own, if it has one, is set below.
  ::fremovexattr(output, std::string(kAccessList).c_str());
  const auto names = attribute_names(input);
  if (!names) {
    if (must_keep) return cannot_keep("its attributes, which cannot be listed", names.error());
    return {};
  }
  for (const std::string& name : *names) {
    if (!is_carried(name)) continue;
    const auto value = read_attribute(input, name);
    if (!value) {
      // Another program took it away meanwhile.
      if (value.error() == ENODATA || !must_keep) continue;
      return cannot_keep(fmt::format("its attribute {}, which cannot be read", name),
                         value.error());
    }
    if (read_attribute(output, name) == value) continue;
    if (::fsetxattr(output, name.c_str(), value->data(), value->size(), 0) == 0) continue;
    const int number = errno;
    if (must_keep || !is_not_possible(number)) {
      return cannot_keep(fmt::format("its attribute {}", name), number);
    }
  }
  return {};
}

bool owner_kept(const struct stat& wanted, int output) {
  struct stat now {};
  return ::fstat(output, &now) == 0 && now.st_uid == wanted.st_uid && now.st_gid == wanted.st_gid;
}

Result<void> carry_owner(const struct stat& status, int output, bool must_keep) {
  if (owner_kept(status, output)) return {};
  if (::fchown(output, status.st_uid, status.st_gid) == 0) return {};
  const int number = errno;
  if (must_keep) {
    return cannot_keep(fmt::format("its owner {}:{}", status.st_uid, status.st_gid), number);
  }
  // The group alone is permitted to its members.
  const int group = ::fchown(output, static_cast<uid_t>(-1), status.st_gid);
  static_cast<void>(group);
  return {};
}

Result<void> carry_mode(const struct stat& status, int output, bool must_keep) {
  mode_t mode = status.st_mode & 07777;
  // A set-id program must not become one of another owner.
  if (!owner_kept(status, output)) mode &= static_cast<mode_t>(~(S_ISUID | S_ISGID));
  if (::fchmod(output, mode) != 0 && (must_keep || !is_not_possible(errno))) {
    return cannot_keep(fmt::format("its mode {:04o}", mode), errno);
  }
  struct stat now {};
  // chmod(2) drops S_ISGID silently where the caller is not in the group.
  if (must_keep && (::fstat(output, &now) != 0 || (now.st_mode & 07777) != mode)) {
    return cannot_keep(fmt::format("its mode {:04o}", mode), EPERM);
  }
  return {};
}

}  // namespace

Result<void> carry_attributes(int input, const struct stat& status, int output,
                              const AttributePolicy& policy) {
  // In this order: chown clears set-id bits and capabilities, an access list rewrites the group
  // bits of the mode.
  if (auto owner = carry_owner(status, output, policy.must_keep); !owner) return owner;
  if (auto extended = carry_extended(input, output, policy.must_keep); !extended) return extended;
  if (auto mode = carry_mode(status, output, policy.must_keep); !mode) return mode;
  if (policy.must_keep) {
    if (auto kept = check_inode_kept(input, output); !kept) return kept;
  }
  if (policy.preserve_dates) {
    const std::array times{status.st_atim, status.st_mtim};
    if (::futimens(output, times.data()) != 0) return cannot_keep("its dates", errno);
  }
  return {};
}

}  // namespace reprobe
