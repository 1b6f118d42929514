// The sites of the record forms kprobe and utrace: calls of the C library's syscall() with the
// probe's name, a magic number of the header and the arguments. The records do not say where they
// are; they are found in the code.
#pragma once

#include <string>
#include <vector>

#include "libprobe/code/callees.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/notes/legacy.hpp"

namespace reprobe {

// A call that is one of these for certain: call rel32, or call *slot(%rip) through the global
// offset table.
struct LegacyCall {
  VirtAddr site;
  std::size_t record{};   // index in LegacyScan::records
  std::string arguments;  // as a note at the call says them
};

struct LegacyCallRefusal {
  VirtAddr site;
  std::string name;  // "": not known
  std::string reason;
};

struct LegacyCalls {
  std::vector<LegacyCall> calls;  // by site
  std::vector<LegacyCallRefusal> refused;
};

// The arguments of a note at the call, where the record has that many: one is passed itself, more
// are an array of words (SystemTap 1.0 to 1.3, sys/sdt.h and sdt_kprobe_var_expanding_visitor).
[[nodiscard]] std::string call_arguments(std::uint64_t count);

// Bytes of a call of these two forms: 5 or 6; 0 for another instruction.
[[nodiscard]] std::uint64_t legacy_call_size(const CodeInstruction& code);

// May the result of the call, by its index in flow.code, be used? The macros drop it. (Where
// control leaves the function it is dropped as well: nobody passes on the result of a probe.) Over a
// call of a function that leaves rax alone it may be kept (GCC's -fipa-ra).
[[nodiscard]] bool result_used(const FunctionFlow& flow, std::size_t call, const CodeRanges& ranges,
                               Callees& callees);

// What syscall() is called with by the headers: the form of the magic number, and whether the
// number of the call is one of theirs.
[[nodiscard]] std::optional<LegacyForm> form_of_magic(std::uint64_t magic);
[[nodiscard]] bool is_call_number(std::uint64_t number);

// x86-64. Never fails: what is not recognised whole is in `refused`.
[[nodiscard]] LegacyCalls find_legacy_calls(const ElfFile& file, const LegacyScan& scan);

// The addresses of the C library's syscall() as direct calls see it: its own, and what
// leads to it through the global offset table. Asked about one target at a time.
class SyscallTargets {
 public:
  explicit SyscallTargets(const ElfFile& file);
  [[nodiscard]] bool empty() const { return slots_.empty() && functions_.empty(); }
  [[nodiscard]] bool has(VirtAddr target) const;
  // Is it a word of the global offset table that holds the address?
  [[nodiscard]] bool has_slot(VirtAddr slot) const;

 private:
  const ElfFile& file_;
  std::vector<VirtAddr> slots_;      // words of the GOT that hold its address
  std::vector<VirtAddr> functions_;  // where the file defines it
};

}  // namespace reprobe
