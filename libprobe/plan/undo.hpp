// What gives a rewritten file back its original bytes: a record in a section that is not loaded.
// The record holds every byte that was replaced, the original size and a SHA-256 of the original,
// so that a file that was changed since is recognised and left alone.
//
// Format, numbers as ULEB128 (DWARF 4, 7.6): the 8 bytes "reprobe\1", the original size, the
// SHA-256, the number of ranges, then for each range its distance from the end of the range
// before, its size and its bytes; ranges ascend.
#pragma once

#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// Sections with a record: of sleds, and of guards that look at sites or are always on.
inline constexpr std::string_view kUndoSection = ".reprobe.undo";
inline constexpr std::string_view kGuardsAtSite = ".reprobe.undo.site";
inline constexpr std::string_view kGuardsOn = ".reprobe.undo.on";
// Of sleds that need the index, in a file that had none: for what the first record gives, the file
// with its index.
inline constexpr std::string_view kUndoIndexSection = ".reprobe.undo.index";
// A stub's symbol is called as its function, with this behind.
inline constexpr std::string_view kStubSuffix = ".sled";

// The record for a plan. Edits that are added to the plan later must lie in the ELF header: it is
// kept whole. Error internal: SHA-256 is not available.
[[nodiscard]] Result<Bytes> make_undo(const Plan& plan, const ByteSource& input);

// The record for a file that was made of `original`, whose bytes all have their old offsets.
[[nodiscard]] Result<Bytes> make_undo(ByteView original, ByteView result);

// What the record says, not compared with the SHA-256: what it gives may not be the original.
// Errors: as plan_undo().
[[nodiscard]] Result<Plan> read_undo(const ElfFile& file, std::string_view section = kUndoSection);

// What gives the original back. Errors: refused (the file has no record, or its bytes are no longer
// those that the record was made with), malformed (the record contradicts itself).
[[nodiscard]] Result<Plan> plan_undo(const ElfFile& file, std::string_view section = kUndoSection);

// What the file was before it got its sleds, and the index that they needed. Errors: as plan_undo().
[[nodiscard]] Result<Bytes> undo_all(const ElfFile& file);

}  // namespace reprobe
