#include "libprobe/elf/strings.hpp"

#include <algorithm>
#include <cstring>

namespace reprobe {
namespace {

constexpr std::size_t kShort = 4096;

// Offset of the first NUL in [from, from+limit), or nothing.
std::optional<std::size_t> find_nul(ByteView bytes, std::size_t from, std::size_t limit) {
  const std::size_t length = std::min(limit, bytes.size() - from);
  if (length == 0) return std::nullopt;
  const void* nul = std::memchr(bytes.data() + from, 0, length);
  if (nul == nullptr) return std::nullopt;
  return static_cast<std::size_t>(static_cast<const std::byte*>(nul) - bytes.data());
}

std::vector<std::uint64_t> ends_of_long_strings(ByteView bytes) {
  std::vector<std::uint64_t> ends;
  std::size_t start = 0;
  while (const auto nul = find_nul(bytes, start, bytes.size())) {
    if (*nul - start >= kShort) ends.push_back(*nul);
    start = *nul + 1;
  }
  return ends;
}

}  // namespace

std::optional<std::string_view> StringTable::at(std::uint64_t offset) const {
  if (offset >= bytes_.size()) return std::nullopt;
  const auto start = static_cast<std::size_t>(offset);
  std::optional<std::uint64_t> end = find_nul(bytes_, start, kShort);
  if (!end) end = end_of_long_string(offset);
  if (!end) return std::nullopt;
  return as_text(bytes_.subspan(start, static_cast<std::size_t>(*end - offset)));
}

std::optional<std::uint64_t> StringTable::end_of_long_string(std::uint64_t offset) const {
  if (!long_ends_) long_ends_ = ends_of_long_strings(bytes_);
  // No NUL stands in the kShort bytes from `offset`, so the one that ends this string ends a long
  // one: it is in the list, and it is the first there.
  const auto end = std::ranges::lower_bound(*long_ends_, offset);
  if (end == long_ends_->end()) return std::nullopt;
  return *end;
}

}  // namespace reprobe
