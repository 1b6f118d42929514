#include "libprobe/verify/debug_frame_records.hpp"

#include <string>

namespace reprobe {
namespace {

// The id of a CIE in the 32-bit format.
constexpr std::uint64_t kCieId = 0xffffffff;

}  // namespace

std::uint64_t DebugFrameRecords::field(std::size_t at, unsigned width) const {
  return load_uint(bytes_, at, width, header_.order);
}

std::optional<std::size_t> DebugFrameRecords::walk(
    std::size_t from, const std::function<bool(const DebugRecord&)>& f) const {
  const unsigned word = header_.word();
  while (from < bytes_.size()) {
    if (bytes_.size() - from < 4) return from;
    const std::uint64_t length = field(from, 4);
    const std::size_t at = from, id = from + 4;
    from = id;
    if (length == 0) continue;  // padding
    if (length > bytes_.size() - id || length < 4) return at;
    from += static_cast<std::size_t>(length);
    if (field(id, 4) == kCieId) continue;
    // Its CIE's offset, the start, the size, and the program.
    const std::size_t head = 4 + 2 * word;
    if (length < head) return at;
    DebugRecord record{at, field(id, 4), {}};
    record.fde.start = VirtAddr{field(id + 4, word)};
    record.fde.size = Size{field(id + 4 + word, word)};
    record.fde.program = {bytes_.subspan(id + head, from - id - head), VirtAddr{}};
    if (!f(record)) return std::nullopt;
  }
  return std::nullopt;
}

// DWARF 4, 6.4.1, without augmentation, as debuggers alone read it.
std::optional<CfiCie> DebugFrameRecords::read_cie(std::uint64_t offset) const {
  if (offset > bytes_.size() || bytes_.size() - offset < 9) return std::nullopt;
  const auto at = static_cast<std::size_t>(offset);
  const std::uint64_t length = field(at, 4);
  if (length < 5 || length > bytes_.size() - at - 4 || field(at + 4, 4) != kCieId) {
    return std::nullopt;
  }
  FrameCursor cursor(bytes_.subspan(at + 8, static_cast<std::size_t>(length) - 4), VirtAddr{},
                     header_);
  CfiCie cie;
  const auto version = cursor.fixed(1);
  const auto augmentation = version ? cursor.augmentation() : std::nullopt;
  if (!augmentation || (*version != 1 && *version != 3)) return std::nullopt;
  const auto code_alignment = cursor.uleb128();
  const auto data_alignment = code_alignment ? cursor.sleb128() : std::nullopt;
  const auto return_register = !data_alignment ? std::nullopt
                               : *version == 1 ? cursor.fixed(1)
                                               : cursor.uleb128();
  if (!return_register || *code_alignment == 0 || *code_alignment > 0xff) return std::nullopt;
  if (!augmentation->empty()) {
    const auto size = augmentation->front() == 'z' ? cursor.uleb128() : std::nullopt;
    if (augmentation->find_first_not_of("zSB") != std::string::npos || !size ||
        !cursor.skip(*size)) {
      return std::nullopt;
    }
  }
  cie.signal_frame = augmentation->find('S') != std::string::npos;
  cie.b_key = augmentation->find('B') != std::string::npos;
  cie.code_alignment = *code_alignment;
  cie.data_alignment = *data_alignment;
  cie.return_register = *return_register;
  cie.initial = {cursor.rest(), cursor.address()};
  return cie;
}

}  // namespace reprobe
