// Numbers of the ELF specification that the tool uses, under their own names. <elf.h> is not
// used: it defines macros, and lacks some of these on other systems.
// Source: System V ABI generic part, and the processor supplements for EM_*.
#pragma once

#include <cstdint>

namespace reprobe {

inline constexpr std::uint16_t ET_REL = 1, ET_EXEC = 2, ET_DYN = 3, ET_CORE = 4;

inline constexpr std::uint16_t EM_386 = 3, EM_PPC64 = 21, EM_S390 = 22, EM_ARM = 40, EM_X86_64 = 62,
                               EM_AARCH64 = 183, EM_RISCV = 243;

inline constexpr std::uint32_t PT_LOAD = 1, PT_DYNAMIC = 2, PT_INTERP = 3, PT_NOTE = 4, PT_PHDR = 6,
                               PT_TLS = 7, PT_GNU_EH_FRAME = 0x6474e550, PT_GNU_STACK = 0x6474e551,
                               PT_GNU_RELRO = 0x6474e552, PT_GNU_PROPERTY = 0x6474e553;
inline constexpr std::uint32_t PF_X = 1, PF_W = 2, PF_R = 4;
inline constexpr std::uint16_t PN_XNUM = 0xffff;

inline constexpr std::uint32_t SHT_NULL = 0, SHT_PROGBITS = 1, SHT_SYMTAB = 2, SHT_STRTAB = 3,
                               SHT_RELA = 4, SHT_HASH = 5, SHT_DYNAMIC = 6, SHT_NOTE = 7,
                               SHT_NOBITS = 8, SHT_REL = 9, SHT_DYNSYM = 11, SHT_GROUP = 17,
                               SHT_SYMTAB_SHNDX = 18, SHT_RELR = 19, SHT_X86_64_UNWIND = 0x70000001;
inline constexpr std::uint64_t SHF_WRITE = 0x1, SHF_ALLOC = 0x2, SHF_EXECINSTR = 0x4,
                               SHF_INFO_LINK = 0x40, SHF_LINK_ORDER = 0x80, SHF_GROUP = 0x200,
                               SHF_TLS = 0x400, SHF_COMPRESSED = 0x800;
inline constexpr std::uint32_t SHN_UNDEF = 0, SHN_LORESERVE = 0xff00, SHN_ABS = 0xfff1,
                               SHN_COMMON = 0xfff2, SHN_XINDEX = 0xffff;

inline constexpr std::uint8_t STT_NOTYPE = 0, STT_OBJECT = 1, STT_FUNC = 2, STT_SECTION = 3,
                              STT_FILE = 4, STT_TLS = 6, STT_GNU_IFUNC = 10;
inline constexpr std::uint8_t STB_LOCAL = 0, STB_GLOBAL = 1, STB_WEAK = 2;

inline constexpr std::uint32_t NT_GNU_BUILD_ID = 3;

}  // namespace reprobe
