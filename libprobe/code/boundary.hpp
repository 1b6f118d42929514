// Is a site at an instruction boundary of its function? Decided by decoding from the function's
// start, once for all sites of one function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/functions.hpp"

namespace reprobe {

enum class Boundary {
  yes,
  // Inside another instruction, and that is certain: something states the function's size, the
  // whole function decodes, its direct branches agree, it has no indirect jump, and control flow
  // leads to the instruction. (Behind a jump or return that nothing branches over, data may stand.)
  no,
  unknown,  // no bytes, no function, no decoder, undecodable bytes, or branches that contradict
};

struct BoundaryCheck {
  Boundary result{Boundary::unknown};
  std::string detail;  // for `no`: "inside mov at 0x1234 (7 bytes)"; for unknown: why
  // The function, decoded from its start, has the site inside an instruction, whether or not that is certain.
  bool inside{};
  // The site is in a row of nops after a ret, jump or trap; no direct branch of the function
  // targets the row, and it ends where one does, aligned to 8, or with the function: it looks like
  // padding. Only set where the whole function decoded and nothing else can enter or leave it in
  // its middle: no indirect jump, no jump to other code (the hot and the cold part of a function
  // jump into each other anywhere), no landing pads. Never set for Thumb.
  bool after_terminator{};
  // The site is in a row of nops that ends where a direct branch of the function goes, at a
  // multiple of 8: what -falign-loops and -falign-jumps put there.
  bool before_aligned_target{};
};

// Functions longer than this are not decoded: `unknown`, except where an instruction's alignment
// decides (AArch64, ARM).
inline constexpr Size kLongestDecodedFunction{std::uint64_t{1} << 20};

// One answer per site; every site lies in [function.start, +size). `budget` is what may still be
// decoded for the file, in bytes, and is reduced by what was; where it does not suffice the answer
// is `unknown`. Functions of a sane file do not overlap, so that its size is a fair budget; without
// one, a hostile file whose functions all overlap takes time quadratic in its size.
[[nodiscard]] std::vector<BoundaryCheck> check_boundaries(const ElfFile& file,
                                                          const Function& function,
                                                          std::uint32_t section,
                                                          std::span<const VirtAddr> sites,
                                                          Size* budget = nullptr);

}  // namespace reprobe
