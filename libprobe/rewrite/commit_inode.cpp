#include "libprobe/rewrite/commit_inode.hpp"

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

namespace reprobe {
namespace {

struct Flag {
  unsigned bit;
  char letter;  // of chattr(1)
};

// Those of a regular file that somebody sets, or that its folder gives it. Left out is what the
// file system alone decides (extents, inline data) and fs-verity, which refuse_losses() asks about.
constexpr std::array kFlags{
    Flag{FS_SECRM_FL, 's'},      Flag{FS_UNRM_FL, 'u'},         Flag{FS_COMPR_FL, 'c'},
    Flag{FS_SYNC_FL, 'S'},       Flag{FS_NODUMP_FL, 'd'},       Flag{FS_NOATIME_FL, 'A'},
    Flag{FS_NOCOMP_FL, 'm'},     Flag{FS_JOURNAL_DATA_FL, 'j'}, Flag{FS_NOTAIL_FL, 't'},
    Flag{FS_NOCOW_FL, 'C'},      Flag{FS_DAX_FL, 'x'},          Flag{FS_ENCRYPT_FL, 'E'},
    Flag{FS_PROJINHERIT_FL, 'P'}};

constexpr unsigned all_flags() {
  unsigned all = 0;
  for (const Flag& flag : kFlags) all |= flag.bit;
  return all;
}

// The file system's own doing: a folder has it or not.
constexpr unsigned kNotSet = FS_ENCRYPT_FL;

// Of fsxattr: what FS_IOC_GETFLAGS has no bit for.
constexpr unsigned kExtentHints = FS_XFLAG_EXTSIZE | FS_XFLAG_COWEXTSIZE;

struct Inode {
  std::optional<unsigned> flags;           // nothing: the file system has none
  std::optional<struct fsxattr> extended;  // likewise
};

// ioctl_iflags(2), ioctl_fsgetxattr(2): a file system without them.
bool is_absent(int number) {
  return number == ENOTTY || number == ENOTSUP || number == ENOSYS || number == EINVAL;
}

tl::unexpected<Error> refused(const std::string& what) {
  return fail(ErrorCode::refused, "", what,
              "run as the file's owner or as root, or write to another file with -o");
}

Result<Inode> read_inode(int file) {
  Inode inode;
  unsigned flags = 0;  // an int, whatever the number of the ioctl says
  struct fsxattr extended {};
  const auto failed = [](int number) {
    return refused(fmt::format("the file's flags (chattr) cannot be read: {}",
                               std::generic_category().message(number)));
  };
  if (::ioctl(file, FS_IOC_GETFLAGS, &flags) == 0) {
    inode.flags = flags & all_flags();
  } else if (!is_absent(errno)) {
    return failed(errno);
  }
  if (::ioctl(file, FS_IOC_FSGETXATTR, &extended) == 0) {
    inode.extended = extended;
  } else if (!is_absent(errno)) {
    return failed(errno);
  }
  return inode;
}

bool same_extended(const struct fsxattr& a, const struct fsxattr& b) {
  return a.fsx_projid == b.fsx_projid && a.fsx_extsize == b.fsx_extsize &&
         a.fsx_cowextsize == b.fsx_cowextsize &&
         (a.fsx_xflags & kExtentHints) == (b.fsx_xflags & kExtentHints);
}

}  // namespace

Result<void> carry_inode(int input, int output) {
  const auto wanted = read_inode(input);
  if (!wanted) return tl::unexpected(wanted.error());
  unsigned flags = 0;
  if (wanted->flags && ::ioctl(output, FS_IOC_GETFLAGS, &flags) == 0 &&
      ((flags ^ *wanted->flags) & all_flags() & ~kNotSet) != 0) {
    flags = (flags & (~all_flags() | kNotSet)) | (*wanted->flags & ~kNotSet);
    static_cast<void>(::ioctl(output, FS_IOC_SETFLAGS, &flags));
  }
  struct fsxattr now {};
  if (wanted->extended && ::ioctl(output, FS_IOC_FSGETXATTR, &now) == 0 &&
      !same_extended(now, *wanted->extended)) {
    now.fsx_projid = wanted->extended->fsx_projid;
    now.fsx_extsize = wanted->extended->fsx_extsize;
    now.fsx_cowextsize = wanted->extended->fsx_cowextsize;
    now.fsx_xflags =
        (now.fsx_xflags & ~kExtentHints) | (wanted->extended->fsx_xflags & kExtentHints);
    static_cast<void>(::ioctl(output, FS_IOC_FSSETXATTR, &now));
  }
  return {};
}

Result<void> check_inode_kept(int input, int output) {
  const auto wanted = read_inode(input);
  if (!wanted) return tl::unexpected(wanted.error());
  const auto kept = read_inode(output);
  if (!kept) return tl::unexpected(kept.error());
  const unsigned differ = wanted->flags.value_or(0) ^ kept->flags.value_or(0);
  for (const Flag& flag : kFlags) {
    if ((differ & flag.bit) == 0) continue;
    return refused(fmt::format("the rewritten file cannot keep its flag {} (chattr)", flag.letter));
  }
  const struct fsxattr none {};
  const struct fsxattr before = wanted->extended.value_or(none);
  const struct fsxattr after = kept->extended.value_or(none);
  if (same_extended(before, after)) return {};
  return refused(
      before.fsx_projid != after.fsx_projid
          ? fmt::format("the rewritten file cannot keep its project {}", before.fsx_projid)
          : "the rewritten file cannot keep its extent size hints");
}

Result<void> check_replaceable(int input) {
  unsigned flags = 0;
  if (::ioctl(input, FS_IOC_GETFLAGS, &flags) != 0) return {};
  const unsigned held = flags & (FS_IMMUTABLE_FL | FS_APPEND_FL);
  if (held == 0) return {};
  const char letter = (held & FS_IMMUTABLE_FL) != 0 ? 'i' : 'a';
  return fail(ErrorCode::refused, "",
              fmt::format("the file may not be replaced: it has the flag {} (chattr)", letter),
              fmt::format("chattr -{} first, or write to another file with -o", letter));
}

}  // namespace reprobe
