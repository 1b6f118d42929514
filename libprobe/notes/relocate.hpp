// Relocations of an object file's note sections: what a linker would write into the addresses of
// the notes. Only ET_REL; in a linked file the values stand in place.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/report.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

// Bytes that an absolute relocation of this type stores: 4 or 8; 0 where the type is not an
// absolute word of that machine. Source: the machines' ELF supplements.
[[nodiscard]] unsigned absolute_width(std::uint16_t machine, std::uint32_t type);

// R_*_RELATIVE, load address + addend, of the machine; 0 (R_*_NONE) where it is not known. Source:
// the machines' ELF supplements.
[[nodiscard]] std::uint32_t relative_relocation(std::uint16_t machine);

// The relocations of one note section, by ascending offset, and the symbols they name.
struct NoteRelocations {
  std::vector<Relocation> entries;
  const std::vector<Symbol>* symbols{};
};

class NoteRelocator {
 public:
  NoteRelocator(const ElfFile& file, NoteReport& report);

  // Empty where no SHT_REL or SHT_RELA section names this one, or where it cannot be read.
  [[nodiscard]] NoteRelocations relocations_of(const Section& section);

  // riscv: clang leaves namesz and descsz to the linker, as R_RISCV_ADD32 and R_RISCV_SUB32 of two
  // labels. Gives the section's bytes with such differences in place; empty where it has none.
  [[nodiscard]] Bytes with_differences(const NoteRelocations& relocations, ByteView bytes) const;

  // Rewrites location, base and semaphore of one section's notes. `descriptors`: the offsets of
  // their descriptors in the section.
  void apply(const NoteRelocations& relocations, std::span<Note> notes,
             std::span<const std::uint64_t> descriptors);

 private:
  // An address of a note after relocation.
  struct Target {
    std::uint64_t value{};
    std::uint32_t section{};  // 0: absolute, or not resolved
    bool unresolved{};
    bool undefined{};  // by a symbol that has no address before the link
  };

  Target field(const NoteRelocations& relocations, std::uint64_t at, std::uint64_t in_place,
               const Note& note);
  Target resolve(const Relocation& relocation, const std::vector<Symbol>& symbols,
                 std::uint64_t in_place, const Note& note);
  const std::vector<Symbol>& symbols_of(std::uint32_t table);
  bool afford(Size size);

  const ElfFile& file_;
  NoteReport& report_;
  std::unordered_map<std::uint32_t, std::uint32_t> table_of_;  // sh_info -> SHT_REL(A) section
  std::map<std::uint32_t, std::vector<Symbol>> symbols_;
  // Tables that overlap could be decoded again and again: all together may cost the file's size.
  std::uint64_t budget_;
};

}  // namespace reprobe
