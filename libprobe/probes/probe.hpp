// A probe as the tool sees it: the note, where its site really is, and everything known about
// that place. read_probes() of libprobe/audit gathers the facts and draws the conclusion.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/code/boundary.hpp"
#include "libprobe/code/functions.hpp"
#include "libprobe/code/nop.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/probes/shift.hpp"

namespace reprobe {

enum class Verdict {
  live,       // the note points at its probe
  dangling,   // proven: the probe's code is not in the file
  ambiguous,  // evidence for both; reported, removed only on request
  unknown,    // the bytes that would tell are not in this file (a debug file)
};

// What the address itself tells, before any byte is looked at.
enum class Place {
  executable,      // in an executable section (or segment, where sections cannot tell)
  only_segment,    // in a section without SHF_EXECINSTR that is mapped executable all the same
  not_executable,  // in a section or segment without code, or in the headers
  outside,         // in no segment and no section
};

// What a relocation that --emit-relocs kept says about the note's location.
enum class RelocationSays {
  nothing,    // no such relocation, or a form that proves nothing
  live,       // symbol + addend is the location
  discarded,  // R_*_NONE, or the undefined symbol
};

// Facts about one site, each from one source.
struct SiteFacts {
  Place place{Place::outside};
  bool has_bytes{};  // the file holds the bytes at the site
  Nop nop;
  std::optional<VirtAddr> slot;  // of a sled: the word of data that it tests
  // It would be a site with a shift that is possible but not proven.
  bool site_if_shifted{};
  // No site as it is, but one where the note's location says, without the base: .stapsdt.base or
  // note.base may be what is wrong.
  bool site_if_not_moved{};
  // The instruction at the site is a jump, call or trap: what a patching tool leaves there.
  bool looks_patched{};
  BoundaryCheck boundary;
  std::optional<Function> function;
  // Consecutive one-byte nops that end right before the site and belong to no note. Compilers
  // pad with at most one (gas and LLVM use longer nops from two bytes on).
  std::size_t stray_nops_before{};
  // They begin with the function (behind its endbr, where it has one), and the row ends with the
  // site: room for a patch (-fpatchable-function-entry) and a probe at the entry.
  bool stray_nops_at_entry{};
  RelocationSays relocation{RelocationSays::nothing};
};

// Where a sled's site was before `reprobe sled` moved it.
struct SledOrigin {
  VirtAddr site;
  std::optional<Function> function;
};

struct Probe {
  Note note;
  // Where the site is: location, moved by the difference between .stapsdt.base and note.base
  // where both are known (libbpf parse_usdt_note), else by ProbeFile::shift. In ET_REL an offset
  // in note.location_section.
  VirtAddr site;
  VirtAddr semaphore;  // moved likewise where the moved address is the writable one; 0: none
  std::optional<FileOffset> site_offset;
  std::string section;  // name of the section that holds the site; "" for none
  SiteFacts facts;
  std::optional<SledOrigin> origin;  // of a sled, where the file still says it
  // Where it is no note but a record of SystemTap up to 1.3: its form (notes/legacy.hpp).
  std::string_view legacy;
  std::vector<Argument> arguments;
  Verdict verdict{Verdict::unknown};
  std::vector<std::string> evidence;  // why, one sentence each
  std::size_t alias_count{};          // other probes at this very instruction
  std::size_t alias_of{};             // the first of them (or itself), by index; with alias_count
};

struct ProbeFile {
  NoteScan scan;
  std::vector<Probe> probes;     // in note order
  std::optional<VirtAddr> base;  // address of .stapsdt.base, where the file has it
  bool has_symtab{};
  bool has_unwind{};
  Shift shift;           // only where `base` cannot tell
  bool machine_known{};  // its nop is known
  bool has_code{};       // an executable section or segment, with or without bytes in the file
  bool debug_file{};     // no executable section has bytes (objcopy --only-keep-debug)
};

// The function that has the site, and the site's address in it: of a sled those it was moved from.
[[nodiscard]] const std::optional<Function>& function_of(const Probe& probe);
[[nodiscard]] VirtAddr site_in_function(const Probe& probe);

[[nodiscard]] const char* to_string(Verdict verdict);
[[nodiscard]] const char* to_string(NopKind kind);
// The `kind` of list --json: "nop", "nop5", "nop10", "other"; "sled-" before it where `reprobe
// sled` put the site, "sled-slot" where it tests a slot; "legacy" of a record.
[[nodiscard]] std::string site_kind(const Probe& probe);

}  // namespace reprobe
