// decoders FILE...: every instruction of the files' executable sections, as the planner's decoder
// (libprobe/code: Capstone and own tables) and as verify's (Zydis) read it. Prints what the two
// read differently, by kind and instruction with one example, and fails where an instruction that
// the planner would move is among it.
//
// Sections are read from their start on; behind bytes that neither reads, from the next byte on.

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "libprobe/code/decoder.hpp"
#include "libprobe/code/flag_use.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/verify/x86_reading.hpp"

using namespace reprobe;

namespace {

struct Seen {
  std::uint64_t count{};
  std::string example;
};

class Comparison {
 public:
  explicit Comparison(const Decoder& decoder) : decoder_(decoder) {}

  void section(ByteView bytes, VirtAddr address) {
    while (!bytes.empty()) {
      const std::size_t step = one(bytes.first(std::min<std::size_t>(bytes.size(), 15)), address);
      bytes = bytes.subspan(step);
      address.value += step;
    }
  }

  [[nodiscard]] bool print() const {
    bool good = true;
    for (const auto& [key, seen] : found_) {
      std::printf("%s: %s: %llu times, as %s\n", key.first.c_str(), key.second.c_str(),
                  static_cast<unsigned long long>(seen.count), seen.example.c_str());
      good = good && (key.first.starts_with("refused") || key.first.starts_with("careful"));
    }
    std::printf("%llu instructions, %llu that the planner refuses to move, %llu bytes of none\n",
                static_cast<unsigned long long>(instructions_),
                static_cast<unsigned long long>(refused_), static_cast<unsigned long long>(none_));
    return good;
  }

 private:
  std::size_t one(ByteView bytes, VirtAddr address) {
    const auto code = decoder_.decode_operands(bytes, address);
    const auto reading = read_x86(bytes, address);
    if (!code && !reading) {
      ++none_;
      return 1;
    }
    ++instructions_;
    if (!code) {
      ++refused_;
      differs("refused: only Zydis reads it", bytes.first(size_of(*reading)), address);
      return size_of(*reading);
    }
    const ByteView own = bytes.first(static_cast<std::size_t>(code->size.value));
    if (code->opaque) {
      ++refused_;
      const bool other = reading && reading->size != code->size;
      differs(other ? "refused: length" : "refused", own, address);
      return own.size();
    }
    if (!reading) {
      differs("only the planner reads it", own, address);
    } else if (reading->size != code->size) {
      differs("length", own, address);
    } else {
      compare(*code, *reading, own);
    }
    return own.size();
  }

  static std::size_t size_of(const X86Reading& reading) {
    return static_cast<std::size_t>(reading.size.value);
  }

  void compare(const CodeInstruction& a, const X86Reading& b, ByteView bytes) {
    const auto check = [&](const char* what, bool same) {
      if (!same) differs(what, bytes, a.address);
    };
    check("flow", same_flow(a, b));
    check("target", a.target == b.target);
    check("nop", (a.kind == InstructionKind::nop) == (b.operation == Operation::nop));
    check("lea", a.is_lea() == (b.operation == Operation::lea));
    check("operand", same_memory(a, b));
    check("relative operand", a.rip_target.has_value() == b.rip_field.has_value() &&
                                  (!a.rip_target || a.rip_target == b.memory->address));
    check("immediate", same_immediate(a, b));
    const RegisterSet general = kFlagsBit - 1;
    check("register read, the planner misses it", (b.reads & ~a.reads) == 0);
    check("register written, the planner misses it", (b.writes & ~a.writes) == 0);
    // More than there is costs the planner no correctness, but says that one of the two is wrong.
    if ((a.reads & general & ~(b.reads | b.writes)) != 0)
      differs("careful: a register more is read", bytes, a.address);
    if ((a.writes & general & ~b.writes) != 0)
      differs("careful: a register more is written", bytes, a.address);
    check("flags read", reads_alike(StatusFlag::zero, kZeroFlag, a, b) &&
                            reads_alike(StatusFlag::carry, kCarryFlag, a, b));
    check("flags written",
          !overwrites_flags(a) || (b.flags_written & kStatusFlags) == kStatusFlags);
  }

