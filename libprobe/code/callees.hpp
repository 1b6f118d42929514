// What a call does to the caller's registers. Of a function that the compiler of the caller could
// see, nothing is taken from the ABI: GCC's -fipa-ra, and LLVM's -enable-ipra, keep a value in a
// register that the ABI lets a callee clobber, where the callee's code leaves it alone. Such a
// callee's code is read. x86-64 only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// System V ABI, x86-64, 3.2.1 and 3.2.3: rax, rcx, rdx, rsi, rdi, r8-r11; rdi, rsi, rdx, rcx, r8,
// r9 are the arguments, r10 is the static chain.
inline constexpr RegisterSet kCallClobbered = 0x0fc7, kArguments = 0x03c6, kResults = 0x0005,
                             kCalleeSaved = 0xf028;

[[nodiscard]] constexpr bool is_any_call(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

struct CallEffect {
  // Registers that the callee writes and does not give back. The caller can count on none of them;
  // the value may be there all the same (a callee with another calling convention).
  RegisterSet written{kCallClobbered};
  // All that it writes is known: registers that are not in `written` hold what they held.
  bool complete{true};
  // Registers in which it may find an argument.
  RegisterSet read{kArguments};
  bool returns{true};
};

// Registers in which the function's caller may find a result. None if there is a way from its entry
// to a return on which nothing writes %rax: nobody passes an argument there but the number of
// vector registers, so that what is left there is no result. Of a function with a name, which is no
// part of another.
[[nodiscard]] RegisterSet results_of(const FunctionFlow& flow);

class Callees {
 public:
  // Both outlive this.
  Callees(const ElfFile& file, const CodeRanges& ranges);

  // Of a direct or indirect call.
  [[nodiscard]] CallEffect effect(const CodeInstruction& call);
  // Of a jump to another function, or to an entry of the procedure linkage table.
  [[nodiscard]] CallEffect effect_at(VirtAddr function);
  // Registers in which a function finds an argument to which one jumps at its end, or its caller
  // the results of the one that jumps.
  [[nodiscard]] RegisterSet passed_by_jump(VirtAddr function, RegisterSet results);
  // May it come back a second time, as setjmp() does?
  [[nodiscard]] bool returns_twice(const CodeInstruction& call) const;

 private:
  struct Body;

  [[nodiscard]] std::string imported(VirtAddr function) const;
  // Of the function that a symbol names, which may be one of another file.
  [[nodiscard]] CallEffect external(const std::string& name);
  CallEffect read_function(VirtAddr start);
  Body read_body(VirtAddr start);
  void walk_call(const CodeInstruction& call, Body& body);
  RegisterSet arguments_read(const Body& body, VirtAddr start);

  const ElfFile* file_;
  const CodeRanges* ranges_;
  std::map<std::uint64_t, std::string> slots_;  // of the GOT -> the symbol that fills it
  std::map<std::string, VirtAddr> exported_;    // functions of the file
  std::map<std::uint64_t, CallEffect> known_;   // of functions of the file
  unsigned depth_{};
  std::uint64_t budget_;  // instructions that may still be read
};

}  // namespace reprobe
