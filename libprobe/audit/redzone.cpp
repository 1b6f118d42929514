#include "libprobe/audit/redzone.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "libprobe/code/boundary.hpp"
#include "libprobe/code/decoder.hpp"
#include "libprobe/code/x86_length.hpp"

namespace reprobe {
namespace {

// How one instruction uses rsp.
enum class StackUse {
  none,    // not at all, or by push, pop and constants, or at and above rsp
  below,   // a memory operand below rsp
  copied,  // rsp or an address of the stack goes to another register, or an index is added
};

// The encoding of one instruction of 64-bit code, as far as its memory and register operands need
// it (Intel SDM volume 2, chapter 2).
class Encoding {
 public:
  // `bytes` are exactly the instruction's.
  explicit Encoding(ByteView bytes) : bytes_(bytes) {
    read_prefixes();
    read_opcode();
  }

  [[nodiscard]] StackUse stack_use() const {
    if (map_ == 1 && opcode_ == 0x54 && !extends_base_) return StackUse::copied;  // push rsp
    if (map_ == 1 && opcode_ == 0x94 && !extends_base_) return StackUse::copied;  // xchg rax,rsp
    if (map_ == 1 && opcode_ == 0xc8) return StackUse::copied;                    // enter
    if (!has_modrm() || at_ >= bytes_.size()) return StackUse::none;
    const unsigned modrm = byte(at_);
    const unsigned mod = modrm >> 6;
    const unsigned reg = (modrm >> 3 & 7) + (extends_reg_ ? 8 : 0);
    if (mod == 3) {
      const unsigned rm = (modrm & 7) + (extends_base_ ? 8 : 0);
      return copies_registers() && (reg == kRsp || rm == kRsp) ? StackUse::copied : StackUse::none;
    }
    const StackUse memory = (modrm & 7) == 4 ? sib_use(mod) : StackUse::none;
    const bool lea = map_ == 1 && opcode_ == 0x8d;
    // lea -0x80(%rsp),%rsp makes room, and accesses nothing.
    if (lea && reg == kRsp) return memory == StackUse::copied ? memory : StackUse::none;
    if (lea && based_on_rsp()) return memory == StackUse::below ? memory : StackUse::copied;
    if (memory == StackUse::none && copies_registers() && reg == kRsp) return StackUse::copied;
    return memory;
  }

  // Does a frame pointer in rbp stay what it is, and reach nothing below itself? Some more
  // instructions do neither; compilers do not use them so.
  [[nodiscard]] bool keeps_frame(const CodeInstruction& decoded) const {
    if (decoded.opaque) return false;
    if (((decoded.reads | decoded.writes) & (1U << kRbp)) == 0) return true;
    if (map_ == 1 && (opcode_ == 0x5d || opcode_ == 0xc9)) return true;  // pop rbp, leave
    if (!decoded.memory || decoded.is_lea() || map_ > 2) return false;
    const unsigned reg = (byte(at_) >> 3 & 7) + (extends_reg_ ? 8 : 0);
    return decoded.memory->base == kRbp && !decoded.memory->index &&
           decoded.memory->displacement >= 0 && reg != kRbp && (decoded.writes & (1U << kRbp)) == 0;
  }

 private:
  [[nodiscard]] unsigned byte(std::size_t at) const {
    return at < bytes_.size() ? std::to_integer<unsigned>(bytes_[at]) : 0;
  }

  void read_prefixes() {
    constexpr std::string_view kLegacy = "\x66\x67\xf2\xf3\x2e\x36\x3e\x26\x64\x65\xf0";
    while (kLegacy.find(static_cast<char>(byte(at_))) != std::string_view::npos &&
           at_ < bytes_.size()) {
      ++at_;
    }
    const unsigned rex = byte(at_);
    if ((rex & 0xf0U) != 0x40U) return;
    extends_reg_ = (rex & 4U) != 0;
    extends_index_ = (rex & 2U) != 0;
    extends_base_ = (rex & 1U) != 0;
    ++at_;
  }

