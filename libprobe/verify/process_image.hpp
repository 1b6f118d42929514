// The memory of a process that loads a file, before the dynamic linker has relocated it: which byte
// stands at each address and what may be done with it. Program headers alone decide, as they do for
// the kernel and the dynamic linker; section headers say nothing here.
// After: Linux fs/binfmt_elf.c (elf_map, set_brk, padzero), glibc elf/dl-map-segments.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Addresses [begin, end) that come from one place and have one protection.
struct MappedPiece {
  std::uint64_t begin{};
  std::uint64_t end{};
  std::optional<std::uint64_t> offset;  // in the file, of the byte at `begin`; nothing: zeros
  std::uint32_t flags{};                // PF_R, PF_W, PF_X
  // A segment states these addresses. The others are what page granularity maps around it: no
  // reader is told of them.
  bool stated{};

  [[nodiscard]] std::optional<std::uint64_t> offset_at(std::uint64_t address) const {
    return offset ? std::optional(*offset + (address - begin)) : std::nullopt;
  }
};

class ProcessImage {
 public:
  // `page`: bytes of a page, a power of two. Each PT_LOAD is mapped in the order of the table, a
  // later one over an earlier one. Errors: refused (a segment that wraps, whose address and offset
  // are not congruent, or more segments than any kernel reads). O(n log n) in the segments.
  [[nodiscard]] static Result<ProcessImage> of(const ElfFile& file, std::uint64_t page);

  // Ascending, apart from each other.
  [[nodiscard]] std::span<const MappedPiece> pieces() const { return pieces_; }
  // The piece that holds the address; nullptr where nothing is mapped. O(log n).
  [[nodiscard]] const MappedPiece* at(std::uint64_t address) const;

 private:
  std::vector<MappedPiece> pieces_;
};

inline constexpr std::uint64_t kSmallestPage = 4096;

// The page sizes with which a kernel of the file's machine may load it: 4 KiB, and the larger ones
// of AArch64, PowerPC, MIPS and the like where every PT_LOAD is aligned for them. x86 has one.
[[nodiscard]] std::vector<std::uint64_t> page_sizes(const ElfFile& file);

}  // namespace reprobe
