// The bytes of a small shared library, written by hand after the ELF specification.
#pragma once

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace reprobe::testing {

// An ELF64 shared library with one PT_LOAD, one PT_DYNAMIC and a symbol, laid out by hand.
class SmallLibrary {
 public:
  static constexpr std::uint64_t kSymbols = 0x200;
  static constexpr std::uint64_t kStrings = 0x240;
  static constexpr std::uint64_t kDynamic = 0x280;
  static constexpr std::uint64_t kNote = 0x300;
  static constexpr std::uint64_t kProbes = 0x340;
  static constexpr std::uint64_t kNames = 0x380;
  static constexpr std::uint64_t kSections = 0x400;
  enum Index { kNull, kDynsym, kDynstr, kDynamicSection, kNoteSection, kStapsdt, kShstrtab, kBss };
  static constexpr std::size_t kCount = 8;

  SmallLibrary() : bytes_(kSections + kCount * sizeof(Elf64_Shdr), 0) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_machine = EM_X86_64;
    header.e_version = EV_CURRENT;
    header.e_entry = 0x100;
    header.e_phoff = sizeof header;
    header.e_shoff = kSections;
    header.e_ehsize = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 3;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = kCount;
    header.e_shstrndx = kShstrtab;
    put(0, header);
    put(segment(0), Elf64_Phdr{PT_LOAD, PF_R | PF_X, 0, 0, 0, 0x400, 0x400, 0x1000});
    put(segment(1), Elf64_Phdr{PT_DYNAMIC, PF_R, kDynamic, kDynamic, kDynamic, 0x60, 0x60, 8});
    put(segment(2), Elf64_Phdr{PT_NOTE, PF_R, kNote, kNote, kNote, 0x18, 0x18, 4});

    put(kSymbols + sizeof(Elf64_Sym),
        Elf64_Sym{1, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0x123, 4});
    text(kStrings, std::string("\0probe_me\0", 10));
    put(kDynamic, std::array{Elf64_Dyn{DT_STRTAB, {kStrings}}, Elf64_Dyn{DT_SYMTAB, {kSymbols}},
                             Elf64_Dyn{DT_STRSZ, {10}}, Elf64_Dyn{DT_SYMENT, {24}},
                             Elf64_Dyn{DT_FLAGS, {DF_BIND_NOW}}, Elf64_Dyn{DT_NULL, {0}}});
    put(kNote, std::array<std::uint32_t, 3>{4, 8, NT_GNU_BUILD_ID});
    text(kNote + 12, std::string("GNU\0identity", 12));
    put(kProbes, std::array<std::uint32_t, 3>{8, 4, 3});
    text(kProbes + 12, std::string("stapsdt\0abcd", 12));
    sections();
  }

  static constexpr std::uint64_t segment(std::uint64_t index) {
    return sizeof(Elf64_Ehdr) + index * sizeof(Elf64_Phdr);
  }
  static constexpr std::uint64_t section(std::uint64_t index) {
    return kSections + index * sizeof(Elf64_Shdr);
  }

  template <typename T>
  void put(std::uint64_t at, const T& value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void text(std::uint64_t at, const std::string& text) {
    std::copy(text.begin(), text.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void sections() {
    std::string names(1, '\0');
    const auto add = [&](Index index, const char* name, std::uint32_t type, std::uint64_t flags,
                         std::uint64_t offset, std::uint64_t size, std::uint32_t link,
                         std::uint64_t entry) {
      const auto name_at = static_cast<std::uint32_t>(names.size());
      const std::uint64_t address = (flags & SHF_ALLOC) != 0 ? offset : 0;
      put(section(index), Elf64_Shdr{name_at, type, flags, address, offset, size, link,
                                     index == kDynsym ? 1U : 0U, 8, entry});
      names.append(name).push_back('\0');
    };
    add(kDynsym, ".dynsym", SHT_DYNSYM, SHF_ALLOC, kSymbols, 48, kDynstr, sizeof(Elf64_Sym));
    add(kDynstr, ".dynstr", SHT_STRTAB, SHF_ALLOC, kStrings, 10, 0, 0);
    add(kDynamicSection, ".dynamic", SHT_DYNAMIC, SHF_ALLOC, kDynamic, 0x60, kDynstr,
        sizeof(Elf64_Dyn));
    add(kNoteSection, ".note.gnu.build-id", SHT_NOTE, SHF_ALLOC, kNote, 0x14, 0, 0);
    add(kStapsdt, ".note.stapsdt", SHT_NOTE, 0, kProbes, 0x18, 0, 0);
    add(kBss, ".bss", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, kNames, 0x20, 0, 0);
    add(kShstrtab, ".shstrtab", SHT_STRTAB, 0, kNames, 0x60, 0, 0);
    text(kNames, names);
  }

  std::string bytes_;
};

}  // namespace reprobe::testing
