// A result of a rewrite that is about to be changed: its bytes, what stands where in them, and
// chance. A kind of mutation changes a Draft in one way that an ELF structure has.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace mutate {

using reprobe::Bytes;
using reprobe::ByteView;
using reprobe::ElfFile;
using reprobe::Section;
using reprobe::Segment;

// Bytes of the file, [begin, end).
struct Span {
  std::uint64_t begin{};
  std::uint64_t end{};
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
};

// A field of a structure, for ELFCLASS64 and ELFCLASS32.
struct Field {
  const char* name;
  std::uint8_t at64, width64, at32, width32;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // 0 .. count - 1; 0 where count is 0. Not uniform to the last bit, and the same everywhere.
  std::uint64_t below(std::uint64_t count) { return count == 0 ? 0 : engine_() % count; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

class Draft {
 public:
  // `changed`: where the rewrite itself changed something.
  Draft(const ElfFile& file, const ElfFile& before, std::span<const Span> changed, Bytes bytes,
        Random& random)
      : file(file), before(before), changed(changed), bytes(std::move(bytes)), random(random) {}

  const ElfFile& file;  // the true result, unchanged
  const ElfFile& before;
  std::span<const Span> changed;
  Bytes bytes;
  Random& random;
  std::string told;  // what was done, for who wants to do it again

  [[nodiscard]] bool is64() const { return file.header().is64; }
  [[nodiscard]] unsigned word() const { return file.header().word(); }
  [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t size) const {
    return at <= bytes.size() && size <= bytes.size() - at;
  }
  [[nodiscard]] std::uint64_t get(std::uint64_t at, unsigned width) const;
  void put(std::uint64_t at, unsigned width, std::uint64_t value);
  [[nodiscard]] std::uint64_t get(std::uint64_t structure, const Field& field) const;
  void put(std::uint64_t structure, const Field& field, std::uint64_t value);
  [[nodiscard]] Bytes copy(std::uint64_t at, std::uint64_t size) const;
  void write(std::uint64_t at, ByteView data);
  // Behind the file, aligned. Gives the offset.
  std::uint64_t append(ByteView data, std::uint64_t align);
  void exchange(std::uint64_t a, std::uint64_t b, std::uint64_t size);

  // Gives the number another value, near or far. False where it does not lie in the file.
  bool disturb(std::uint64_t at, unsigned width, std::string_view name);
  bool disturb(std::uint64_t structure, const Field& field);
  // One byte of the range.
  bool disturb_byte(Span span, std::string_view name);

  // A random one, nullptr where none is.
  const Section* any_section();
  const Segment* any_segment(std::uint32_t type);
  [[nodiscard]] std::vector<const Section*> sections_of(std::uint32_t type) const;
  template <typename T>
  T* pick(std::span<T> list) {
    return list.empty() ? nullptr : &list[static_cast<std::size_t>(random.below(list.size()))];
  }
};

// Says what it did in Draft::told; false: the file has nothing of the kind, or nothing changed.
struct Kind {
  const char* name;
  bool (*apply)(Draft&);
};

std::span<const Kind> header_kinds();   // ELF header, program headers
std::span<const Kind> segment_kinds();  // what is mapped: new, copied, longer, overlapping
std::span<const Kind> section_kinds();  // section headers
std::span<const Kind> table_kinds();    // dynamic section, symbols, relocations, strings
std::span<const Kind> unwind_kinds();   // .eh_frame_hdr, FDEs, CIEs
std::span<const Kind> probe_kinds();    // notes, counters, index, record
std::span<const Kind> byte_kinds();     // code, padding, everything else

inline constexpr std::uint64_t kPage = 4096;

// Elf64_Phdr, Elf32_Phdr, and so on.
inline constexpr Field kPhdr[] = {
    {"p_type", 0, 4, 0, 4},    {"p_flags", 4, 4, 24, 4},  {"p_offset", 8, 8, 4, 4},
    {"p_vaddr", 16, 8, 8, 4},  {"p_paddr", 24, 8, 12, 4}, {"p_filesz", 32, 8, 16, 4},
    {"p_memsz", 40, 8, 20, 4}, {"p_align", 48, 8, 28, 4},
};
enum PhdrField { kPType, kPFlags, kPOffset, kPVaddr, kPPaddr, kPFilesz, kPMemsz, kPAlign };
inline constexpr Field kShdr[] = {
    {"sh_name", 0, 4, 0, 4},      {"sh_type", 4, 4, 4, 4},     {"sh_flags", 8, 8, 8, 4},
    {"sh_addr", 16, 8, 12, 4},    {"sh_offset", 24, 8, 16, 4}, {"sh_size", 32, 8, 20, 4},
    {"sh_link", 40, 4, 24, 4},    {"sh_info", 44, 4, 28, 4},   {"sh_addralign", 48, 8, 32, 4},
    {"sh_entsize", 56, 8, 36, 4},
};
enum ShdrField {
  kShName,
  kShType,
  kShFlags,
  kShAddr,
  kShOffset,
  kShSize,
  kShLink,
  kShInfo,
  kShAlign,
  kShEntsize
};
inline constexpr Field kEhdr[] = {
    {"e_type", 16, 2, 16, 2},     {"e_machine", 18, 2, 18, 2},   {"e_version", 20, 4, 20, 4},
    {"e_entry", 24, 8, 24, 4},    {"e_phoff", 32, 8, 28, 4},     {"e_shoff", 40, 8, 32, 4},
    {"e_flags", 48, 4, 36, 4},    {"e_ehsize", 52, 2, 40, 2},    {"e_phentsize", 54, 2, 42, 2},
    {"e_phnum", 56, 2, 44, 2},    {"e_shentsize", 58, 2, 46, 2}, {"e_shnum", 60, 2, 48, 2},
    {"e_shstrndx", 62, 2, 50, 2},
};
enum EhdrField {
  kEType,
  kEMachine,
  kEVersion,
  kEEntry,
  kEPhoff,
  kEShoff,
  kEFlags,
  kEEhsize,
  kEPhentsize,
  kEPhnum,
  kEShentsize,
  kEShnum,
  kEShstrndx
};

}  // namespace mutate
