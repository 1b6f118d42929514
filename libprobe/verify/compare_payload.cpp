#include "libprobe/verify/compare_payload.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/elf/payload.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

bool same_bytes(const ElfFile& before, const Payload& old, const ElfFile& after,
                const Payload& now) {
  const auto left = before.source().slice(old.offset, old.size, "the payload");
  const auto right = after.source().slice(now.offset, now.size, "the payload");
  return left && right && std::ranges::equal(*left, *right);
}

// A loader that finds the payload by the section headers finds it still.
bool same_by_headers(const ElfFile& before, const Payload& old, const ElfFile& after,
                     const Payload& now) {
  return end_by_section_headers(before) != old.offset.value ||
         end_by_section_headers(after) == now.offset.value;
}

// The end of a payload may read as zeros in front of it: only the size says where it began.
std::optional<Payload> at_end(const ElfFile& file, const Payload& old) {
  const auto behind = payload_behind(file);
  if (!behind || behind->size != old.size) return std::nullopt;
  return behind;
}

}  // namespace

PayloadComparison compare_payload(const ElfFile& before, const ElfFile& after, bool ignored) {
  PayloadComparison result;
  const auto old = payload_behind(before);
  if (!old) return result;
  const auto now = at_end(after, *old);
  const bool kept = now && same_bytes(before, *old, after, *now);
  if (kept && same_by_headers(before, *old, after, *now)) {
    auto left = without_payload(before, *old), right = without_payload(after, *now);
    if (left && right) {
      result.before = std::move(*left);
      result.after = std::move(*right);
      return result;
    }
  }
  if (ignored) return result;
  result.findings.push_back(verify_finding(
      "verify-payload", fmt::format("{}, {} bytes at {:#x} behind the ELF file, {}",
                                    to_string(old->kind), old->size.value, old->offset.value,
                                    kept ? "is not where the section headers end any more"
                                         : "is not what the file ends with any more")));
  return result;
}

}  // namespace reprobe
