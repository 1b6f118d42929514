#include "libprobe/code/unwind_records.hpp"

#include <string>

#include "libprobe/code/cfi_opcodes.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/code/unwind_program.hpp"

namespace reprobe {

void FrameSection::number(std::uint64_t value, unsigned width) {
  append_number(bytes_, value, width, *header_);
}

std::uint64_t FrameSection::begin_record() {
  const std::uint64_t start = bytes_.size();
  number(0, 4);
  return start;
}

void FrameSection::end_record(std::uint64_t start) {
  // Debuggers expect .debug_frame aligned to the word; in .eh_frame 4 is enough for all.
  const unsigned alignment = kind_ == Kind::eh_frame ? 4 : header_->word();
  while (bytes_.size() % alignment != 0) number(DW_CFA_nop, 1);
  // A record is at most a program of kMaxCfiRecord and its head.
  store_uint(bytes_, static_cast<std::size_t>(start), 4, header_->order, bytes_.size() - start - 4);
}

std::uint64_t FrameSection::add_cie(const CfiCie& original, const Bytes& initial_program) {
  const std::uint64_t start = begin_record();
  const bool eh = kind_ == Kind::eh_frame;
  number(eh ? 0 : 0xffffffff, 4);
  const bool short_register = original.return_register <= 0xff;
  number(short_register ? 1 : 3, 1);  // version: in 1 the register is a byte
  std::string augmentation;
  if (eh || original.signal_frame || original.b_key) augmentation += 'z';
  if (eh) augmentation += 'R';
  if (original.signal_frame) augmentation += 'S';
  if (original.b_key) augmentation += 'B';
  for (const char c : augmentation) number(static_cast<unsigned char>(c), 1);
  number(0, 1);
  append_uleb128(bytes_, original.code_alignment);
  append_sleb128(bytes_, original.data_alignment);
  if (short_register) number(original.return_register, 1);
  if (!short_register) append_uleb128(bytes_, original.return_register);
  if (!augmentation.empty()) {
    number(eh ? 1 : 0, 1);
    if (eh) number(DW_EH_PE_pcrel | DW_EH_PE_sdata4, 1);
  }
  bytes_.insert(bytes_.end(), initial_program.begin(), initial_program.end());
  end_record(start);
  return start;
}

Result<std::uint64_t> FrameSection::add_fde(const CfiCie& original, std::uint64_t cie,
                                            const FdeRange& code, const Bytes& program) {
  const std::uint64_t start = begin_record();
  const auto size = narrow<std::uint32_t>(code.size.value);
  const auto pointer = kind_ == Kind::eh_frame ? narrow<std::uint32_t>(bytes_.size() - cie)
                                               : narrow<std::uint32_t>(place_ + cie);
  // libgcc (find_fde_tail) reads the size with its sign.
  if (!size || *size >> 31 != 0 || !pointer)
    return fail(ErrorCode::refused, ".eh_frame", "over 2 GiB of code or of tables");
  number(*pointer, 4);
  if (kind_ == Kind::eh_frame) {
    const auto distance = unwind_distance(code.start, VirtAddr{place_ + bytes_.size()}, *header_);
    if (!distance) return tl::unexpected(distance.error());
    number(*distance, 4);
    number(*size, 4);
    number(0, 1);  // augmentation data
  } else {
    number(code.start.value, header_->word());
    number(*size, header_->word());
    if (original.signal_frame || original.b_key) number(0, 1);
  }
  bytes_.insert(bytes_.end(), program.begin(), program.end());
  end_record(start);
  return start;
}

void FrameSection::add_terminator() { number(0, 4); }

}  // namespace reprobe
