#include "libprobe/code/x86_length.hpp"

#include <algorithm>
#include <array>

namespace reprobe {
namespace {

unsigned code_byte(ByteView bytes, std::size_t at) { return std::to_integer<unsigned>(bytes[at]); }

// Opcode maps by their number in VEX and EVEX.
constexpr unsigned kMap0F = 1, kMap0F38 = 2, kMap0F3A = 3, kMapHalf5 = 5, kMapHalf6 = 6;

struct Opcode {
  std::size_t at{};  // of the opcode byte
  unsigned map{};
};

// Intel SDM volume 2, 2.3.5 (VEX) and 2.7.1 (EVEX).
std::optional<Opcode> vector_opcode(ByteView bytes, std::size_t at, bool is64) {
  if (bytes.size() - at < 2) return std::nullopt;
  const unsigned first = code_byte(bytes, at);
  const unsigned payload = code_byte(bytes, at + 1);
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
  const bool fixed_bit = bytes.size() - at >= 3 && (code_byte(bytes, at + 2) & 0x04) != 0;
  if (!known || !fixed_bit) return std::nullopt;
  return Opcode{at + 4, map};
}

std::optional<Opcode> escaped_opcode(ByteView bytes, std::size_t at) {
  if (bytes.size() - at < 3 || code_byte(bytes, at) != 0x0f) return std::nullopt;
  switch (code_byte(bytes, at + 1)) {
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

struct Prefixes {
  std::size_t size{};            // REX included; less than there are bytes
  bool before_vector_invalid{};  // VEX and EVEX must not follow them
  bool address16{};
};

// Nothing where no opcode follows.
std::optional<Prefixes> take_prefixes(ByteView bytes, bool is64) {
  Prefixes prefixes;
  for (; prefixes.size < bytes.size(); ++prefixes.size) {
    const std::byte byte = bytes[prefixes.size];
    const bool repeats = byte == std::byte{0xf2} || byte == std::byte{0xf3};
    if (!repeats && !is_size_or_segment_prefix(byte)) break;
    prefixes.address16 |= byte == std::byte{0x67} && !is64;
    prefixes.before_vector_invalid |= repeats || byte == std::byte{0x66};
  }
  if (prefixes.size == bytes.size()) return std::nullopt;
  const unsigned rex = code_byte(bytes, prefixes.size);
  if (is64 && rex >= 0x40 && rex <= 0x4f) {
    ++prefixes.size;
    prefixes.before_vector_invalid = true;
  }
  if (prefixes.size == bytes.size()) return std::nullopt;
  return prefixes;
}

// The whole instruction, from its opcode's place and form.
std::optional<Size> size_of(ByteView bytes, const Opcode& opcode, bool address16) {
  const std::size_t operand = modrm_size(bytes, opcode.at + 1, address16);
  if (operand == 0) return std::nullopt;
  const std::size_t immediate = has_immediate(opcode, code_byte(bytes, opcode.at)) ? 1 : 0;
  const std::size_t size = opcode.at + 1 + operand + immediate;
  if (size > bytes.size() || size > kLongestX86) return std::nullopt;
  return Size{size};
}

}  // namespace

bool is_size_or_segment_prefix(std::byte byte) {
  constexpr std::array<unsigned char, 8> prefixes{0x66, 0x67, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65};
  return std::ranges::find(prefixes, std::to_integer<unsigned char>(byte)) != prefixes.end();
}

std::size_t modrm_size(ByteView bytes, std::size_t at, bool address16) {
  if (at >= bytes.size()) return 0;
  const unsigned mod = code_byte(bytes, at) >> 6;
  const unsigned rm = code_byte(bytes, at) & 7;
  if (mod == 3) return 1;
  if (address16) return 1 + (mod == 0 ? (rm == 6 ? 2 : 0) : mod);
  std::size_t size = 1;
  unsigned base = rm;
  if (rm == 4) {
    if (at + 1 >= bytes.size()) return 0;
    base = code_byte(bytes, at + 1) & 7;
    ++size;
  }
  if (mod == 1) size += 1;
  if (mod == 2 || (mod == 0 && base == 5)) size += 4;
  return size;
}

std::optional<Size> x86_length_by_map(ByteView bytes, bool is64) {
  const auto prefixes = take_prefixes(bytes, is64);
  if (!prefixes) return std::nullopt;
  const unsigned first = code_byte(bytes, prefixes->size);
  const bool vector = first == 0xc4 || first == 0xc5 || first == 0x62;
  if (vector && prefixes->before_vector_invalid) return std::nullopt;
  const auto opcode =
      vector ? vector_opcode(bytes, prefixes->size, is64) : escaped_opcode(bytes, prefixes->size);
  if (!opcode || opcode->at >= bytes.size()) return std::nullopt;
  return size_of(bytes, *opcode, prefixes->address16);
}

bool is_x86_ud(ByteView bytes, bool is64) {
  const auto prefixes = take_prefixes(bytes, is64);
  if (!prefixes || bytes.size() - prefixes->size < 2) return false;
  const unsigned code = code_byte(bytes, prefixes->size + 1);
  return code_byte(bytes, prefixes->size) == 0x0f && (code == 0xb9 || code == 0xff);
}

std::optional<Size> x86_ud_length(ByteView bytes, bool is64) {
  const auto prefixes = take_prefixes(bytes, is64);
  if (!prefixes || !is_x86_ud(bytes, is64)) return std::nullopt;
  return size_of(bytes, Opcode{prefixes->size + 1, kMap0F}, prefixes->address16);
}

}  // namespace reprobe
