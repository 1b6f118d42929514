#include "tests/mutate/draft.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace mutate {

std::uint64_t Draft::get(std::uint64_t at, unsigned width) const {
  if (!holds(at, width)) return 0;
  return reprobe::load_uint(bytes, static_cast<std::size_t>(at), width, file.header().order);
}

void Draft::put(std::uint64_t at, unsigned width, std::uint64_t value) {
  if (!holds(at, width)) return;
  if (width < 8) value &= (std::uint64_t{1} << (8 * width)) - 1;
  reprobe::store_uint(bytes, static_cast<std::size_t>(at), width, file.header().order, value);
}

std::uint64_t Draft::get(std::uint64_t structure, const Field& field) const {
  return is64() ? get(structure + field.at64, field.width64)
                : get(structure + field.at32, field.width32);
}

void Draft::put(std::uint64_t structure, const Field& field, std::uint64_t value) {
  if (is64()) {
    put(structure + field.at64, field.width64, value);
  } else {
    put(structure + field.at32, field.width32, value);
  }
}

Bytes Draft::copy(std::uint64_t at, std::uint64_t size) const {
  if (!holds(at, size)) return {};
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

void Draft::write(std::uint64_t at, ByteView data) {
  if (holds(at, data.size()))
    std::ranges::copy(data, bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

std::uint64_t Draft::append(ByteView data, std::uint64_t align) {
  bytes.resize((bytes.size() + align - 1) / align * align);
  const std::uint64_t at = bytes.size();
  bytes.insert(bytes.end(), data.begin(), data.end());
  return at;
}

void Draft::exchange(std::uint64_t a, std::uint64_t b, std::uint64_t size) {
  const Bytes first = copy(a, size), second = copy(b, size);
  write(a, second);
  write(b, first);
}

bool Draft::disturb(std::uint64_t at, unsigned width, std::string_view name) {
  if (!holds(at, width)) return false;
  const std::uint64_t old = get(at, width);
  std::uint64_t now = old;
  switch (random.below(12)) {
    case 0:
      now = old + 1;
      break;
    case 1:
      now = old - 1;
      break;
    case 2:
      now = old ^ (std::uint64_t{1} << random.below(8 * width));
      break;
    case 3:
      now = old ^ (std::uint64_t{1} << random.below(8));
      break;
    case 4:
      now = old + kPage;
      break;
    case 5:
      now = old - kPage;
      break;
    case 6:
      now = old + 8;
      break;
    case 7:
      now = old - 8;
      break;
    case 8:
      now = old + 1 + random.below(64);
      break;
    case 9:
      now = 0;
      break;
    case 10:
      now = random.bits();
      break;
    default:
      now = old + width * (random.below(9) - 4);
      break;
  }
  put(at, width, now);
  now = get(at, width);
  told += fmt::format("{} at {:#x}: {:#x} is {:#x}; ", name, at, old, now);
  return now != old;
}

bool Draft::disturb(std::uint64_t structure, const Field& field) {
  return is64() ? disturb(structure + field.at64, field.width64, field.name)
                : disturb(structure + field.at32, field.width32, field.name);
}

bool Draft::disturb_byte(Span span, std::string_view name) {
  if (span.begin >= span.end) return false;
  return disturb(span.begin + random.below(span.size()), 1, name);
}

const Section* Draft::any_section() {
  const auto* section = pick(file.sections());
  return section == nullptr || section->index == 0 ? nullptr : section;
}

const Segment* Draft::any_segment(std::uint32_t type) {
  std::vector<const Segment*> found;
  for (const Segment& segment : file.segments()) {
    if (segment.type == type) found.push_back(&segment);
  }
  return found.empty() ? nullptr : found[random.below(found.size())];
}

std::vector<const Section*> Draft::sections_of(std::uint32_t type) const {
  std::vector<const Section*> found;
  for (const Section& section : file.sections()) {
    if (section.type == type && section.in_file) found.push_back(&section);
  }
  return found;
}

}  // namespace mutate
