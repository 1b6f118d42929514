// Call frame information as it stands in the file: CIEs and FDEs with their programs. Unlike
// FrameReader, which asks only where functions are, it keeps everything that a copy needs.
// Format: LSB Core 5.0, 10.6.1 (.eh_frame); DWARF 4, 6.4.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "libprobe/code/frame_reader.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Instructions of a CIE or an FDE. The view lives as long as the file.
struct CfiProgram {
  ByteView bytes;
  VirtAddr address;  // of the first byte: what pcrel operands count from
};

struct CfiCie : CieFields {
  VirtAddr address;
  CfiProgram initial;
};

struct CfiFde {
  VirtAddr address;
  VirtAddr next;  // of the record behind it
  VirtAddr start;
  Size size;
  bool has_lsda{};
  VirtAddr cie;
  CfiProgram program;
};

// A record is longer than this only in a file that means harm: the longest program in Debian's
// largest libraries is a few KiB.
inline constexpr std::uint64_t kMaxCfiRecord = std::uint64_t{1} << 16;

// Errors of both: refused, with what was not understood.
[[nodiscard]] Result<CfiCie> read_cie(const ElfFile& file, VirtAddr address);
// The FDE at the address; `cie` gives its CIE, already read where a neighbour had it.
[[nodiscard]] Result<CfiFde> read_fde(const ElfFile& file, VirtAddr address,
                                      std::optional<CfiCie>& cie);

}  // namespace reprobe
