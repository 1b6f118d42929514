#include "libprobe/rewrite/guards/check_forms.hpp"

#include <algorithm>

#include "libprobe/rewrite/sled/displace.hpp"

namespace reprobe {
namespace {

constexpr std::uint8_t kGroup1Byte = 0x80, kGroup1Sign = 0x83, kMov = 0x8b, kLea = 0x8d, kOr = 0x0b;
constexpr std::uint8_t kMovImmediate = 0xb8, kMovGroup = 0xc7;
constexpr std::uint8_t kMovzxByte = 0xb6, kMovzxWord = 0xb7;
constexpr unsigned kCmp = 7, kOrDigit = 1;
constexpr std::byte kOperand16{0x66}, kStc{0xf9}, kClc{0xf8};

constexpr std::uint8_t kTest = 0x85, kJe = 0x74;

std::byte byte(unsigned value) { return std::byte{static_cast<std::uint8_t>(value)}; }

bool is_plain(const X86Encoding& e) {
  return !e.lock && !e.rep && !e.repne && !e.segment && !e.address32;
}

// Sets the displacement of an operand without registers in `bytes`, an instruction at `at` that has
// `longer` bytes more before it than the original.
Result<void> aim(Bytes& bytes, const CodeInstruction& code, std::size_t longer, VirtAddr at,
                 VirtAddr target) {
  const std::size_t field = code.encoding.displacement_at + longer;
  if (code.encoding.displacement_size != 4 || field + 4 > bytes.size())
    return fail(ErrorCode::internal, "", "an operand without a displacement");
  if (!code.rip_target) {
    // It is sign-extended.
    if (target.value > INT32_MAX) return fail(ErrorCode::refused, "", "the site is above 2 GiB");
    store_uint(bytes, field, 4, std::endian::little, target.value);
    return {};
  }
  const auto relative = encode_relative(VirtAddr{at.value + bytes.size()}, target);
  if (!relative) return tl::unexpected(relative.error());
  std::ranges::copy(*relative, bytes.begin() + static_cast<std::ptrdiff_t>(field));
  return {};
}

// cmpb $unarmed,m8 with the operand of an instruction that has no immediate.
Bytes compare_operand(const CodeInstruction& code, ByteView bytes, std::uint8_t unarmed) {
  constexpr unsigned kRex = 0x40, kNotR = ~0x4U;
  const X86Encoding& e = code.encoding;
  Bytes result(bytes.begin(), bytes.end());
  if (e.opcode_at != 0 && (std::to_integer<unsigned>(result[e.opcode_at - 1]) & 0xf0) == kRex)
    result[e.opcode_at - 1] &= std::byte{kNotR & 0xff};
  result[e.opcode_at] = byte(kGroup1Byte);
  result[e.modrm_at] = (result[e.modrm_at] & std::byte{0xc7}) | byte(kCmp << 3);
  result.push_back(byte(unarmed));
  return result;
}

void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

// 66 [REX.B] 83 /1 ib: orw $1,%r16
Bytes or_one(unsigned reg) {
  Bytes result{kOperand16};
  if (reg >= 8) result.push_back(byte(0x41));
  append(result, {byte(kGroup1Sign), byte(0xc0 | kOrDigit << 3 | (reg & 7)), byte(1)});
  return result;
}

// 66 [REX.RB] 85 /r: testw %r16,%r16
Bytes test_itself(unsigned reg) {
  Bytes result{kOperand16};
  if (reg >= 8) result.push_back(byte(0x45));
  append(result, {byte(kTest), byte(0xc0 | (reg & 7) << 3 | (reg & 7))});
  return result;
}

// 66 [REX.RB] 8d: leaw -unarmed(%r),%r16
Bytes lower_by(unsigned reg, std::uint8_t unarmed) {
  constexpr unsigned kSib = 4, kDisp32 = 0x80;
  Bytes result{kOperand16};
  if (reg >= 8) result.push_back(byte(0x45));
  const unsigned low = reg & 7;
  append(result, {byte(kLea), byte(kDisp32 | low << 3 | low)});
  if (low == kSib) result.push_back(byte(kSib << 3 | low));  // no index
  const std::size_t at = result.size();
  result.resize(at + 4);
  store_uint(result, at, 4, std::endian::little, std::uint32_t{0} - std::uint32_t{unarmed});
  return result;
}

// movzb: a movw becomes movzbw, which has a byte more.
Bytes load_byte(const CodeInstruction& code, ByteView bytes) {
  Bytes result(bytes.begin(), bytes.end());
  const std::size_t opcode = code.encoding.opcode_at;
  result[opcode] = byte(kMovzxByte);
  if (code.encoding.map == OpcodeMap::one_byte)
    result.insert(result.begin() + static_cast<std::ptrdiff_t>(opcode), byte(0x0f));
  return result;
}

}  // namespace

std::optional<CheckForm> check_form(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (code.opaque || !code.memory || code.memory->size != 2 || !is_plain(e)) return std::nullopt;
  const bool word = e.map == OpcodeMap::one_byte && e.operand16 && !e.rex_w;
  if (word && e.opcode == kGroup1Sign && (e.reg & 7) == kCmp) {
    if (code.immediate == 0) return CheckForm::compare;
    if (code.immediate == 1) return CheckForm::below;
  }
  if (word && e.opcode == kMov) return CheckForm::load;
  if (word && e.opcode == kOr) return CheckForm::merge;
  if (e.map == OpcodeMap::map_0f && e.opcode == kMovzxWord && !e.operand16) return CheckForm::load;
  return std::nullopt;
}

Result<Bytes> look_at_site(const CodeInstruction& code, ByteView bytes, const SiteByte& site,
                           VirtAddr at) {
  const auto form = check_form(code);
  if (!form || bytes.size() != code.size.value)
    return fail(ErrorCode::internal, "", "no check of a counter");
  const unsigned reg = code.encoding.reg;
  Bytes result;
  if (*form == CheckForm::load) {
    result = load_byte(code, bytes);
  } else if (*form == CheckForm::merge) {
    result = compare_operand(code, bytes, site.unarmed);
  } else {
    result.assign(bytes.begin(), bytes.end());
    result[code.encoding.opcode_at] = byte(kGroup1Byte);
    result.back() = byte(site.unarmed);
  }
  if (site.site) {
    const bool longer = *form == CheckForm::load && code.encoding.map == OpcodeMap::one_byte;
    auto done = aim(result, code, longer ? 1 : 0, at, *site.site);
    if (!done) return tl::unexpected(done.error());
  }
  if (*form == CheckForm::load) append(result, lower_by(reg, site.unarmed));
  if (*form == CheckForm::below) append(result, {kStc, byte(kJe), byte(1), kClc});
  if (*form == CheckForm::merge) {
    const Bytes merge = or_one(reg);
    append(result, {byte(kJe), byte(static_cast<unsigned>(merge.size()))});
    append(result, merge);
    append(result, test_itself(reg));
  }
  return result;
}

std::optional<unsigned> address_register(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (code.opaque || e.map != OpcodeMap::one_byte || !is_plain(e) || e.operand16)
    return std::nullopt;
  std::optional<unsigned> reg;
  if (e.opcode == kLea || e.opcode == kMov) {
    if (e.rex_w && e.is_memory() && e.rip_relative) reg = e.reg;
  } else if (e.opcode >= kMovImmediate && e.opcode < kMovImmediate + 8) {
    reg = e.opcode_register;
  } else if (e.opcode == kMovGroup && e.mod == 3 && (e.reg & 7) == 0) {
    reg = e.rm;
  }
  return reg == kRsp ? std::nullopt : reg;
}

Result<Bytes> with_address(const CodeInstruction& code, ByteView bytes, VirtAddr at,
                           VirtAddr target) {
  const X86Encoding& e = code.encoding;
  Bytes result(bytes.begin(), bytes.end());
  if (e.is_memory()) {
    result[e.opcode_at] = byte(kLea);
    auto done = aim(result, code, 0, at, target);
    if (!done) return tl::unexpected(done.error());
    return result;
  }
  const bool wide = e.opcode != kMovGroup && e.rex_w;
  if (!wide && target.value > INT32_MAX)
    return fail(ErrorCode::refused, "", "the site is above 2 GiB");
  const unsigned width = wide ? 8 : 4;
  if (result.size() < width) return fail(ErrorCode::internal, "", "an immediate without bytes");
  store_uint(result, result.size() - width, width, std::endian::little, target.value);
  return result;
}

}  // namespace reprobe
