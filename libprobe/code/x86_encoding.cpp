#include "libprobe/code/x86_encoding.hpp"

#include <array>
#include <cstddef>

namespace reprobe {
namespace {

// Takes the bytes one by one; 0 behind the end, which overrun() tells.
class ByteCursor {
 public:
  explicit ByteCursor(ByteView bytes) : bytes_(bytes) {}

  [[nodiscard]] unsigned peek() const {
    return at_ < bytes_.size() ? std::to_integer<unsigned>(bytes_[at_]) : 0;
  }
  unsigned take() {
    const unsigned byte = peek();
    ++at_;
    return byte;
  }
  void skip(unsigned count) { at_ += count; }
  [[nodiscard]] unsigned at() const { return static_cast<unsigned>(at_); }
  [[nodiscard]] bool overrun() const { return at_ > bytes_.size(); }

 private:
  ByteView bytes_;
  std::size_t at_{};
};

// REX bits, or what VEX, EVEX and XOP hold in their place.
struct Extension {
  unsigned r{}, x{}, b{};
};

bool take_legacy_prefix(ByteCursor& cursor, X86Encoding& out) {
  switch (cursor.peek()) {
    case 0x66:
      out.operand16 = true;
      break;
    case 0x67:
      out.address32 = true;
      break;
    case 0xf0:
      out.lock = true;
      break;
    case 0xf2:
      out.repne = true;
      break;
    case 0xf3:
      out.rep = true;
      break;
    case 0x64:
    case 0x65:
      out.segment = true;
      break;
    case 0x26:  // without effect in 64-bit mode; 3e is also notrack, 2e and 3e branch hints
    case 0x2e:
    case 0x36:
    case 0x3e:
      break;
    default:
      return false;
  }
  cursor.skip(1);
  return true;
}

// Appendix A, table A-2: 64-bit mode.
bool one_byte_has_modrm(unsigned opcode) {
  if (opcode < 0x40) return (opcode & 7) < 4;
  if (opcode == 0x63 || opcode == 0x69 || opcode == 0x6b) return true;
  if (opcode >= 0x80 && opcode <= 0x8f) return true;
  if (opcode == 0xc0 || opcode == 0xc1 || opcode == 0xc6 || opcode == 0xc7) return true;
  if (opcode >= 0xd0 && opcode <= 0xd3) return true;
  if (opcode >= 0xd8 && opcode <= 0xdf) return true;
  return opcode == 0xf6 || opcode == 0xf7 || opcode == 0xfe || opcode == 0xff;
}

// Table A-3.
bool map_0f_has_modrm(unsigned opcode) {
  if (opcode >= 0x04 && opcode <= 0x0e) return opcode == 0x0d;
  if (opcode >= 0x30 && opcode <= 0x37) return false;
  if (opcode == 0x77 || (opcode >= 0x80 && opcode <= 0x8f)) return false;
  if (opcode >= 0xa0 && opcode <= 0xa2) return false;
  if (opcode >= 0xa8 && opcode <= 0xaa) return false;
  return opcode < 0xc8 || opcode > 0xcf;
}

bool has_modrm(OpcodeMap map, unsigned opcode) {
  switch (map) {
    case OpcodeMap::one_byte:
      return one_byte_has_modrm(opcode);
    case OpcodeMap::map_0f:
      return map_0f_has_modrm(opcode);
    default:
      return true;  // of VEX, vzeroupper and vzeroall (0f 77) alone have none
  }
}

// VEX (2.3.5), EVEX (2.7.1), XOP: the bytes up to the opcode. The fields are stored inverted.
Extension take_vector_prefix(ByteCursor& cursor, X86Encoding& out, unsigned& vex_map) {
  out.map = OpcodeMap::vector;
  const unsigned first = cursor.take();
  const unsigned p0 = cursor.take();
  const auto inverted = [&](unsigned bit) { return ((p0 >> bit) & 1) ^ 1; };
  if (first == 0xc5) {
    vex_map = 1;
    return {inverted(7), 0, 0};
  }
  vex_map = first == 0x62 ? p0 & 7 : p0 & 0x1f;
  const unsigned p1 = cursor.take();
  out.rex_w = (p1 & 0x80) != 0;
  if (first == 0x62) cursor.skip(1);
  return {inverted(7), inverted(6), inverted(5)};
}

Extension take_rex_and_escapes(ByteCursor& cursor, X86Encoding& out) {
  Extension extension;
  if ((cursor.peek() & 0xf0) == 0x40) {
    const unsigned rex = cursor.take();
    out.rex_w = (rex & 8) != 0;
    extension = {(rex >> 2) & 1, (rex >> 1) & 1, rex & 1};
  }
  if (cursor.peek() != 0x0f) return extension;
  cursor.skip(1);
  out.map = OpcodeMap::map_0f;
  if (cursor.peek() == 0x38) out.map = OpcodeMap::map_0f38;
  if (cursor.peek() == 0x3a) out.map = OpcodeMap::map_0f3a;
  if (out.map != OpcodeMap::map_0f) cursor.skip(1);
  return extension;
}

// Tables 2-2 and 2-3: ModRM, SIB and displacement.
void take_operand(ByteCursor& cursor, X86Encoding& out, const Extension& extension) {
  out.modrm_at = cursor.at();
  const unsigned modrm = cursor.take();
  out.mod = modrm >> 6;
  out.reg = ((modrm >> 3) & 7) | (extension.r << 3);
  const unsigned rm = modrm & 7;
  out.rm = rm | (extension.b << 3);
  if (out.mod == 3) return;
  unsigned base = rm;
  if (rm == 4) {
    const unsigned sib = cursor.take();
    base = sib & 7;
    const unsigned index = ((sib >> 3) & 7) | (extension.x << 3);
    if (index != 4) out.index = index;
    out.scale = 1U << (sib >> 6);
  }
  const bool without_base = out.mod == 0 && base == 5;
  out.rip_relative = without_base && rm != 4;
  if (!without_base) out.base = base | (extension.b << 3);
  out.displacement_size = out.mod == 1 ? 1 : out.mod == 2 || without_base ? 4 : 0;
  out.displacement_at = cursor.at();
  cursor.skip(out.displacement_size);
}

}  // namespace

std::optional<X86Encoding> x86_encoding(ByteView bytes) {
  X86Encoding out;
  ByteCursor cursor(bytes);
  while (cursor.at() < bytes.size() && take_legacy_prefix(cursor, out)) continue;
  const unsigned first = cursor.peek();
  const unsigned second =
      cursor.at() + 1 < bytes.size() ? std::to_integer<unsigned>(bytes[cursor.at() + 1]) : 0;
  // XOP shares its first byte with pop r/m, whose ModRM has fewer than 8 in the low five bits.
  const bool vector =
      first == 0xc4 || first == 0xc5 || first == 0x62 || (first == 0x8f && (second & 0x1f) >= 8);
  unsigned vex_map = 0;
  const Extension extension =
      vector ? take_vector_prefix(cursor, out, vex_map) : take_rex_and_escapes(cursor, out);
  out.opcode_at = cursor.at();
  out.opcode = static_cast<std::uint8_t>(cursor.take());
  out.opcode_register = (out.opcode & 7U) | (extension.b << 3);
  const bool vzero = vector && vex_map == 1 && out.opcode == 0x77;
  if (!vzero && has_modrm(out.map, out.opcode)) take_operand(cursor, out, extension);
  if (cursor.overrun()) return std::nullopt;
  return out;
}

}  // namespace reprobe
