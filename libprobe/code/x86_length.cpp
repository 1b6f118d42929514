#include "libprobe/code/x86_length.hpp"

#include <algorithm>
#include <array>

namespace reprobe {
namespace {

unsigned byte_at(ByteView bytes, std::size_t at) { return std::to_integer<unsigned>(bytes[at]); }

// Opcode maps by their number in VEX and EVEX.
constexpr unsigned kMap0F = 1, kMap0F38 = 2, kMap0F3A = 3, kMapHalf5 = 5, kMapHalf6 = 6;

struct Opcode {
  std::size_t at{};  // of the opcode byte
  unsigned map{};
};

// Intel SDM volume 2, 2.3.5 (VEX) and 2.7.1 (EVEX).
std::optional<Opcode> vector_opcode(ByteView bytes, std::size_t at, bool is64) {
  if (bytes.size() - at < 2) return std::nullopt;
  const unsigned first = byte_at(bytes, at);
  const unsigned payload = byte_at(bytes, at + 1);
  // In 32-bit code these bytes are lds, les and bound, whose operand is in memory.
  if (!is64 && (payload & 0xc0) != 0xc0) return std::nullopt;
  if (first == 0xc5) return Opcode{at + 2, kMap0F};
  if (first == 0xc4) {
    const unsigned map = payload & 0x1f;
    if (map < kMap0F || map > kMap0F3A) return std::nullopt;
    return Opcode{at + 3, map};
  }
  const unsigned map = payload & 0x0f;
  const bool known = (map >= kMap0F && map <= kMap0F3A) || map == kMapHalf5 || map == kMapHalf6;
  const bool fixed_bit = bytes.size() - at >= 3 && (byte_at(bytes, at + 2) & 0x04) != 0;
  if (!known || !fixed_bit) return std::nullopt;
  return Opcode{at + 4, map};
}

std::optional<Opcode> escaped_opcode(ByteView bytes, std::size_t at) {
  if (bytes.size() - at < 3 || byte_at(bytes, at) != 0x0f) return std::nullopt;
  switch (byte_at(bytes, at + 1)) {
    case 0x38:
      return Opcode{at + 2, kMap0F38};
    case 0x3a:
      return Opcode{at + 2, kMap0F3A};
    case 0x01:
    case 0x1e:
    case 0xae:
    case 0xc7:
      return Opcode{at + 1, kMap0F};
    default:
      return std::nullopt;
  }
}

bool has_immediate(const Opcode& opcode, unsigned code) {
  if (opcode.map == kMap0F3A) return true;
  // Shifts by a constant, compares, inserts, extracts, shuffles.
  return opcode.map == kMap0F &&
         ((code >= 0x70 && code <= 0x73) || code == 0xc2 || (code >= 0xc4 && code <= 0xc6));
}

}  // namespace

bool is_size_or_segment_prefix(std::byte byte) {
  constexpr std::array<unsigned char, 8> prefixes{0x66, 0x67, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65};
  return std::ranges::find(prefixes, std::to_integer<unsigned char>(byte)) != prefixes.end();
}

std::size_t modrm_size(ByteView bytes, std::size_t at) {
  if (at >= bytes.size()) return 0;
  const unsigned mod = byte_at(bytes, at) >> 6;
  const unsigned rm = byte_at(bytes, at) & 7;
  std::size_t size = 1;
  if (mod == 3) return size;
  unsigned base = rm;
  if (rm == 4) {
    if (at + 1 >= bytes.size()) return 0;
    base = byte_at(bytes, at + 1) & 7;
    ++size;
  }
  if (mod == 1) size += 1;
  if (mod == 2 || (mod == 0 && base == 5)) size += 4;
  return size;
}

std::optional<Size> x86_length_by_map(ByteView bytes, bool is64) {
  std::size_t at = 0;
  bool narrow_address = false;
  bool selects_map = false;  // a prefix that must not stand before VEX and EVEX
  for (; at < bytes.size(); ++at) {
    const bool repeats = bytes[at] == std::byte{0xf2} || bytes[at] == std::byte{0xf3};
    if (!repeats && !is_size_or_segment_prefix(bytes[at])) break;
    narrow_address |= bytes[at] == std::byte{0x67};
    selects_map |= repeats || bytes[at] == std::byte{0x66};
  }
  if (at == bytes.size() || (narrow_address && !is64)) return std::nullopt;
  std::optional<Opcode> opcode;
  const unsigned first = byte_at(bytes, at);
  if (first == 0xc4 || first == 0xc5 || first == 0x62) {
    if (!selects_map) opcode = vector_opcode(bytes, at, is64);
  } else {
    if (is64 && first >= 0x40 && first <= 0x4f) ++at;  // REX
    if (at < bytes.size()) opcode = escaped_opcode(bytes, at);
  }
  if (!opcode || opcode->at >= bytes.size()) return std::nullopt;
  const std::size_t operand = modrm_size(bytes, opcode->at + 1);
  if (operand == 0) return std::nullopt;
  const std::size_t immediate = has_immediate(*opcode, byte_at(bytes, opcode->at)) ? 1 : 0;
  const std::size_t size = opcode->at + 1 + operand + immediate;
  if (size > bytes.size() || size > kLongestX86) return std::nullopt;
  return Size{size};
}

}  // namespace reprobe
