#include "libprobe/verify/compare_stub_code.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::byte kTrap{0xcc};

// Addresses that execution passes, ascending and apart from each other.
std::vector<Range> executed(std::span<const StandsFor> stands) {
  std::vector<Range> all;
  for (const StandsFor& step : stands) {
    for (const Executed& code : step.now) all.push_back({code.begin.value, code.end.value});
  }
  std::ranges::sort(all, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& range : all) {
    if (merged.empty() || merged.back().end < range.begin) merged.push_back(range);
    merged.back().end = std::max(merged.back().end, range.end);
  }
  return merged;
}

// The byte of an address; nothing where the file has none.
std::optional<std::byte> byte_at(const ElfFile& file, std::uint64_t at) {
  const ByteView bytes = file.bytes_at(VirtAddr{at}, Size{1});
  return bytes.empty() ? std::nullopt : std::optional(bytes[0]);
}

// The first address of [begin, end) that is not executed and whose byte is no filler.
template <typename IsFiller>
std::optional<std::uint64_t> first_other(Range range, std::span<const Range> executed,
                                         const IsFiller& is_filler) {
  auto next = std::ranges::upper_bound(executed, range.begin, {}, &Range::end);
  for (std::uint64_t at = range.begin; at < range.end;) {
    if (next != executed.end() && at >= next->begin) {
      at = next->end;
      ++next;
    } else if (is_filler(at)) {
      ++at;
    } else {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace

void compare_unexecuted(const ElfFile& before, const ElfFile& after, const ProvenCode& proven,
                        std::span<const StandsFor> stands, std::vector<Finding>& out) {
  const std::vector<Range> passed = executed(stands);
  const auto report = [&](std::uint64_t at, std::string_view what) {
    Finding finding = verify_finding("verify-code", fmt::format("{:#x} {}", at, what));
    finding.site = at;
    out.push_back(std::move(finding));
  };
  for (const auto& [begin, end] : proven) {
    const auto is_filler = [&](std::uint64_t at) {
      const auto now = byte_at(after, at);
      return now && (*now == kTrap || now == byte_at(before, at));
    };
    const auto other = first_other({begin.value, end.value}, passed, is_filler);
    if (other) return report(*other, "is not executed, and neither int3 nor as it was");
  }
  const Section* stubs = after.section(kSledSection);
  if (stubs == nullptr || before.section(kSledSection) != nullptr) return;
  const auto bytes = after.contents(*stubs);
  const auto end = checked_add(stubs->addr.value, stubs->size.value);
  if (!bytes || !end) return report(stubs->addr.value, "cannot be read");
  const auto is_filler = [&](std::uint64_t at) {
    const std::byte b = (*bytes)[static_cast<std::size_t>(at - stubs->addr.value)];
    return b == kTrap || b == std::byte{0};
  };
  const auto other = first_other({stubs->addr.value, *end}, passed, is_filler);
  if (other) report(*other, "in the stubs is neither executed nor padding");
}

}  // namespace reprobe
