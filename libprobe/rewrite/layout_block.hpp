// The bytes directly behind the program header table, where it would go on with more entries.
#pragma once

#include <optional>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// What stands there and can stand elsewhere: the interpreter's name and GNU's notes, which their
// program headers alone find. Nobody else keeps their addresses: the kernel, the dynamic linker and
// every reader of notes go through PT_INTERP, PT_NOTE and PT_GNU_PROPERTY.
struct MovableBlock {
  FileOffset offset;
  VirtAddr address;
  Size size;  // 0: nothing stands there, the bytes are padding

  [[nodiscard]] bool holds(FileOffset at, Size bytes) const {
    return at >= offset && at.value - offset.value <= size.value &&
           bytes.value <= size.value - (at.value - offset.value) && bytes.value != 0;
  }
};

// The block stands this far behind the start of its new segment: of a PT_LOAD and a PT_INTERP at
// one offset LLVM 14's objcopy and strip take the first in the table for the one that holds the
// other, and put the segment at an offset that is not congruent.
inline constexpr std::uint64_t kBeforeBlock = 16;

// Nothing where something else stands there: code, tables, notes of other owners, bytes that no
// header explains. (patchelf fills what it moved away with 'X'.) `more`: how many entries, 1 or 2.
[[nodiscard]] std::optional<MovableBlock> block_behind_headers(const ElfFile& file,
                                                               std::size_t more);

// The PT_NOTE, by index, at whose end the block ends, so that a note that comes to stand behind the
// block continues it. Nothing where there is none, or its notes do not fill it.
[[nodiscard]] std::optional<std::size_t> notes_at_end(const ElfFile& file,
                                                      const MovableBlock& block);

// Can one more entry stand in the table where that is, and nothing has to move for it: in the place
// of a spare one, or over padding behind the table?
[[nodiscard]] bool headers_grow_in_place(const ElfFile& file);

}  // namespace reprobe
