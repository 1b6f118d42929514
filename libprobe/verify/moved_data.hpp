// A data segment that fix has given pages of the file of its own (semaphore-relro-page).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

struct MovedData {
  // What is wrong with the move itself; `put_back` is nothing then.
  std::vector<Finding> findings;
  // The result as it would be had the segments stayed: what differs from the input now has other
  // reasons. It reads the result, which must outlive it.
  std::optional<ElfFile> put_back;
  std::vector<std::string> sections;  // whose place in the file is another
  std::unique_ptr<Plan> plan;         // put_back reads these
  std::unique_ptr<ElfFile> uncut;
  std::unique_ptr<Plan> cut;
};

// Nothing where no segment has moved. Proven here: the segment's address, memory, protection and
// bytes are what they were; it stood on a page of the file that another writable segment maps
// before it, and stands behind the old file on pages that no other does; the old bytes are left as
// they were; and every header that names bytes of it names them in the new place.
[[nodiscard]] std::optional<MovedData> put_data_back(const ElfFile& before, const ElfFile& after);

}  // namespace reprobe
