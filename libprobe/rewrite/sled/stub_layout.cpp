#include "libprobe/rewrite/sled/stub_layout.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kInt3 = 0xcc;
constexpr std::uint64_t kBlock = 256;  // of addresses with one lowest byte each
// No sled is longer: moving a stub on by this takes its sled out of the page's end.
constexpr std::uint64_t kMostShift = 16;
constexpr unsigned kLowByte = 1U << 1, kSecondByte = 1U << 2;

bool is_constrained(const Patch& patch) {
  return patch.form == Patch::Form::jump &&
         (patch.boundaries == kLowByte || patch.boundaries == kSecondByte);
}

class Layout {
 public:
  Layout(const SledPlan& plan, SledKind kind, VirtAddr at, const std::vector<StubSize>& stubs)
      : kind_(kind),
        stubs_(stubs),
        next_(at.value),
        end_(at.value + most_room(plan, stubs)),
        places_(stubs.size()) {
    std::vector<bool> constrained(stubs.size(), false);
    for (const Patch& patch : plan.patches) {
      if (!is_constrained(patch)) continue;
      const std::uint64_t from = patch.at.value + kJumpSize;
      constrained[patch.stub] = true;
      if (patch.boundaries == kLowByte) {
        low_.emplace((from + kInt3) % kBlock, patch.stub);
      } else {
        second_.emplace(from, patch.stub);
      }
    }
    for (std::size_t i = 0; i < stubs.size(); ++i) {
      left_ += stubs[i].size + kMostShift;
      if (!constrained[i]) free_.emplace(stubs[i].size, i);
    }
  }

  std::vector<VirtAddr> run() {
    while (!low_.empty() || !free_.empty() || !second_.empty()) {
      if (take_second()) continue;
      if (!low_.empty()) {
        take_low();
      } else if (!free_.empty()) {
        const std::size_t stub = std::prev(free_.end())->second;
        free_.erase(std::prev(free_.end()));
        put(stub, next_);
      } else {
        const std::size_t stub = second_.begin()->second;
        second_.erase(second_.begin());
        put(stub, next_);
      }
    }
    return std::move(places_);
  }

 private:
  [[nodiscard]] bool fits(std::size_t stub, std::uint64_t at) const {
    return std::ranges::all_of(stubs_[stub].notes, [&](std::uint64_t note) {
      return sled_fits_page(kind_, VirtAddr{at + note});
    });
  }

  void put(std::size_t stub, std::uint64_t at) {
    for (std::uint64_t shift = 0; shift <= kMostShift && !fits(stub, at); ++shift) ++at;
    places_[stub] = VirtAddr{at};
    left_ -= stubs_[stub].size + kMostShift;
    next_ = at + stubs_[stub].size;
  }

  // A stub whose jump has int3 in its second byte from here: next_ - from lies in 256 bytes of each
  // 64 KiB.
  bool take_second() {
    for (auto it = second_.begin(); it != second_.end(); ++it) {
      const std::uint64_t distance = next_ - it->first;
      if ((distance >> 8U) % kBlock != kInt3 || !fits(it->second, next_)) continue;
      const std::size_t stub = it->second;
      second_.erase(it);
      put(stub, next_);
      return true;
    }
    return false;
  }

  // The one that wants the nearest place; what wants none fills the gap.
  void take_low() {
    auto found = low_.lower_bound(next_ % kBlock);
    for (std::size_t tried = 0; tried < low_.size(); ++tried, ++found) {
      if (found == low_.end()) found = low_.begin();
      const std::uint64_t gap = (found->first + kBlock - next_ % kBlock) % kBlock;
      if (!fits(found->second, next_ + gap)) continue;
      if (fill(gap)) return;
      const std::size_t stub = found->second;
      const bool room = next_ + gap + left_ <= end_;
      low_.erase(found);
      return put(stub, room ? next_ + gap : next_);
    }
    const std::size_t stub = low_.begin()->second;
    low_.erase(low_.begin());
    put(stub, next_);
  }

  bool fill(std::uint64_t gap) {
    auto found = free_.upper_bound(gap);
    if (found == free_.begin()) return false;
    --found;
    const std::size_t stub = found->second;
    if (!fits(stub, next_)) return false;
    free_.erase(found);
    put(stub, next_);
    return true;
  }

  SledKind kind_;
  const std::vector<StubSize>& stubs_;
  std::uint64_t next_;
  std::uint64_t end_;
  std::uint64_t left_{};  // of the stubs that have no place
  std::vector<VirtAddr> places_;
  std::multimap<std::uint64_t, std::size_t> low_;     // by the place they want in a block
  std::multimap<std::uint64_t, std::size_t> second_;  // by the address behind their jump
  std::multimap<std::uint64_t, std::size_t> free_;    // by size
};

}  // namespace

// Of n stubs with places spread at random the nearest is 256/n bytes away, so that all gaps
// together take 256 times the logarithm of n; twice that is plenty.
std::uint64_t most_room(const SledPlan& plan, const std::vector<StubSize>& stubs) {
  std::uint64_t room = 0;
  for (const StubSize& stub : stubs) room += stub.size + kMostShift;
  const auto wanted = static_cast<std::uint64_t>(
      std::ranges::count_if(plan.patches, [](const Patch& p) { return is_constrained(p); }));
  return wanted == 0 ? room : room + kBlock * (1 + static_cast<unsigned>(std::bit_width(wanted)));
}

std::vector<VirtAddr> lay_out(const SledPlan& plan, SledKind kind, VirtAddr at,
                              const std::vector<StubSize>& stubs) {
  return Layout(plan, kind, at, stubs).run();
}

bool survives_breakpoints(const Patch& patch, VirtAddr to) {
  const std::uint64_t size = patch.form == Patch::Form::hop ? 2 : kJumpSize;
  const std::uint64_t distance = to.value - patch.at.value - size;
  for (unsigned offset = 1; offset < 8; ++offset) {
    if ((patch.boundaries >> offset) % 2 == 0) continue;
    if (patch.form == Patch::Form::sled) return false;
    if (((distance >> (8 * (offset - 1))) & 0xff) != kInt3) return false;
  }
  return true;
}

}  // namespace reprobe
