// May a function keep live data in the red zone, the 128 bytes below rsp that signal handlers leave
// alone (System V ABI, AMD64 supplement, 3.2.2)? A call at the site overwrites its first 8 bytes.
#pragma once

#include <optional>
#include <string>

#include "libprobe/code/functions.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

struct RedZoneUse {
  bool may_use{true};
  std::string reason;  // why it may, or why it cannot
};

// x86-64 only; true for other machines. False is a proof, as far as compilers go: the whole
// function decodes, addresses nothing below rsp, and either calls something, so that it is no leaf
// (gcc ix86_compute_frame_layout: crtl->is_leaf; LLVM X86FrameLowering: adjustsStack), or never
// addresses the stack except at and above rsp or a frame pointer. Hand-written code that keeps data
// there across its own calls is no leaf either, and would lose it by them. Takes time linear in the
// function's size, at most kLongestDecodedFunction. `budget`: as in check_boundaries().
[[nodiscard]] RedZoneUse may_use_red_zone(const ElfFile& file,
                                          const std::optional<Function>& function,
                                          Size* budget = nullptr);

}  // namespace reprobe
