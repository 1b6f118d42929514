#include "libprobe/process/site_state.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

namespace reprobe {
namespace {

// arch/*/include/asm/uprobes.h of Linux 6.18 (UPROBE_SWBP_INSN) and gdb's breakpoint instructions
// (*-tdep.c): `bits` of the word are compared.
struct Trap {
  std::uint16_t machine;
  unsigned size;
  std::uint32_t bits;
  std::uint32_t value;
  const char* name;
};
constexpr std::array kTraps = {
    Trap{EM_X86_64, 1, 0xff, 0xcc, "int3"},
    Trap{EM_386, 1, 0xff, 0xcc, "int3"},
    Trap{EM_AARCH64, 4, 0xffe0001f, 0xd4200000, "brk"},
    Trap{EM_ARM, 4, 0x0fffffff, 0x07f001f9, "undefined"},  // uprobes
    Trap{EM_ARM, 4, 0xffffffff, 0xe7f001f0, "undefined"},  // gdb
    Trap{EM_ARM, 2, 0xffff, 0xde01, "undefined"},          // gdb, Thumb
    Trap{EM_PPC64, 4, 0xffffffff, 0x7fe00008, "trap"},
    Trap{EM_S390, 2, 0xffff, 0x0002, "trap"},  // uprobes
    Trap{EM_S390, 2, 0xffff, 0x0001, "trap"},  // gdb
    Trap{EM_RISCV, 2, 0xffff, 0x9002, "c.ebreak"},
    Trap{EM_RISCV, 4, 0xffffffff, 0x00100073, "ebreak"},
};

bool begins(ByteView bytes, std::initializer_list<std::uint8_t> with) {
  return bytes.size() >= with.size() &&
         std::equal(with.begin(), with.end(), bytes.begin(),
                    [](std::uint8_t a, std::byte b) { return a == std::to_integer<int>(b); });
}

const char* trap_at(const ElfHeader& header, ByteView memory) {
  for (const Trap& trap : kTraps) {
    if (trap.machine != header.machine || memory.size() < trap.size) continue;
    const std::uint64_t word = load_uint(memory, 0, trap.size, header.order);
    if ((word & trap.bits) == trap.value) return trap.name;
  }
  return nullptr;
}

// What arch/x86/kernel/uprobes.c makes of the nops that it optimises: from Linux 6.17 to 7.1 a
// call in place of the five bytes, from 7.2 on `lea -128(%rsp),%rsp; call` in place of the ten.
SiteState optimised_state(ByteView file, ByteView memory) {
  const bool five = begins(file, {0x0f, 0x1f, 0x44, 0x00, 0x00});
  const bool ten = begins(file, {0x66, 0x2e, 0x0f, 0x1f, 0x84});
  if (five && begins(memory, {0xe8})) return {Armed::yes, "call"};
  if (ten && begins(memory, {0x48, 0x8d, 0x64, 0x24, 0x80, 0xe8})) return {Armed::yes, "call"};
  if (ten && begins(memory, {0x66, 0x2e, 0x0f, 0x1f, 0x84})) return {Armed::no, "was-armed"};
  return {Armed::unknown, "other bytes than in the file"};
}

}  // namespace

Size state_size(const ElfHeader& header, const Nop& nop) {
  if (nop.size != 0) return Size{nop.size};
  switch (header.machine) {
    case EM_X86_64:
    case EM_386:
      return Size{1};
    case EM_S390:
    case EM_RISCV:
      return Size{2};
    default:
      return Size{4};
  }
}

SiteState site_state(const ElfHeader& header, const Nop& nop, ByteView file, ByteView memory) {
  const std::size_t size = std::min(
      {file.size(), memory.size(), static_cast<std::size_t>(state_size(header, nop).value)});
  if (size == 0) return {Armed::unknown, "no bytes to compare"};
  // Bytes behind the site may be another probe's.
  file = file.first(size);
  memory = memory.first(size);
  if (std::ranges::equal(file, memory)) return {Armed::no, ""};
  if (const char* trap = trap_at(header, memory)) return {Armed::yes, trap};
  if (header.machine != EM_X86_64) return {Armed::unknown, "other bytes than in the file"};
  // A site of two nops: libbpf arms the second where the kernel can optimise it (has_nop_combo).
  const bool two = begins(file, {0x90}) && begins(memory, {0x90}) && size > 1;
  if (!two) return optimised_state(file, memory);
  file = file.subspan(1);
  memory = memory.subspan(1);
  if (!begins(file, {0xcc}) && begins(memory, {0xcc})) return {Armed::yes, "int3"};
  return optimised_state(file, memory);
}

const char* to_string(Armed armed) {
  switch (armed) {
    case Armed::no:
      return "no";
    case Armed::yes:
      return "armed";
    case Armed::unknown:
      break;
  }
  return "unknown";
}

}  // namespace reprobe
