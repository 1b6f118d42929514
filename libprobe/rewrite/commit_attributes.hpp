// What a file has besides its bytes: owner, mode, times, extended attributes.
#pragma once

#include <sys/stat.h>

#include "libprobe/error.hpp"

namespace reprobe {

struct AttributePolicy {
  // In place: what cannot be kept is an error. To another file: the owner and the attributes are
  // kept where that is permitted, as `cp --preserve` does; set-id bits go where the owner goes.
  bool must_keep{};
  bool preserve_dates{};
};

// Gives `output` the attributes of `input`, whose status is `status`. IMA and EVM signatures are
// not carried over. Call it when the last byte is written: writing clears set-id bits and file
// capabilities. Error refused: must_keep, and something cannot be kept. Error io: no space.
[[nodiscard]] Result<void> carry_attributes(int input, const struct stat& status, int output,
                                            const AttributePolicy& policy);

}  // namespace reprobe
