#include "libprobe/code/nop.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "libprobe/code/machine.hpp"
#include "libprobe/code/x86_length.hpp"

namespace reprobe {
namespace {

unsigned byte_at(ByteView bytes, std::size_t at) { return std::to_integer<unsigned>(bytes[at]); }

template <std::size_t N>
bool starts_with(ByteView bytes, const std::array<unsigned char, N>& pattern) {
  return bytes.size() >= N &&
         std::equal(pattern.begin(), pattern.end(), bytes.begin(),
                    [](unsigned char want, std::byte have) { return std::byte{want} == have; });
}

constexpr std::array<unsigned char, 5> kNop5{0x0f, 0x1f, 0x44, 0x00, 0x00};
constexpr std::array<unsigned char, 10> kNop10{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0};

// i386 padding of older assemblers: an instruction that moves %esi or %edi to itself. Gives its
// size, 0 for none.
std::size_t i386_self_move(ByteView bytes) {
  constexpr std::array<unsigned char, 2> mov_esi{0x89, 0xf6};     // mov %esi,%esi
  constexpr std::array<unsigned char, 3> lea_esi{0x8d, 0x76, 0};  // lea 0(%esi),%esi
  constexpr std::array<unsigned char, 4> lea_esi_sib{0x8d, 0x74, 0x26, 0};
  constexpr std::array<unsigned char, 6> lea_esi_long{0x8d, 0xb6, 0, 0, 0, 0};
  constexpr std::array<unsigned char, 7> lea_esi_sib_long{0x8d, 0xb4, 0x26, 0, 0, 0, 0};
  constexpr std::array<unsigned char, 3> lea_edi{0x8d, 0x7f, 0};
  constexpr std::array<unsigned char, 4> lea_edi_sib{0x8d, 0x7c, 0x27, 0};
  constexpr std::array<unsigned char, 6> lea_edi_long{0x8d, 0xbf, 0, 0, 0, 0};
  constexpr std::array<unsigned char, 7> lea_edi_sib_long{0x8d, 0xbc, 0x27, 0, 0, 0, 0};
  const auto size_of = [&](const auto& pattern) {
    return starts_with(bytes, pattern) ? pattern.size() : 0;
  };
  return std::max({size_of(mov_esi), size_of(lea_esi), size_of(lea_esi_sib), size_of(lea_esi_long),
                   size_of(lea_esi_sib_long), size_of(lea_edi), size_of(lea_edi_sib),
                   size_of(lea_edi_long), size_of(lea_edi_sib_long)});
}

// Nops with prefixes and operands: size of the instruction, 0 where it is none.
std::size_t x86_long_nop(ByteView bytes, std::uint16_t machine) {
  std::size_t at = 0;
  bool address16 = false;
  for (; at < bytes.size() && is_size_or_segment_prefix(bytes[at]); ++at)
    address16 |= machine == EM_386 && bytes[at] == std::byte{0x67};
  // REX without B: with B, 90 is xchg %r8,%rax (Intel SDM, XCHG). On i386 it is inc/dec.
  if (machine == EM_X86_64 && at < bytes.size()) {
    const unsigned rex = byte_at(bytes, at);
    if (rex >= 0x40 && rex <= 0x4f) {
      if (at + 1 < bytes.size() && byte_at(bytes, at + 1) == 0x90 && (rex & 1) != 0) return 0;
      ++at;
    }
  }
  std::size_t size = 0;
  if (at < bytes.size() && byte_at(bytes, at) == 0x90) {
    size = at + 1;
  } else if (at + 2 < bytes.size() && byte_at(bytes, at) == 0x0f &&
             byte_at(bytes, at + 1) == 0x1f && (byte_at(bytes, at + 2) & 0x38) == 0) {
    // 0f 1f /0 is the only multi-byte form the SDM calls NOP.
    const std::size_t operand = modrm_size(bytes, at + 2, address16);
    if (operand != 0) size = at + 2 + operand;
  } else if (machine == EM_386) {
    const std::size_t move = i386_self_move(bytes.subspan(at));
    if (move != 0) size = at + move;
  }
  return size <= kLongestX86 && size <= bytes.size() ? size : 0;
}

Nop x86_nop(ByteView bytes, std::uint16_t machine) {
  if (byte_at(bytes, 0) == 0x90) {
    if (machine == EM_X86_64) {
      if (starts_with(bytes.subspan(1), kNop10)) return {NopKind::nop10, 1 + kNop10.size()};
      if (starts_with(bytes.subspan(1), kNop5)) return {NopKind::nop5, 1 + kNop5.size()};
    }
    return {NopKind::nop, 1};
  }
  if (machine == EM_X86_64 && starts_with(bytes, kNop5)) return {NopKind::nop5, kNop5.size()};
  const std::size_t size = x86_long_nop(bytes, machine);
  return size == 0 ? Nop{} : Nop{NopKind::other, size};
}

Nop word_nop(ByteView bytes, std::endian order, std::uint32_t word) {
  if (bytes.size() < 4 || load_uint(bytes, 0, 4, order) != word) return {};
  return {NopKind::nop, 4};
}

Nop thumb_nop(ByteView bytes, std::endian order) {
  if (bytes.size() < 2) return {};
  const std::uint64_t half = load_uint(bytes, 0, 2, order);
  // 46c0 (mov r8,r8) is what assemblers emit for cores without the hint.
  if (half == 0xbf00 || half == 0x46c0) return {NopKind::nop, 2};
  if (half == 0xf3af && bytes.size() >= 4 && load_uint(bytes, 2, 2, order) == 0x8000)
    return {NopKind::other, 4};  // nop.w
  return {};
}

Nop arm_nop(ByteView bytes, std::endian order) {
  const Nop hint = word_nop(bytes, order, 0xe320f000);
  // mov r0,r0: what assemblers emit before ARMv6K.
  return hint.kind != NopKind::none ? hint : word_nop(bytes, order, 0xe1a00000);
}

// Branches on condition whose mask is 0 do nothing (z/Architecture Principles of Operation, BC).
Nop s390_nop(ByteView bytes) {
  const auto bits = [&](std::size_t at, unsigned mask) { return byte_at(bytes, at) & mask; };
  if (bytes.size() >= 2 && byte_at(bytes, 0) == 0x07 && bits(1, 0xf0) == 0)
    return {NopKind::other, 2};  // bcr 0,%rN
  if (bytes.size() >= 4 && byte_at(bytes, 0) == 0x47 && bits(1, 0xf0) == 0)
    return {load_uint(bytes, 0, 4, std::endian::big) == 0x47000000 ? NopKind::nop : NopKind::other,
            4};
  if (bytes.size() >= 4 && byte_at(bytes, 0) == 0xa7 && byte_at(bytes, 1) == 0x04)
    return {NopKind::other, 4};  // brc 0
  if (bytes.size() >= 6 && byte_at(bytes, 0) == 0xc0 && byte_at(bytes, 1) == 0x04)
    return {NopKind::other, 6};  // brcl 0
  return {};
}

Nop riscv_nop(ByteView bytes) {
  if (bytes.size() >= 2 && load_uint(bytes, 0, 2, std::endian::little) == 0x0001)
    return {NopKind::nop, 2};
  return word_nop(bytes, std::endian::little, 0x00000013);
}

}  // namespace

Nop nop_at(ByteView bytes, const ElfHeader& header, bool thumb) {
  if (bytes.empty()) return {};
  const std::endian order = code_order(header);
  switch (header.machine) {
    case EM_386:
    case EM_X86_64:
      return x86_nop(bytes, header.machine);
    case EM_AARCH64:
      return word_nop(bytes, order, 0xd503201f);
    case EM_PPC64:
      return word_nop(bytes, order, 0x60000000);
    case EM_S390:
      return s390_nop(bytes);
    case EM_ARM:
      return thumb ? thumb_nop(bytes, order) : arm_nop(bytes, order);
    case EM_RISCV:
      return riscv_nop(bytes);
    default:
      return {};
  }
}

bool knows_nops(std::uint16_t machine) {
  constexpr std::array<std::uint16_t, 7> known{EM_386,  EM_X86_64, EM_AARCH64, EM_PPC64,
                                               EM_S390, EM_ARM,    EM_RISCV};
  return std::find(known.begin(), known.end(), machine) != known.end();
}

}  // namespace reprobe
