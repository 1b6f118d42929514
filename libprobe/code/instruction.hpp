// One instruction, as far as boundaries and control flow need it.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/elf/types.hpp"

namespace reprobe {

// Where execution goes after the instruction.
enum class Flow {
  next,         // to the next instruction only
  conditional,  // to the target or to the next instruction
  jump,         // to the target only
  call,         // to the target, and back to the next instruction
  ret,          // to the caller
  trap,         // nowhere: an instruction that exists to stop the program
};

struct Instruction {
  VirtAddr address;
  Size size;  // 1 .. 15
  Flow flow{Flow::next};
  // Of a direct branch; nothing for an indirect one (register, memory) and for other flows.
  std::optional<VirtAddr> target;

  [[nodiscard]] bool transfers_control() const { return flow != Flow::next; }
  // The next instruction is not reached from this one.
  [[nodiscard]] bool ends_block() const {
    return flow == Flow::jump || flow == Flow::ret || flow == Flow::trap;
  }
  [[nodiscard]] VirtAddr end() const { return {address.value + size.value}; }
};

}  // namespace reprobe
