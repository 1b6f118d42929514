// The records of .debug_frame, as debuggers read them. Format: DWARF 4, 6.4.1, the 32-bit one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "libprobe/code/cfi.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

struct DebugRecord {
  std::size_t at{};  // its offset
  std::uint64_t cie{};
  CfiFde fde;
};

class DebugFrameRecords {
 public:
  DebugFrameRecords(ByteView bytes, const ElfHeader& header) : bytes_(bytes), header_(header) {}

  // Calls `f` for the FDEs from an offset on until it answers false. Gives the offset of what is no
  // record.
  std::optional<std::size_t> walk(std::size_t from,
                                  const std::function<bool(const DebugRecord&)>& f) const;
  // The CIE at an offset.
  [[nodiscard]] std::optional<CfiCie> read_cie(std::uint64_t offset) const;

 private:
  [[nodiscard]] std::uint64_t field(std::size_t at, unsigned width) const;

  ByteView bytes_;
  const ElfHeader& header_;
};

}  // namespace reprobe
