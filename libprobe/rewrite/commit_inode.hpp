// What a file system keeps of a file besides its extended attributes: flags (chattr(1)), the
// project and hints for extents.
#pragma once

#include "libprobe/error.hpp"

namespace reprobe {

// Gives the empty file `output` those of `input`. Before the first byte: data that is journalled,
// compressed or not copied on write has to be so from the start (ioctl_iflags(2)). What cannot be
// set is left to check_inode_kept() to find. Error refused: those of the input cannot be read.
[[nodiscard]] Result<void> carry_inode(int input, int output);

// Error refused: `output` differs in one of them from `input`, which names it.
[[nodiscard]] Result<void> check_inode_kept(int input, int output);

// Error refused: the file may not be replaced (chattr +i, +a).
[[nodiscard]] Result<void> check_replaceable(int input);

}  // namespace reprobe
