// The PT_LOADs of a file as the kernel and the dynamic linker map them, and what a new one among
// them has to respect.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

struct LoadMap {
  std::vector<Segment> loads;  // ascending and apart from each other; at least one
  // The largest page size the file was linked for: two segments never share such a page.
  std::uint64_t page{};
  VirtAddr begin;       // of the first PT_LOAD
  VirtAddr end;         // of the last one's memory, .bss included
  FileOffset file_end;  // of the last bytes of the file that are loaded
};

// Errors: refused (nothing is loaded; segments that overlap, are out of order, wrap, or that no
// loader would map).
[[nodiscard]] Result<LoadMap> load_map(const ElfFile& file);

// Who starts the file decides who looks for its program headers.
enum class LoadedAs {
  library,     // by the dynamic linker, which reads e_phoff from the file
  program,     // by the kernel, which passes AT_PHDR
  interpreter  // it may be a PT_INTERP of others
};

[[nodiscard]] LoadedAs loaded_as(const ElfFile& file);

// Where AT_PHDR points in a program whose table stands at `headers` and whose first PT_LOAD is
// `first`, before the load bias. Linux before 5.18 (load_elf_binary: load_addr + e_phoff) and
// qemu-user take for granted that the first segment's distance between address and offset holds for
// the table too; later kernels look for the segment that has it.
[[nodiscard]] constexpr VirtAddr at_phdr_of_old_kernels(const Segment& first, FileOffset headers) {
  return {first.vaddr.value - first.offset.value + headers.value};
}

}  // namespace reprobe