  // Leaves at_ behind the opcode. map_: 1 one-byte, 2 0F, 3 0F38 and 0F3A, 4 VEX and EVEX.
  void read_opcode() {
    opcode_ = byte(at_);
    if (opcode_ == 0xc5) return read_vex(2, 0xffU);
    // The second byte of a long VEX and of EVEX holds R, X, B inverted.
    if (opcode_ == 0xc4) return read_vex(3, byte(at_ + 1));
    if (opcode_ == 0x62) return read_vex(4, byte(at_ + 1));
    ++at_;
    if (opcode_ != 0x0f) return;
    map_ = 2;
    opcode_ = byte(at_++);
    if (opcode_ != 0x38 && opcode_ != 0x3a) return;
    map_ = 3;
    opcode_ = byte(at_++);
  }

  void read_vex(std::size_t prefix, unsigned inverted) {
    map_ = 4;
    extends_index_ = (inverted & 0x40U) == 0;
    extends_base_ = (inverted & 0x20U) == 0;
    at_ += prefix;
    opcode_ = byte(at_++);
  }

  [[nodiscard]] bool has_modrm() const {
    if (map_ == 4) return opcode_ != 0x77;  // vzeroupper
    if (map_ == 3) return true;
    if (map_ == 2) {
      const bool none =
          (opcode_ >= 0x05 && opcode_ <= 0x0b) || opcode_ == 0x0e ||
          (opcode_ >= 0x30 && opcode_ <= 0x37) || opcode_ == 0x77 ||
          (opcode_ >= 0x80 && opcode_ <= 0x8f) || (opcode_ >= 0xa0 && opcode_ <= 0xa2) ||
          (opcode_ >= 0xa8 && opcode_ <= 0xaa) || (opcode_ >= 0xc8 && opcode_ <= 0xcf);
      return !none;
    }
    if (opcode_ < 0x40) return (opcode_ & 7U) < 4;
    return opcode_ == 0x63 || opcode_ == 0x69 || opcode_ == 0x6b ||
           (opcode_ >= 0x80 && opcode_ <= 0x8f) || opcode_ == 0xc0 || opcode_ == 0xc1 ||
           opcode_ == 0xc6 || opcode_ == 0xc7 || (opcode_ >= 0xd0 && opcode_ <= 0xd3) ||
           (opcode_ >= 0xd8 && opcode_ <= 0xdf) || opcode_ == 0xf6 || opcode_ == 0xf7 ||
           opcode_ >= 0xfe;
  }

  // Do both ModRM fields name general registers, so that the value of one can reach the other?
  // Elsewhere `reg` is part of the opcode or numbers another kind of register.
  [[nodiscard]] bool copies_registers() const {
    if (map_ == 2) {
      return (opcode_ >= 0x40 && opcode_ <= 0x4f) || opcode_ == 0xaf ||
             (opcode_ >= 0xb6 && opcode_ <= 0xb7) || (opcode_ >= 0xbe && opcode_ <= 0xbf) ||
             opcode_ == 0xc0 || opcode_ == 0xc1 || opcode_ == 0xb0 || opcode_ == 0xb1;
    }
    return map_ == 1 &&
           ((opcode_ < 0x40 && (opcode_ & 7U) < 4) || opcode_ == 0x63 || opcode_ == 0x69 ||
            opcode_ == 0x6b || (opcode_ >= 0x84 && opcode_ <= 0x8d));
  }

  [[nodiscard]] bool based_on_rsp() const {
    const unsigned modrm = byte(at_);
    return modrm >> 6 != 3 && (modrm & 7) == 4 && (byte(at_ + 1) & 7) == kRsp && !extends_base_;
  }

  [[nodiscard]] StackUse sib_use(unsigned mod) const {
    if (!based_on_rsp()) return StackUse::none;
    const bool indexed = (byte(at_ + 1) >> 3 & 7) != 4 || extends_index_;
    if (indexed) return StackUse::copied;
    // The sign bit of disp8, or of the last byte of disp32.
    const unsigned high = mod == 1 ? byte(at_ + 2) : mod == 2 ? byte(at_ + 5) : 0;
    return (high & 0x80U) != 0 ? StackUse::below : StackUse::none;
  }

