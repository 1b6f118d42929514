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

constexpr std::uint8_t kTest = 0x85, kJe = 0x74, kJne = 0x75, kTestGroup = 0xf6;

std::byte byte(unsigned value) { return std::byte{static_cast<std::uint8_t>(value)}; }

bool has_sib(const X86Encoding& e) { return e.mod != 3 && (e.rm & 7) == 4; }

bool is_plain(const X86Encoding& e) {
  return !e.lock && !e.rep && !e.repne && !e.segment && !e.address32;
}

// Sets the displacement of an operand without registers in `bytes`, an instruction at `at` whose
// operand stands at another offset than the original's by `moved`.
Result<void> aim(Bytes& bytes, const CodeInstruction& code, int moved, VirtAddr at,
                 VirtAddr target) {
  const std::size_t field = code.encoding.displacement_at + static_cast<std::size_t>(moved);
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

// cmpb $unarmed,m8 with the operand of the check, which stands a byte nearer to the start where the
// check's opcode has two.
Bytes compare_operand(const CodeInstruction& code, ByteView bytes, std::uint8_t unarmed) {
  constexpr unsigned kRex = 0x40, kNotR = ~0x4U;
  const X86Encoding& e = code.encoding;
  const auto tail = static_cast<std::size_t>(e.displacement_at + e.displacement_size);
  // Behind the operand stands an immediate, or nothing.
  Bytes result(bytes.begin(), bytes.end());
  if (e.displacement_size != 0) result.resize(std::min(tail, result.size()));
  if (e.displacement_size == 0) result.resize(e.modrm_at + 1U + (has_sib(e) ? 1U : 0U));
  std::size_t opcode = e.opcode_at;
  result[opcode] = byte(kGroup1Byte);
  result[e.modrm_at] = (result[e.modrm_at] & std::byte{0xc7}) | byte(kCmp << 3);
  if (e.map != OpcodeMap::one_byte) {
    --opcode;
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(opcode));
  }
  if (opcode != 0 && (std::to_integer<unsigned>(result[opcode - 1]) & 0xf0) == kRex)
    result[opcode - 1] &= std::byte{kNotR & 0xff};
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

// [66] [REX.RB] 0f op /r of a register with itself. Without a REX byte 4-7 are %ah and its like.
Bytes with_byte_register(unsigned opcode, unsigned reg, bool twice, bool word) {
  Bytes result;
  if (word) result.push_back(kOperand16);
  const unsigned low = reg & 7;
  if (reg >= 8) result.push_back(byte(twice ? 0x45 : 0x41));
  if (reg >= 4 && reg < 8) result.push_back(byte(0x40));
  append(result, {byte(0x0f), byte(opcode), byte(0xc0 | (twice ? low << 3 : 0) | low)});
  return result;
}

// setne %r8; movzbl %r8,%r32, or movzbw %r8,%r16
Bytes set_if_different(unsigned reg, bool word) {
  constexpr unsigned kSetne = 0x95;
  Bytes result = with_byte_register(kSetne, reg, false, false);
  append(result, with_byte_register(kMovzxByte, reg, true, word));
  return result;
}

// xchg %rcx,%r; lea -unarmed(%rcx),%ecx; jrcxz 1f; mov $1,%ecx; 1: xchg %rcx,%r
Bytes set_without_flags(unsigned reg, std::uint8_t unarmed) {
  constexpr unsigned kXchg = 0x87, kJrcxz = 0xe3, kMovEcx = 0xb9, kLeaEcx = 0x89;
  Bytes exchange;
  if (reg != kRcx)
    exchange = {byte(reg >= 8 ? 0x49 : 0x48), byte(kXchg), byte(0xc0 | kRcx << 3 | (reg & 7))};
  Bytes result = exchange;
  append(result, {byte(kLea), byte(kLeaEcx)});
  const std::size_t at = result.size();
  result.resize(at + 4);
  store_uint(result, at, 4, std::endian::little, std::uint32_t{0} - std::uint32_t{unarmed});
  append(result, {byte(kJrcxz), byte(5), byte(kMovEcx), byte(1), byte(0), byte(0), byte(0)});
  append(result, exchange);
  return result;
}

// jne 1f; cmpb $unarmed,other(%rip); ... 1:
Result<Bytes> compare_others(const SiteByte& site, VirtAddr at) {
  constexpr unsigned kSize = 9;  // of both
  Bytes result;
  for (std::size_t i = 0; i < site.others.size(); ++i) {
    const std::size_t left = (site.others.size() - i) * kSize - 2;
    append(result, {byte(kJne), byte(static_cast<unsigned>(left)), byte(kGroup1Byte), byte(0x3d)});
    const auto relative = encode_relative(VirtAddr{at.value + result.size() + 5}, site.others[i]);
    if (!relative) return tl::unexpected(relative.error());
    result.insert(result.end(), relative->begin(), relative->end());
    result.push_back(byte(site.unarmed));
  }
  return result;
}

// movzb for movzw
Bytes load_byte(const CodeInstruction& code, ByteView bytes) {
  Bytes result(bytes.begin(), bytes.end());
  result[code.encoding.opcode_at] = byte(kMovzxByte);
  return result;
}

}  // namespace

std::optional<CheckForm> check_form(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (code.opaque || !code.memory || !is_plain(e)) return std::nullopt;
  if (code.memory->size == 1 && !e.rex_w && !e.operand16) {
    if (e.map == OpcodeMap::one_byte && e.opcode == kTestGroup && (e.reg & 7) == 0 &&
        code.immediate == 1)
      return CheckForm::bit;
    if (e.map == OpcodeMap::map_0f && e.opcode == kMovzxByte) return CheckForm::load;
  }
  if (code.memory->size != 2) return std::nullopt;
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

bool keeps_upper_bits(const CodeInstruction& code) {
  return code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode == kMov;
}

Result<Bytes> look_at_site(const CodeInstruction& code, ByteView bytes, const SiteByte& site,
                           VirtAddr at) {
  const auto form = check_form(code);
  if (!form || bytes.size() != code.size.value)
    return fail(ErrorCode::internal, "", "no check of a counter");
  const unsigned reg = code.encoding.reg;
  const bool without_flags = *form == CheckForm::load && site.flags_live;
  if (without_flags && (keeps_upper_bits(code) || !site.others.empty()))
    return fail(ErrorCode::refused, "", "a load that no instructions without flags stand for");
  const bool two_bytes = code.encoding.map != OpcodeMap::one_byte;
  Bytes result =
      without_flags ? load_byte(code, bytes) : compare_operand(code, bytes, site.unarmed);
  if (site.site) {
    auto done = aim(result, code, without_flags || !two_bytes ? 0 : -1, at, *site.site);
    if (!done) return tl::unexpected(done.error());
  }
  const auto others = compare_others(site, VirtAddr{at.value + result.size()});
  if (!others) return tl::unexpected(others.error());
  append(result, *others);
  if (*form == CheckForm::load)
    append(result, without_flags ? set_without_flags(reg, site.unarmed)
                                 : set_if_different(reg, keeps_upper_bits(code)));
  if (*form == CheckForm::below && site.flags_live) {
    // jne 1f; cmpq $-1,%rsp; jmp 2f; 1: cmpb %al,%al; 2:
    append(result, {byte(kJne), byte(6), byte(0x48), byte(kGroup1Sign), byte(0xfc), byte(0xff),
                    byte(0xeb), byte(2), byte(0x38), byte(0xc0)});
  } else if (*form == CheckForm::below) {
    append(result, {kStc, byte(kJe), byte(1), kClc});
  }
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