  static bool same_flow(const CodeInstruction& a, const X86Reading& b) {
    switch (b.flow) {
      case ReadFlow::next:
        return a.flow == Flow::next;
      case ReadFlow::jump:
        return a.kind == InstructionKind::jump;
      case ReadFlow::conditional:
        return a.flow == Flow::conditional || a.kind == InstructionKind::transaction;
      case ReadFlow::call:
        return a.kind == InstructionKind::call;
      case ReadFlow::indirect_jump:
        return a.kind == InstructionKind::indirect_jump;
      case ReadFlow::indirect_call:
        return a.kind == InstructionKind::indirect_call;
      case ReadFlow::ret:
        return a.flow == Flow::ret;
      case ReadFlow::trap:
        return a.flow == Flow::trap;
    }
    return false;
  }

  // The planner's StatusFlag question: does it read more than this one?
  static bool reads_alike(StatusFlag flag, ReadFlags bit, const CodeInstruction& a,
                          const X86Reading& b) {
    return (b.flags_read & ~bit) == 0 || reads_more(flag, a);
  }

  // Capstone does not extend the immediates of operations of less than 64 bits.
  static bool same_immediate(const CodeInstruction& a, const X86Reading& b) {
    if (!a.immediate || !b.immediate()) return true;
    const unsigned bits = b.operands[0].bits;
    const std::uint64_t mask =
        bits == 0 || bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    return ((static_cast<std::uint64_t>(*a.immediate) ^
             static_cast<std::uint64_t>(*b.immediate())) &
            mask) == 0;
  }

  static bool same_memory(const CodeInstruction& a, const X86Reading& b) {
    // An address of 64 bits without a ModRM byte is an operand for Zydis alone.
    if (!a.memory) return !b.memory || !a.encoding.has_modrm();
    if (!b.memory) return a.kind == InstructionKind::nop || a.memory->size == 0;
    const MemoryOperand& x = *a.memory;
    const ReadMemory& y = *b.memory;
    return x.base == y.base && (x.index == y.index || y.vector_index) &&
           (!y.index || x.scale == y.scale) && x.displacement == y.displacement &&
           x.segment >= y.segment && (x.size == y.bytes || x.size == 0 || y.bytes == 0);
  }

  void differs(const char* what, ByteView bytes, VirtAddr address) {
    std::string name = decoder_.mnemonic(bytes, address);
    if (name.empty()) name = "unknown to Capstone";
    Seen& seen = found_[{what, std::move(name)}];
    if (seen.count++ != 0) return;
    char text[64];
    std::snprintf(text, sizeof text, "%#llx:", static_cast<unsigned long long>(address.value));
    seen.example = text;
    for (const std::byte byte : bytes) {
      std::snprintf(text, sizeof text, " %02x", std::to_integer<unsigned>(byte));
      seen.example += text;
    }
  }

  const Decoder& decoder_;
  std::map<std::pair<std::string, std::string>, Seen> found_;
  std::uint64_t instructions_{}, refused_{}, none_{};
};

bool compare_file(const char* path) {
  auto source = map_file(path);
  const auto file = source ? ElfFile::open(std::move(*source)) : tl::unexpected(source.error());
  const auto decoder = file ? Decoder::open(file->header(), false) : std::nullopt;
  if (!decoder || file->header().machine != EM_X86_64) {
    std::fprintf(stderr, "%s: no x86-64 file\n", path);
    return false;
  }
  std::printf("%s\n", path);
  Comparison comparison(*decoder);
  for (const Section& section : file->sections()) {
    if (!section.executable()) continue;
    if (const auto bytes = file->contents(section)) comparison.section(*bytes, section.addr);
  }
  return comparison.print();
}

}  // namespace

int main(int count, char** arguments) {
  bool good = count > 1;
  for (int i = 1; i < count; ++i) good = compare_file(arguments[i]) && good;
  return good ? 0 : 1;
}
