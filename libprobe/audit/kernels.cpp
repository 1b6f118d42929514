#include "libprobe/audit/kernels.hpp"

#include <charconv>

namespace reprobe {

std::optional<KernelVersion> parse_kernel(std::string_view text) {
  KernelVersion version;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, version.major);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '.') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, version.minor);
  if (second.ec != std::errc{}) return std::nullopt;
  const bool ends = second.ptr == end || *second.ptr == '.' || *second.ptr == '-' ||
                    *second.ptr == '+' || *second.ptr == '_';
  return ends ? std::optional(version) : std::nullopt;
}

bool any_of(const Kernels& kernels, KernelVersion from, KernelVersion to) {
  return !kernels || (*kernels >= from && *kernels <= to);
}

bool make_calls_of_nop5(const Kernels& kernels) { return any_of(kernels, {6, 17}, {7, 1}); }

bool refuse_nop10(const Kernels& kernels) { return any_of(kernels, {0, 0}, {7, 1}); }

bool lack_cookies(const Kernels& kernels) { return any_of(kernels, {0, 0}, {5, 14}); }

}  // namespace reprobe
