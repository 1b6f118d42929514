// What a rewrite will do, as data: printed by --dry-run, checked, then applied. Nothing else
// changes a byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

// Replaces bytes in place: before and after have the same, non-zero length.
struct Edit {
  FileOffset offset;
  Bytes before;  // what stands there now; apply() refuses where it does not
  Bytes after;
  std::string why;
};

class Plan {
 public:
  // Errors (internal): overlaps an earlier edit, lengths differ, lies behind the end of the file.
  // An edit whose bytes are already there is dropped; equal bytes at its two ends are trimmed.
  [[nodiscard]] Result<void> replace(const ByteSource& input, FileOffset offset, Bytes after,
                                     std::string why);
  // Bytes at the end of the file, after padding to `align` (a power of two, 1 for none) with
  // zeros. Gives the offset at which they will stand.
  [[nodiscard]] Result<FileOffset> append(const ByteSource& input, Bytes bytes, Size align,
                                          std::string why);

  [[nodiscard]] const std::vector<Edit>& edits() const { return edits_; }  // sorted by offset
  [[nodiscard]] const Bytes& appended() const { return appended_; }
  [[nodiscard]] const std::vector<std::string>& appended_why() const { return appended_why_; }
  [[nodiscard]] bool empty() const { return edits_.empty() && appended_.empty(); }

 private:
  std::vector<Edit> edits_;
  Bytes appended_;
  std::vector<std::string> appended_why_;
};

// The output in memory. Error internal: an edit's `before` is not what the input holds.
[[nodiscard]] Result<Bytes> apply(const Plan& plan, const ByteSource& input);

}  // namespace reprobe
