// Data behind the ELF file: a rewrite keeps it the file's last bytes, directly behind all that the
// headers name, or at its offset.
#pragma once

#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

struct PayloadComparison {
  // The files without the payload that both have at their end; nothing where BEFORE has none, or
  // where `findings` say that AFTER has not kept it. They read from the bytes of the two files.
  std::optional<ElfFile> before;
  std::optional<ElfFile> after;
  std::vector<Finding> findings;
};

// `ignored`: the rewrite was asked to leave the payload at its offset (--payload=ignore). What
// stands behind the old file's end is then compare()'s, as are all bytes at their old offsets.
[[nodiscard]] PayloadComparison compare_payload(const ElfFile& before, const ElfFile& after,
                                                bool ignored);

}  // namespace reprobe
