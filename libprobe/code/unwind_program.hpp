// Writes call frame instructions: those that take a consumer from one row to the next.
// Format: DWARF 4, 6.4.2 and 7.23.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/code/cfi_rows.hpp"

namespace reprobe {

void append_uleb128(Bytes& bytes, std::uint64_t value);
void append_sleb128(Bytes& bytes, std::int64_t value);
// In the file's byte order; the value must fit.
void append_number(Bytes& bytes, std::uint64_t value, unsigned width, const ElfHeader& header);

class CfiProgramWriter {
 public:
  // With the alignment factors of the CIE.
  CfiProgramWriter(const ElfHeader& header, const CfiCie& cie) : header_(&header), cie_(&cie) {}

  // `from`: nothing at a CIE's start. Error: refused (an offset that the factors cannot state).
  [[nodiscard]] Result<void> change(const std::optional<CfiRow>& from, const CfiRow& to);
  // Error: refused (not a multiple of the code alignment, over 4 GiB).
  [[nodiscard]] Result<void> advance(std::uint64_t bytes);

  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  void opcode(unsigned op) { bytes_.push_back(static_cast<std::byte>(op)); }
  [[nodiscard]] std::optional<std::int64_t> factored(std::int64_t offset) const;
  void block(ByteView expression);
  [[nodiscard]] bool change_cfa(const CfaRule* from, const CfaRule& to);
  [[nodiscard]] bool change_register(std::uint64_t reg, const RegisterRule& to);
  void register_operation(unsigned op, std::uint64_t reg);

  const ElfHeader* header_;
  const CfiCie* cie_;
  Bytes bytes_;
};

}  // namespace reprobe
