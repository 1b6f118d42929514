// The records that the probe macros of SystemTap up to 1.3 left in .probes, where later ones write
// notes. Their forms, the relocations that they need and the form without any that `reprobe fix`
// gives them: docs/legacy.md. SystemTap alone reads them (tapsets.cxx), and only in a file without
// .note.stapsdt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

enum class LegacyForm : std::uint8_t {
  uprobe1,  // "PRB1": name and place
  kprobe1,  // "PRB2": name and number of arguments; the site is a call of getegid
  utrace1,  // "PRB3": the same with a system call that does not exist
  uprobe2,  // "UPB2": provider, name, arguments, place
  kprobe2,  // "KPB2": provider, name, number of arguments
};

// The magic number of a record whose words are distances from themselves: the letters are small
// ones. Readers that know absolute words only step over it.
inline constexpr std::uint32_t kSelfRelative = 0x00202020;

// What a note says where a form has no provider.
inline constexpr std::string_view kLegacyProvider = "legacy";

// A word of a record that is an address.
struct LegacyWord {
  std::uint64_t offset{};  // in the section
  VirtAddr value;          // after relocation; 0: none
};

struct LegacyRecord {
  LegacyForm form{};
  bool self_relative{};
  std::uint64_t offset{};  // of the magic number in the section
  std::uint64_t end{};     // behind its last word
  std::string provider;    // "" in the forms 1
  std::string name;
  std::string operands;   // uprobe2: as the compiler wrote them, without sizes
  std::uint64_t count{};  // of arguments; 0 in uprobe1, which does not say
  VirtAddr location;      // 0 in the forms of calls
  VirtAddr semaphore;     // 0: none
  std::vector<LegacyWord> words;
  // A word whose value is not known before the program runs: it takes another module's symbol.
  bool unresolved{};

  [[nodiscard]] bool is_call() const {
    return form != LegacyForm::uprobe1 && form != LegacyForm::uprobe2;
  }
};

struct LegacyScan {
  const Section* section{};           // .probes; nullptr where the file has no records
  std::vector<LegacyRecord> records;  // in the section's order
  // Ranges of the section that records, their strings and their counters take, sorted, as
  // [begin, end).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> used;
  std::vector<Finding> findings;  // rule legacy-unreadable
};

// Reads the records of a linked file, with the values that the dynamic linker will write. Never
// fails: what cannot be read is in `findings`.
[[nodiscard]] LegacyScan scan_legacy(const ElfFile& file);

// The magic number of the form: as a record with absolute words states it.
[[nodiscard]] std::uint32_t magic_of(LegacyForm form);

// "uprobe-1", "kprobe-1", "utrace-1", "uprobe-2", "kprobe-2".
[[nodiscard]] std::string_view to_string(LegacyForm form);

// The operands of a record as arguments of a note: each as a signed long. Nothing where they are
// not as many as the record says.
[[nodiscard]] std::optional<std::string> note_arguments(const LegacyRecord& record,
                                                        const ElfHeader& header);

}  // namespace reprobe
