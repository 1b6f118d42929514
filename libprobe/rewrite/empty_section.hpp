// Where a section without bytes of its own can stand beside the code: .stapsdt.base, whose header
// only says an address and how far addresses and file offsets are apart.
#pragma once

#include <optional>

#include "libprobe/elf/file.hpp"

namespace reprobe {

struct EmptyPlace {
  VirtAddr address;
  FileOffset offset;
};

// A place in the segment of `near` with the same distance between address and offset, outside of
// every section; best is right behind `near`. `header`: the index of the header that is to stand
// there, nothing where it will be the last. Nothing where there is no such place.
[[nodiscard]] std::optional<EmptyPlace> empty_section_place(const ElfFile& file,
                                                            const Section& near,
                                                            std::optional<std::uint32_t> header);

}  // namespace reprobe
