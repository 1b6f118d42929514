// Assembles CIEs and FDEs, for .eh_frame and for .debug_frame.
// Format: LSB Core 5.0, 10.6.1; DWARF 4, 6.4.1.
#pragma once

#include <cstdint>

#include "libprobe/code/cfi.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// The code of an FDE as it is written there: start and size.
struct FdeRange {
  VirtAddr start;
  Size size;
};

class FrameSection {
 public:
  enum class Kind { eh_frame, debug_frame };

  // `place`: the address of the first byte in .eh_frame, its offset in .debug_frame.
  FrameSection(Kind kind, std::uint64_t place, const ElfHeader& header)
      : kind_(kind), place_(place), header_(&header) {}

  // A CIE without a personality routine; gives its offset in bytes().
  std::uint64_t add_cie(const CfiCie& original, const Bytes& initial_program);
  // Gives the FDE's offset. Error: refused (the code lies over 2 GiB away, or is that long).
  [[nodiscard]] Result<std::uint64_t> add_fde(const CfiCie& original, std::uint64_t cie,
                                              const FdeRange& code, const Bytes& program);
  // A length of 0 ends .eh_frame.
  void add_terminator();

  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  void number(std::uint64_t value, unsigned width);
  std::uint64_t begin_record();
  void end_record(std::uint64_t start);

  Kind kind_;
  std::uint64_t place_;
  const ElfHeader* header_;
  Bytes bytes_;
};

}  // namespace reprobe
