// A note section with SHF_ALLOC is part of the program: where the file is position-independent its
// absolute addresses are written by the dynamic linker, and the bytes in the file may be zeros
// (RELA keeps the value in the relocation). Such notes are read as they will be in memory at base
// 0.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

class LoadRelocations {
 public:
  // Reads the allocated relocation tables of a linked file once; `file` must outlive this.
  explicit LoadRelocations(const ElfFile& file) : file_(file) {}

  // Rewrites location, base and semaphore of a loaded section's notes; a note that changes is no
  // longer canonical. A relocation that cannot be worked out sets location_unresolved.
  // `descriptors`: the offsets of their descriptors in the section.
  void apply(const Section& section, std::span<Note> notes,
             std::span<const std::uint64_t> descriptors);

 private:
  struct Value {
    std::optional<std::uint64_t> value;  // nothing: not known before the program runs
    bool in_place{};                     // the file's bytes hold it, or the addend to it
  };

  void read_all();
  void read(const Section& table);
  [[nodiscard]] Value value_of(const Relocation& relocation, const SymbolTable* symbols) const;
  [[nodiscard]] std::uint64_t patched(std::uint64_t at, std::uint64_t in_place,
                                      bool& unknown) const;

  const ElfFile& file_;
  bool read_{};
  std::map<std::uint64_t, Value> values_;  // by address
};

}  // namespace reprobe
