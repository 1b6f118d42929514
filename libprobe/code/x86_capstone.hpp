// What Capstone alone knows of an instruction: its implicit operands. For decoder.cpp only.
#pragma once

#include <capstone/capstone.h>

#include "libprobe/code/x86_operands.hpp"

namespace reprobe {

// Adds the registers, the immediate and the size of the memory operand to what the bytes told.
// `insn` was made by `handle`, with details.
void add_x86_operands(CodeInstruction& code, csh handle, const cs_insn& insn);

}  // namespace reprobe
