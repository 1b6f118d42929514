// A source that records what was asked of it, for tests of how much of a file is touched.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "libprobe/elf/bytes.hpp"

namespace reprobe::test {

class CountingSource final : public ByteSource {
 public:
  struct Slice {
    std::uint64_t offset;
    std::uint64_t size;
  };

  explicit CountingSource(std::shared_ptr<const ByteSource> under) : under_(std::move(under)) {}

  std::uint64_t size() const override { return under_->size(); }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    auto bytes = under_->slice(offset, size, what);
    if (bytes) slices_.push_back({offset.value, size.value});
    return bytes;
  }

  // What was given out so far, in order.
  const std::vector<Slice>& slices() const { return slices_; }
  void forget() { slices_.clear(); }

  // Bytes given out; what was asked for twice counts once.
  std::uint64_t bytes() const {
    std::multiset<std::pair<std::uint64_t, std::uint64_t>> sorted;
    for (const Slice& s : slices_) sorted.insert({s.offset, s.offset + s.size});
    std::uint64_t total = 0, end = 0;
    for (const auto& [start, stop] : sorted) {
      if (stop <= end) continue;
      total += stop - std::max(start, end);
      end = stop;
    }
    return total;
  }

 private:
  std::shared_ptr<const ByteSource> under_;
  mutable std::vector<Slice> slices_;
};

}  // namespace reprobe::test
