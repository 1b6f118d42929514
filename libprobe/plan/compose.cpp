#include "libprobe/plan/compose.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/plan/planned_source.hpp"

namespace reprobe {
namespace {

// The headers and names that the first plan appended and the second one appended anew.
Result<void> clear_unclaimed(Bytes& output, std::uint64_t from) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  {
    const auto file = ElfFile::open(borrowed_source(output));
    if (!file) return tl::unexpected(file.error());
    ranges = FileRanges(*file).unclaimed(from);
  }
  for (const auto& [begin, end] : ranges) {
    std::fill(output.begin() + static_cast<std::ptrdiff_t>(begin),
              output.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0});
  }
  return {};
}

// The section headers that the first plan changed in place, where the second one writes a table of
// its own at the end of the file: what nobody reads any more stays as it was.
Result<void> restore_left_headers(const ByteSource& input, const Plan& first, Bytes& output) {
  const auto between = ElfFile::open(planned_source(input, first));
  const auto after = ElfFile::open(borrowed_source(output));
  if (!between || !after || between->header().shoff == after->header().shoff) return {};
  const ElfHeader& header = between->header();
  const auto size = checked_mul(header.shnum, header.shentsize);
  const auto end = size ? checked_add(header.shoff.value, *size) : std::nullopt;
  if (!end || *end > input.size()) return {};
  for (const auto& [free, free_end] : FileRanges(*after).unclaimed(header.shoff.value)) {
    const std::uint64_t to = std::min(free_end, *end);
    if (free >= to) continue;
    const auto old = input.slice(FileOffset{free}, Size{to - free}, "the old section headers");
    if (!old) return tl::unexpected(old.error());
    std::ranges::copy(*old, output.begin() + static_cast<std::ptrdiff_t>(free));
  }
  return {};
}

Bytes part(const Bytes& bytes, std::uint64_t begin, std::uint64_t end) {
  return {bytes.begin() + static_cast<std::ptrdiff_t>(begin),
          bytes.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

Result<Plan> compose(const ByteSource& input, const Plan& first, const Plan& second) {
  auto output = apply(second, *planned_source(input, first));
  if (!output) return tl::unexpected(output.error());
  const std::uint64_t size = input.size();
  if (auto done = clear_unclaimed(*output, size); !done) return tl::unexpected(done.error());
  if (auto done = restore_left_headers(input, first, *output); !done) {
    return tl::unexpected(done.error());
  }
  std::map<std::uint64_t, std::pair<std::uint64_t, std::string>> ranges;  // start -> end, why
  for (const Plan* plan : {&first, &second}) {
    for (const Edit& edit : plan->edits()) {
      const std::uint64_t end =
          std::min<std::uint64_t>(size, edit.offset.value + edit.after.size());
      if (edit.offset.value >= end) continue;
      auto& range = ranges[edit.offset.value];
      range = {std::max(range.first, end), edit.why};
    }
  }
  Plan plan;
  std::uint64_t at = 0;  // what lies before it is planned
  for (const auto& [start, range] : ranges) {
    const std::uint64_t begin = std::max(at, start);
    if (begin >= range.first) continue;
    at = range.first;
    auto done = plan.replace(input, FileOffset{begin}, part(*output, begin, at), range.second);
    if (!done) return tl::unexpected(done.error());
  }
  std::string whys;
  for (const Plan* each : {&first, &second}) {
    for (const std::string& text : each->appended_why()) {
      whys += (whys.empty() ? "" : "; ") + text;
    }
  }
  const auto appended = plan.append(input, part(*output, size, output->size()), Size{1}, whys);
  if (!appended) return tl::unexpected(appended.error());
  return plan;
}

Result<Plan> plan_output(const ByteSource& input, const Bytes& output, const std::string& why) {
  const auto before = input.slice(FileOffset{0}, Size{input.size()}, "the file");
  if (!before) return tl::unexpected(before.error());
  // Differences closer than this cost more than the equal bytes between them.
  constexpr std::size_t kJoin = 64;
  const std::size_t both = std::min(before->size(), output.size());
  Plan plan;
  for (std::size_t at = 0; at < both; ++at) {
    if ((*before)[at] == output[at]) continue;
    std::size_t end = at + 1;
    for (std::size_t i = end; i < both && i < end + kJoin; ++i) {
      if ((*before)[i] != output[i]) end = i + 1;
    }
    auto done = plan.replace(input, FileOffset{at}, part(output, at, end), why);
    if (!done) return tl::unexpected(done.error());
    at = end;
  }
  if (output.size() < before->size()) {
    if (auto done = plan.cut(input, Size{output.size()}); !done)
      return tl::unexpected(done.error());
    return plan;
  }
  const auto rest = plan.append(input, part(output, both, output.size()), Size{1}, why);
  if (!rest) return tl::unexpected(rest.error());
  return plan;
}

}  // namespace reprobe