  ByteView bytes_;
  std::size_t at_{};
  unsigned map_{1};
  unsigned opcode_{};
  bool extends_reg_{};
  bool extends_index_{};
  bool extends_base_{};
};

// The offset of `mov %rsp,%rbp` behind an entry's `push %rbp`, with endbr64 before it or not: what
// -fno-omit-frame-pointer puts into a leaf, too.
std::optional<std::size_t> frame_setup(ByteView code) {
  constexpr std::string_view kEndbr = "\xf3\x0f\x1e\xfa";
  constexpr std::string_view kSetup = "\x55\x48\x89\xe5";
  const std::string_view text = as_text(code);
  const std::size_t start = text.starts_with(kEndbr) ? kEndbr.size() : 0;
  if (!text.substr(start).starts_with(kSetup)) return std::nullopt;
  return start + 1;
}

// What one instruction does with the stack, or with the frame pointer, where there is one.
StackUse use_of(const Decoder& decoder, ByteView bytes, VirtAddr address, bool has_frame) {
  const Encoding encoding(bytes);
  const StackUse use = encoding.stack_use();
  if (use != StackUse::none || !has_frame) return use;
  const auto decoded = decoder.decode_operands(bytes, address);
  return decoded && encoding.keeps_frame(*decoded) ? StackUse::none : StackUse::copied;
}

// A call there is a profiler's (-pg -mfentry): gcc's leaf stays a leaf with it.
bool is_entry(ByteView code, std::size_t at) {
  constexpr std::array endbr64{std::byte{0xf3}, std::byte{0x0f}, std::byte{0x1e}, std::byte{0xfa}};
  return at == 0 || (at == endbr64.size() && std::ranges::equal(code.first(at), endbr64));
}

// The call of a retpoline or of a position's own address leads into the function itself: compilers
// make it in leaves too (-mindirect-branch=thunk-inline). One of the function's start is recursion.
bool stays_inside(const Instruction& call, const Function& function) {
  return call.target && *call.target > function.start &&
         call.target->value - function.start.value < function.size.value;
}

RedZoneUse may(std::string reason) { return {.may_use = true, .reason = std::move(reason)}; }

}  // namespace

RedZoneUse may_use_red_zone(const ElfFile& file, const std::optional<Function>& function,
                            Size* budget) {
  if (file.header().machine != EM_X86_64) return may("not x86-64");
  if (!function) return may("the function is not known");
  const Size size = function->size;
  if (size > kLongestDecodedFunction || (budget != nullptr && size > *budget)) {
    return may("the function is too long to be decoded");
  }
  if (budget != nullptr) budget->value -= size.value;
  const ByteView code = file.bytes_at(function->start, size);
  const auto decoder = Decoder::open(file.header(), false);
  if (code.size() != size.value || !decoder) return may("the function's code is not there");
  bool calls = false;
  const std::optional<std::size_t> frame = frame_setup(code);
  std::optional<VirtAddr> copied;
  for (std::size_t at = 0; at < code.size();) {
    const VirtAddr address{function->start.value + at};
    const std::size_t left = code.size() - at;
    const auto instruction =
        decoder->decode(code.subspan(at, std::min(left, kLongestX86)), address);
    if (!instruction) return may(fmt::format("{:#x} cannot be decoded", address.value));
    const auto length = static_cast<std::size_t>(instruction->size.value);
    const bool behind_setup = frame && at > *frame;
    const StackUse use = frame == at
                             ? StackUse::none
                             : use_of(*decoder, code.subspan(at, length), address, behind_setup);
    if (use == StackUse::below) {
      return may(fmt::format("the instruction at {:#x} uses memory below rsp", address.value));
    }
    if (use == StackUse::copied && !copied) copied = address;
    calls = calls || (instruction->flow == Flow::call && !is_entry(code, at) &&
                      !stays_inside(*instruction, *function));
    at += length;
  }
  if (calls) return {.may_use = false, .reason = "the function calls others: it is no leaf"};
  if (copied) {
    return may(fmt::format("it is a leaf, and the instruction at {:#x} copies rsp", copied->value));
  }
  return {.may_use = false, .reason = "the function addresses nothing below rsp"};
}

}  // namespace reprobe
