// Register names by machine, as GCC and clang print them in operands of inline assembly.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/operand.hpp"

namespace reprobe {
namespace {

using Names = std::initializer_list<std::string_view>;

bool one_of(std::string_view name, Names names) {
  return std::ranges::find(names, name) != names.end();
}

// prefix + decimal number up to `last`, without leading zeros.
bool numbered(std::string_view name, std::string_view prefix, unsigned last) {
  if (!name.starts_with(prefix)) return false;
  const std::string_view digits = name.substr(prefix.size());
  if (digits.empty() || digits.size() > 2 || (digits.size() == 2 && digits[0] == '0')) return false;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc{} && end == digits.data() + digits.size() && value <= last;
}

bool x86_register(std::string_view name) {
  if (one_of(name, {"al",  "bl", "cl",  "dl",  "ah", "bh", "ch", "dh", "sil", "dil", "bpl",
                    "spl", "ip", "eip", "rip", "cs", "ds", "es", "fs", "gs",  "ss",  "st"})) {
    return true;
  }
  for (const std::string_view family : {"xmm", "ymm", "zmm"}) {
    if (numbered(name, family, 31)) return true;
  }
  if (numbered(name, "mm", 7) || numbered(name, "k", 7)) return true;
  if (name.starts_with('r')) {  // r8 .. r15 and their parts r8d, r8w, r8b
    const bool part = name.ends_with('d') || name.ends_with('w') || name.ends_with('b');
    const std::string_view whole = part ? name.substr(0, name.size() - 1) : name;
    if (numbered(whole, "r", 15) &&
        !one_of(whole, {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"}))
      return true;
  }
  if (name.size() == 3 && (name[0] == 'r' || name[0] == 'e')) name.remove_prefix(1);
  return one_of(name, {"ax", "bx", "cx", "dx", "si", "di", "bp", "sp"});
}

bool aarch64_register(std::string_view name) {
  for (const std::string_view family : {"x", "w"}) {
    if (numbered(name, family, 30)) return true;
  }
  for (const std::string_view family : {"v", "q", "d", "s", "h", "b"}) {
    if (numbered(name, family, 31)) return true;
  }
  return one_of(name, {"sp", "wsp", "xzr", "wzr", "fp", "lr"});
}

bool arm_register(std::string_view name) {
  return numbered(name, "r", 15) || numbered(name, "s", 31) || numbered(name, "d", 31) ||
         numbered(name, "q", 15) || one_of(name, {"sp", "lr", "pc", "ip", "fp", "sl", "sb"});
}

bool ppc64_register(std::string_view name) {
  return numbered(name, "r", 31) || numbered(name, "f", 31) || numbered(name, "v", 31) ||
         numbered(name, "vs", 63) || numbered(name, "cr", 7) || one_of(name, {"lr", "ctr"});
}

bool s390_register(std::string_view name) {
  return numbered(name, "r", 15) || numbered(name, "f", 15) || numbered(name, "a", 15) ||
         numbered(name, "v", 31);
}

bool riscv_register(std::string_view name) {
  return numbered(name, "x", 31) || numbered(name, "f", 31) || numbered(name, "a", 7) ||
         numbered(name, "s", 11) || numbered(name, "t", 6) || numbered(name, "fa", 7) ||
         numbered(name, "fs", 11) || numbered(name, "ft", 11) ||
         one_of(name, {"zero", "ra", "sp", "gp", "tp", "fp"});
}

}  // namespace

bool is_register(std::string_view name, std::uint16_t machine) {
  switch (machine) {
    case EM_386:
    case EM_X86_64:
      return x86_register(name);
    case EM_AARCH64:
      return aarch64_register(name);
    case EM_ARM:
      return arm_register(name);
    case EM_PPC64:
      return ppc64_register(name);
    case EM_S390:
      return s390_register(name);
    case EM_RISCV:
      return riscv_register(name);
    default:
      return false;
  }
}

}  // namespace reprobe
