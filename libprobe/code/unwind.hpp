// Unwind tables for code that was moved into stubs: new FDEs, the search table that finds them, and
// the same rows for debuggers. A stub's rows are those of the function's middle it came from.
// Format: LSB Core 5.0, 10.6 (.eh_frame, .eh_frame_hdr); DWARF 4, 6.4 (.debug_frame).
//
// Who finds an FDE how:
// - libgcc (_Unwind_Find_FDE), LLVM's and nongnu's libunwind by PT_GNU_EH_FRAME's search table,
//   wherever the FDE is;
// - perf with nongnu's libunwind by the search table of the SECTION .eh_frame_hdr;
// - gdb (dwarf2_build_frame_info) and valgrind in the sections .eh_frame and .debug_frame;
// - elfutils (__libdw_find_fde) by the search table, but only inside the section .eh_frame; then in
//   .debug_frame.
//
// The new FDEs have no LSDA and no personality routine. A stub holds no call, so no exception
// begins in it; those that pass begin in callees, whose return address is in the original. What
// differs is an exception from a signal handler that interrupted the stub (code compiled with
// -fnon-call-exceptions, asynchronous cancellation): it passes by the landing pads of the stub's
// own function and goes on in the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "libprobe/code/unwind_frames.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Code in a stub and where it came from.
struct StubPiece {
  VirtAddr start;  // in the stub
  Size size;       // not 0
  // The rows in force before the instruction at this address hold for the whole piece: one piece an
  // instruction for displaced code; the site's own address for the bytes of a sled.
  VirtAddr original;
  // Bytes by which the stack pointer is lower than in the original there: 8 in the stub of a call,
  // 128 between the two `lea` of a guarded sled.
  std::int64_t cfa_adjust{};
};

// The pieces are contiguous and ascending, and come from one function.
struct Stub {
  std::vector<StubPiece> pieces;
};

// Where the new tables will be.
struct UnwindPlaces {
  VirtAddr eh_frame;      // a multiple of 4
  VirtAddr eh_frame_hdr;  // a multiple of 4: libgcc does not use a table that is not aligned
  // Where in .debug_frame the new records begin: the size of the section that the file has, rounded
  // up to the word; 0 where it has none. CIE pointers count from the section's start.
  std::uint64_t debug_frame_offset{};
};

// Bytes that build() gives: exactly, where the stubs stand at their final distances from each other
// already; at most, where they do not.
struct UnwindSizes {
  Size eh_frame;
  Size eh_frame_hdr;
  Size debug_frame;
};

// All empty where no stub stands for code that had unwind information; .eh_frame and its table
// empty where the program's unwinder finds nothing of the original either (a dynamic program
// without PT_GNU_EH_FRAME).
struct UnwindTables {
  Bytes eh_frame;
  // A new table: every entry of the program's own, and the stubs'. Or empty:
  Bytes eh_frame_hdr;
  // Entries of the program's own table that change, from this address on. The program header and
  // the section stay as they are.
  std::optional<std::pair<VirtAddr, Bytes>> table_edit;
  Bytes debug_frame;  // appended to .debug_frame; not loaded
};

// A search table that is longer stays where it is: a copy would be most of what the file grows by.
// Its neighbours leave it no room to grow; so two functions share an FDE, and so do many stubs.
inline constexpr Size kMostRebuilt{16384};

class UnwindWriter {
 public:
  // Reads the search table, or walks .eh_frame where the file has none. A file without unwind
  // information is no error: its stubs unwind as the original does, not at all. Error: refused
  // (the existing tables cannot be rebuilt: not sorted, unreadable). The file must outlive it.
  [[nodiscard]] static Result<UnwindWriter> open(const ElfFile& file,
                                                 Size most_rebuilt = kMostRebuilt);

  // Whether the file has unwind information, to which the stubs' is added.
  [[nodiscard]] bool has_tables() const { return !index_.entries.empty(); }
  // A static program whose start-up code registers .eh_frame has no PT_GNU_EH_FRAME: one must be
  // added for the stubs' table, or they have no unwind information. libgcc looks there for what was
  // not registered; the functions stay out of the table, so that nothing else is found in it.
  [[nodiscard]] bool needs_program_header() const {
    return index_.found == UnwindIndex::Found::by_registration && has_tables();
  }

  // For the planner: whether the rows of such a stub can be stated. Neither start nor size of the
  // pieces is looked at. Error: refused, with the reason.
  [[nodiscard]] Result<void> check(std::span<const StubPiece> pieces);

  // Does an unwinder find the same row at both addresses, or none at both? False where the unwind
  // information cannot be read.
  [[nodiscard]] bool same_row(VirtAddr a, VirtAddr b);

  // Does the row there find a register's value below the stack pointer, as after a pop that no
  // instruction of the unwind table follows? Where the row counts from the stack pointer.
  [[nodiscard]] bool names_below_stack(VirtAddr at);

  // The places of the pieces in their stub must be final.
  [[nodiscard]] Result<UnwindSizes> sizes(std::span<const Stub> stubs);

  // Errors: refused (as check(); a distance over 2 GiB; a stub on top of a function or of a stub),
  // internal (the new instructions, read back, do not give the rows).
  [[nodiscard]] Result<UnwindTables> build(std::span<const Stub> stubs, const UnwindPlaces& places);

 private:
  // The unwind information of one function.
  struct Source {
    FrameKind kind;
    CfiFde fde;
    CfiRows rows;
  };
  struct Frames;

  UnwindWriter(const ElfFile& file, UnwindIndex index, Size most_rebuilt)
      : file_(&file), index_(std::move(index)), most_rebuilt_(most_rebuilt) {}

  [[nodiscard]] Result<const Source*> source(VirtAddr original);
  [[nodiscard]] Result<FrameRows> rows(std::span<const StubPiece> pieces,
                                       const Source& source) const;
  [[nodiscard]] Result<Frames> describe(std::span<const Stub> stubs);
  [[nodiscard]] Result<void> check_place(const FrameRows& stub) const;
  [[nodiscard]] Result<UnwindTables> build_beside(const Frames& frames,
                                                  const UnwindPlaces& places) const;
  // Nothing where it cannot be done.
  [[nodiscard]] Result<std::optional<UnwindTables>> build_over_old(
      const Frames& frames, const UnwindPlaces& places) const;

  const ElfFile* file_;
  UnwindIndex index_;
  Size most_rebuilt_;
  // The last one: a function's sites come one after the other.
  std::optional<Source> source_;
  std::size_t rules_{};  // of all sources read
};

}  // namespace reprobe
