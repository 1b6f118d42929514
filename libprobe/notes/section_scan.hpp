// Reads the bytes of one note section. scan_notes() calls it for each section of a file; it needs
// no file, so that every layout and every fault can be tried on bytes alone.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "libprobe/notes/report.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

struct NoteSection {
  ByteView bytes;
  std::uint32_t index{};
  FileOffset offset;  // of the bytes in the file
  std::uint64_t addralign{4};
  bool is64{};
  std::endian order{std::endian::little};
};

// Appends the section's notes to `into`; gives the offsets in the section of the descriptors of
// the appended notes, one for each, in order.
std::vector<std::uint64_t> scan_note_section(const NoteSection& section, NoteScan& into,
                                             NoteReport& report);

}  // namespace reprobe
