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
  merge_ranges(all);
  return all;
}

constexpr std::uint64_t kJump = 5;  // jmp rel32

std::optional<std::uint64_t> jump_target(const ElfFile& file, std::uint64_t at) {
  const ByteView bytes = file.bytes_at(VirtAddr{at}, Size{kJump});
  if (bytes.size() != kJump || bytes[0] != std::byte{0xe9}) return std::nullopt;
  const std::uint64_t distance = load_uint(bytes, 1, 4, file.header().order);
  return at + kJump + ((distance ^ 0x80000000U) - 0x80000000U);
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

// A jump to a stub where nothing arrives, in filler that made room for a neighbour's jump: the stub
// holds the filler's own bytes and a jump behind them. Where it ends; 0: it is none.
std::uint64_t dead_stub_end(const ElfFile& before, const ElfFile& after, std::uint64_t at,
                            std::uint64_t target) {
  constexpr std::uint64_t kMostFiller = 15;
  for (std::uint64_t n = kJump; n <= kMostFiller; ++n) {
    const ByteView old = before.bytes_at(VirtAddr{at}, Size{n});
    const ByteView now = after.bytes_at(VirtAddr{target}, Size{n});
    if (old.size() != n || !std::ranges::equal(old, now)) return 0;
    if (jump_target(after, target + n) == at + n) return target + n + kJump;
  }
  return 0;
}

}  // namespace

void compare_unexecuted(const ElfFile& before, const ElfFile& after, const ProvenCode& proven,
                        std::span<const StandsFor> stands, std::vector<Finding>& out) {
  std::vector<Range> passed = executed(stands);
  std::vector<Range> dead;  // stubs that nothing leads to
  std::uint64_t behind_jump = 0;
  const auto report = [&](std::uint64_t at, std::string_view what) {
    Finding finding = verify_finding("verify-code", fmt::format("{:#x} {}", at, what));
    finding.site = at;
    out.push_back(std::move(finding));
  };
  for (const auto& [begin, end] : proven) {
    const auto is_filler = [&](std::uint64_t at) { return byte_at(after, at) == kTrap; };
    // One jump may stand over what were several instructions.
    auto other = first_other({std::max(begin.value, behind_jump), end.value}, passed, is_filler);
    while (other) {
      const auto target = jump_target(after, *other);
      const std::uint64_t stub_end = target ? dead_stub_end(before, after, *other, *target) : 0;
      if (stub_end == 0) return report(*other, "is not executed, and not int3");
      dead.push_back({*target, stub_end});
      behind_jump = *other + kJump;
      other = first_other({behind_jump, end.value}, passed, is_filler);
    }
  }
  passed.insert(passed.end(), dead.begin(), dead.end());
  std::ranges::sort(passed, {}, &Range::begin);
  const Section* stubs = after.section(kSledSection);
  if (stubs == nullptr || before.section(kSledSection) != nullptr) return;
  const auto bytes = after.contents(*stubs);
  const auto end = checked_add(stubs->addr.value, stubs->size.value);
  if (!bytes || !end || bytes->size() != stubs->size.value) {
    return report(stubs->addr.value, "cannot be read");
  }
  if (std::ranges::find(passed, *end, &Range::end) == passed.end()) {
    return report(*end, "in the stubs is not where the last of them ends");
  }
  const auto is_filler = [&](std::uint64_t at) {
    return (*bytes)[static_cast<std::size_t>(at - stubs->addr.value)] == kTrap;
  };
  const auto other = first_other({stubs->addr.value, *end}, passed, is_filler);
  if (other) report(*other, "in the stubs is neither executed nor int3");
}

}  // namespace reprobe
