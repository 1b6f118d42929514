// Is a probe's site armed? Its bytes in memory against those of its file: a tracer leaves an
// instruction of its own there. Who it was, the bytes do not tell: the kernel's uprobes and a
// debugger write the same trap.
#pragma once

#include <string>

#include "libprobe/code/nop.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

enum class Armed {
  no,       // as in the file, or a nop again
  yes,      // a trap or a call stands there
  unknown,  // the bytes cannot be read, or are something else
};

struct SiteState {
  Armed armed{Armed::unknown};
  // Of `yes` the instruction: "int3", "call", "brk", ...; of `no` "" or "was-armed" (the kernel
  // leaves parts of its call in the operand of a disarmed nop10); of `unknown` why.
  std::string how;
};

// How many bytes at a site tell its state: those of its nop, else of the machine's smallest
// instruction.
[[nodiscard]] Size state_size(const ElfHeader& header, const Nop& nop);

// `file` and `memory`: the bytes at the site, as many of each; `nop`: what the file has there.
[[nodiscard]] SiteState site_state(const ElfHeader& header, const Nop& nop, ByteView file,
                                   ByteView memory);

[[nodiscard]] const char* to_string(Armed armed);

}  // namespace reprobe
