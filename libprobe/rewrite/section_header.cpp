#include "libprobe/rewrite/section_header.hpp"

#include <fmt/format.h>

namespace reprobe {
namespace {

struct Place {
  std::uint64_t offset;
  unsigned width;
};

// Elf32_Shdr and Elf64_Shdr, System V ABI chapter 4, "Sections".
Place place(SectionField field, bool is64) {
  switch (field) {
    case SectionField::offset:
      return is64 ? Place{24, 8} : Place{16, 4};
    case SectionField::size:
      return is64 ? Place{32, 8} : Place{20, 4};
    case SectionField::addralign:
      break;
  }
  return is64 ? Place{48, 8} : Place{32, 4};
}

}  // namespace

Result<void> set_field(Plan& plan, const ElfFile& file, const Section& section, SectionField field,
                       std::uint64_t value, std::string why) {
  const auto [offset, width] = place(field, file.header().is64);
  if (width == 4 && !narrow<std::uint32_t>(value)) {
    return fail(ErrorCode::internal, section.name,
                fmt::format("{:#x} does not fit a 4-byte section header field", value));
  }
  Bytes bytes(width);
  store_uint(bytes, 0, width, file.header().order, value);
  return plan.replace(file.source(), FileOffset{section.header_offset.value + offset},
                      std::move(bytes), std::move(why));
}

}  // namespace reprobe
