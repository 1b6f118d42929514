// What a rewrite will do, as data: printed by --dry-run, checked, then applied. Nothing else
// changes a byte.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  // Errors (internal): states a byte that an earlier call stated too (even where that one was
  // dropped), lies behind the end of the file. An edit whose bytes are already there is dropped;
  // equal bytes at its two ends are trimmed.
  [[nodiscard]] Result<void> replace(const ByteSource& input, FileOffset offset, Bytes after,
                                     std::string why);
  // Bytes at the end of the file, after padding to `align` (a power of two up to 2^24, 1 for none)
  // with zeros. Gives the offset at which they will stand; no bytes add no padding.
  [[nodiscard]] Result<FileOffset> append(const ByteSource& input, Bytes bytes, Size align,
                                          std::string why);

  // The output ends after `size` bytes of the input: what gives a smaller file back. Errors
  // (internal): larger than the input, bytes were appended.
  [[nodiscard]] Result<void> cut(const ByteSource& input, Size size);

  // Sorted by offset. Not to be called by two threads at once: the first call may sort.
  [[nodiscard]] const std::vector<Edit>& edits() const;
  [[nodiscard]] const Bytes& appended() const { return appended_; }
  [[nodiscard]] const std::vector<std::string>& appended_why() const { return appended_why_; }
  [[nodiscard]] bool empty() const { return edits_.empty() && appended_.empty() && !cut_; }
  // Bytes of the input that stay; the appended ones follow.
  [[nodiscard]] Size kept(const ByteSource& input) const {
    return cut_.value_or(Size{input.size()});
  }

 private:
  Result<void> claim(std::uint64_t offset, std::uint64_t size);

  // Sorted when asked for: inserting in the middle would make a plan of n edits cost n*n.
  mutable std::vector<Edit> edits_;
  mutable bool sorted_{true};
  std::map<std::uint64_t, std::uint64_t> claimed_;  // offset -> size of every range stated
  std::optional<Size> cut_;
  Bytes appended_;
  std::vector<std::string> appended_why_;
};

// Does the input still hold what the edit says it replaces? Error internal: it does not.
[[nodiscard]] Result<void> check_edit(const Edit& edit, const ByteSource& input);

// The output in memory. Error internal: an edit's `before` is not what the input holds.
[[nodiscard]] Result<Bytes> apply(const Plan& plan, const ByteSource& input);

}  // namespace reprobe
