// Which section header of the result is which of the input: a repair may exchange headers that are
// not loaded, join sections of notes, and add a few of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

struct SectionMatch {
  std::vector<std::uint32_t> now;    // by the input's index; 0: not in the result (or section 0)
  std::vector<std::uint32_t> added;  // indices in the result that no section of the input has

  // Is any section elsewhere in the table, or gone?
  [[nodiscard]] bool reordered() const;
  // The index in the result that stands for one of the input, in sh_link and its like. A section
  // of notes that is gone is the one that is left.
  [[nodiscard]] std::uint32_t number(std::uint32_t old) const;

  std::uint32_t notes{};  // index of the result's .note.stapsdt, where it has just one
};

[[nodiscard]] SectionMatch match_sections(const ElfFile& before, const ElfFile& after);

// A section of the input that stands elsewhere among the result's headers than it may: those that
// are kept keep their order, but for the notes and one that they may have changed places with to
// stand behind .probes. Nothing where all are in order.
[[nodiscard]] std::optional<std::uint32_t> out_of_order(const ElfFile& before, const ElfFile& after,
                                                        const SectionMatch& match);

// Names of the sections that a repair changed, for LIEF's comparison.
[[nodiscard]] std::vector<std::string> changed_sections(const ElfFile& before,
                                                        const ElfFile& after);

}  // namespace reprobe
