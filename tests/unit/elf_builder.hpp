// Small ELF files in memory, for tests. It shares no code with the reader.
//
//   ElfBuilder elf({.is64 = true, .order = std::endian::little, .type = ET_DYN});
//   auto text = elf.section({.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = 0x1000,
//                            .bytes = bytes_of({0x90, 0xc3})});
//   elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4,
//                .bytes = elf.stapsdt({.location = 0x1000, .provider = "p", .name = "n"})});
//   elf.load(PF_R | PF_X, text);
//   elf.symbol({.name = "f", .value = 0x1000, .size = 2, .type = STT_FUNC, .shndx = text});
//   Bytes file = elf.build();
//   elf.poke(file, elf.shdr(text, "sh_size"), 0x9999);   // corrupts one field by its name
//
// Layout: ELF header, program headers, the sections in the order given, .symtab and .strtab where
// there are symbols, .shstrtab, section headers. A loaded section's offset equals its address
// modulo 4096, as the kernel wants it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elf_fields.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/constants.hpp"

namespace reprobe::test {

inline Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

// The characters, without a NUL; "text\0"s gives one.
inline Bytes bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

struct NewSection {
  std::string name{};
  std::uint32_t type{SHT_PROGBITS};
  std::uint64_t flags{};
  std::uint64_t addr{};
  std::uint64_t align{1};
  Bytes bytes{};
  std::uint64_t size{};  // SHT_NOBITS only: other sections are as long as their bytes
  std::uint32_t link{};  // ElfBuilder::kSymtab: the .symtab that symbol() makes
  std::uint32_t info{};
  std::uint64_t entsize{};
};

struct NewSegment {
  std::uint32_t type{PT_LOAD};
  std::uint32_t flags{PF_R};
  std::uint64_t offset{};
  std::uint64_t vaddr{};
  std::uint64_t filesz{};
  std::uint64_t memsz{};
  std::uint64_t align{0x1000};
};

struct NewSymbol {
  std::string name{};
  std::uint64_t value{};
  std::uint64_t size{};
  std::uint8_t type{STT_NOTYPE};
  std::uint8_t binding{STB_GLOBAL};
  std::uint32_t shndx{};
  bool through_xindex{};  // st_shndx is SHN_XINDEX and the index stands in .symtab_shndx
};

struct NewProbe {
  std::uint64_t location{};
  std::uint64_t base{};
  std::uint64_t semaphore{};
  std::string provider{};
  std::string name{};
  std::string arguments{};
};

class ElfBuilder {
 public:
  struct Kind {
    bool is64{true};
    std::endian order{std::endian::little};
    std::uint16_t type{ET_DYN};
    std::uint16_t machine{EM_X86_64};
    std::uint64_t entry{0};
    // Section 0 holds the counts (e_shnum 0, SHN_XINDEX, PN_XNUM), however small they are.
    bool extended_numbering{false};
    bool section_headers{true};
    // Bytes between two headers of a table, on top of the structure's size.
    std::uint16_t extra_stride{0};
  };

  // As `link`: the index of .symtab, which is not known before build().
  static constexpr std::uint32_t kSymtab = 0xfffffff0;

  ElfBuilder() : ElfBuilder(Kind{}) {}
  explicit ElfBuilder(Kind kind) : kind_(kind) {}

  const Kind& kind() const { return kind_; }

  // The new section's index: 1, 2, ... in the order of the calls.
  std::uint32_t section(NewSection section) {
    sections_.push_back(std::move(section));
    return static_cast<std::uint32_t>(sections_.size());
  }

  // A segment as given; gives its index.
  std::uint32_t segment(NewSegment segment) {
    segments_.push_back({segment, 0, 0});
    return static_cast<std::uint32_t>(segments_.size() - 1);
  }

  // A PT_LOAD (or other type) from the start of section `first` to the end of `last` (0: first).
  std::uint32_t load(std::uint32_t flags, std::uint32_t first, std::uint32_t last = 0,
                     std::uint32_t type = PT_LOAD) {
    NewSegment segment;
    segment.type = type;
    segment.flags = flags;
    segments_.push_back({segment, first, last == 0 ? first : last});
    return static_cast<std::uint32_t>(segments_.size() - 1);
  }

  // The new symbol's index in .symtab, from 1. Local ones come first in a valid file.
  std::uint32_t symbol(NewSymbol symbol) {
    symbols_.push_back(std::move(symbol));
    return static_cast<std::uint32_t>(symbols_.size());
  }

  // One note. `align` pads name and descriptor (4 in practice, 8 for some).
  Bytes note(std::string_view owner_with_nul, std::uint32_t type, const Bytes& desc,
             std::size_t align = 4) const {
    Bytes note;
    append(note, owner_with_nul.size(), 4);
    append(note, desc.size(), 4);
    append(note, type, 4);
    append_bytes(note, bytes_of(owner_with_nul));
    pad(note, align);
    append_bytes(note, desc);
    pad(note, align);
    return note;
  }

  Bytes stapsdt_desc(const NewProbe& probe) const {
    Bytes desc;
    append(desc, probe.location, word());
    append(desc, probe.base, word());
    append(desc, probe.semaphore, word());
    for (const std::string& text : {probe.provider, probe.name, probe.arguments})
      append_bytes(desc, bytes_of(std::string_view(text.c_str(), text.size() + 1)));
    return desc;
  }

  // A canonical stapsdt note (type 3).
  Bytes stapsdt(const NewProbe& probe, std::size_t align = 4) const {
    return note(std::string_view("stapsdt", 8), 3, stapsdt_desc(probe), align);
  }

  // One entry of a SHT_REL or (with an addend) SHT_RELA section.
  Bytes relocation(std::uint64_t offset, std::uint32_t symbol, std::uint32_t type,
                   std::optional<std::int64_t> addend = std::nullopt) const {
    Bytes entry;
    append(entry, offset, word());
    const std::uint64_t sym = symbol;
    append(entry, kind_.is64 ? sym << 32 | type : sym << 8 | type, word());
    if (addend) append(entry, static_cast<std::uint64_t>(*addend), word());
    return entry;
  }

  // A number of `width` bytes in the file's order.
  Bytes number(std::uint64_t value, unsigned width) const {
    Bytes bytes;
    append(bytes, value, width);
    return bytes;
  }

  Bytes build();

  // After build(): where things stand in the file.
  std::uint64_t offset(std::uint32_t section) const { return offsets_.at(section); }
  std::uint32_t symtab() const { return symtab_; }
  std::uint64_t shnum() const { return all_.size(); }
  Field ehdr(std::string_view name) const { return field_of(name, kind_.is64, 0); }
  Field phdr(std::uint32_t index, std::string_view name) const {
    return field_of(name, kind_.is64, ehdr_size() + index * phdr_stride());
  }
  Field shdr(std::uint32_t index, std::string_view name) const {
    return field_of(name, kind_.is64, static_cast<std::size_t>(shoff_) + index * shdr_stride());
  }
  Field sym(std::uint32_t index, std::string_view name) const {
    return field_of(name, kind_.is64,
                    static_cast<std::size_t>(offset(symtab_)) + index * sym_size());
  }
  void poke(Bytes& file, Field field, std::uint64_t value) const {
    put(file, field, kind_.order, value);
  }

  unsigned word() const { return kind_.is64 ? 8 : 4; }
  std::size_t ehdr_size() const { return kind_.is64 ? 64 : 52; }
  std::size_t phdr_stride() const {
    return (kind_.is64 ? 56 : 32) + std::size_t{kind_.extra_stride};
  }
  std::size_t shdr_stride() const {
    return (kind_.is64 ? 64 : 40) + std::size_t{kind_.extra_stride};
  }
  std::size_t sym_size() const { return kind_.is64 ? 24 : 16; }

 private:
  struct PlacedSegment {
    NewSegment fields;
    std::uint32_t first;  // 0: as the fields say
    std::uint32_t last;
  };

  void append(Bytes& bytes, std::uint64_t value, unsigned width) const {
    put(bytes, {bytes.size(), width}, kind_.order, value);
  }
  static void append_bytes(Bytes& bytes, const Bytes& more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  static void pad(Bytes& bytes, std::size_t align) {
    while (align > 1 && bytes.size() % align != 0) bytes.push_back(std::byte{0});
  }
  static std::uint32_t add_string(Bytes& table, const std::string& text) {
    const auto at = static_cast<std::uint32_t>(table.size());
    append_bytes(table, bytes_of(std::string_view(text.c_str(), text.size() + 1)));
    return at;
  }

  void add_symbol_table();
  void place_sections(Bytes& file);
  void write_header(Bytes& file) const;
  void write_segments(Bytes& file) const;
  void write_section_headers(Bytes& file) const;

  Kind kind_;
  std::vector<NewSection> sections_;
  std::vector<PlacedSegment> segments_;
  std::vector<NewSymbol> symbols_;
  // Made by build(): all sections, the null one first.
  std::vector<NewSection> all_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint32_t> names_;
  std::uint32_t symtab_{};
  std::uint64_t shoff_{};
};

inline void ElfBuilder::add_symbol_table() {
  if (symbols_.empty()) return;
  symtab_ = static_cast<std::uint32_t>(all_.size());
  NewSection table{.name = ".symtab", .type = SHT_SYMTAB, .align = word(), .entsize = sym_size()};
  table.link = symtab_ + 1;
  table.info = 1;
  table.bytes.resize(sym_size());
  NewSection strings{.name = ".strtab", .type = SHT_STRTAB, .bytes = Bytes(1)};
  NewSection extended{.name = ".symtab_shndx", .type = SHT_SYMTAB_SHNDX, .align = 4, .entsize = 4};
  extended.link = symtab_;
  append(extended.bytes, 0, 4);
  bool has_extended = false;
  for (const NewSymbol& s : symbols_) {
    const std::size_t at = table.bytes.size();
    table.bytes.resize(at + sym_size());
    const auto set = [&](std::string_view name, std::uint64_t value) {
      put(table.bytes, field_of(name, kind_.is64, at), kind_.order, value);
    };
    set("st_name", s.name.empty() ? 0 : add_string(strings.bytes, s.name));
    set("st_value", s.value);
    set("st_size", s.size);
    set("st_info", std::uint64_t{s.binding} << 4 | s.type);
    set("st_shndx", s.through_xindex ? SHN_XINDEX : s.shndx);
    append(extended.bytes, s.through_xindex ? s.shndx : 0, 4);
    has_extended = has_extended || s.through_xindex;
    if (s.binding == STB_LOCAL) ++table.info;
  }
  all_.push_back(std::move(table));
  all_.push_back(std::move(strings));
  if (has_extended) all_.push_back(std::move(extended));
}

inline void ElfBuilder::place_sections(Bytes& file) {
  offsets_.assign(all_.size(), 0);
  for (std::size_t i = 1; i < all_.size(); ++i) {
    const NewSection& s = all_[i];
    const bool loaded = (s.flags & SHF_ALLOC) != 0 && kind_.type != ET_REL;
    if (loaded && s.type != SHT_NOBITS)
      while (file.size() % 0x1000 != s.addr % 0x1000) file.push_back(std::byte{0});
    else if (s.type != SHT_NOBITS)
      pad(file, static_cast<std::size_t>(s.align));
    offsets_[i] = file.size();
    if (s.type != SHT_NOBITS) append_bytes(file, s.bytes);
  }
}

inline void ElfBuilder::write_header(Bytes& file) const {
  const auto set = [&](std::string_view name, std::uint64_t value) {
    put(file, ehdr(name), kind_.order, value);
  };
  const Bytes ident = bytes_of(
      {0x7f, 'E', 'L', 'F', kind_.is64 ? 2 : 1, kind_.order == std::endian::little ? 1 : 2, 1});
  std::copy(ident.begin(), ident.end(), file.begin());
  const bool extended = kind_.extended_numbering;
  set("e_type", kind_.type);
  set("e_machine", kind_.machine);
  set("e_version", 1);
  set("e_entry", kind_.entry);
  set("e_ehsize", ehdr_size());
  set("e_phentsize", phdr_stride());
  set("e_shentsize", shdr_stride());
  set("e_phoff", segments_.empty() ? 0 : ehdr_size());
  set("e_phnum", extended && !segments_.empty() ? PN_XNUM : segments_.size());
  if (!kind_.section_headers) return;
  set("e_shoff", shoff_);
  set("e_shnum", extended ? 0 : all_.size());
  set("e_shstrndx", extended ? SHN_XINDEX : all_.size() - 1);
}

inline void ElfBuilder::write_segments(Bytes& file) const {
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    NewSegment s = segments_[i].fields;
    if (segments_[i].first != 0) {
      const NewSection& first = all_.at(segments_[i].first);
      const NewSection& last = all_.at(segments_[i].last);
      const bool nobits = last.type == SHT_NOBITS;
      s.offset = offsets_[segments_[i].first];
      s.vaddr = first.addr;
      s.filesz = offsets_[segments_[i].last] + (nobits ? 0 : last.bytes.size()) - s.offset;
      s.memsz = last.addr + (nobits ? last.size : last.bytes.size()) - s.vaddr;
    }
    const auto set = [&](std::string_view name, std::uint64_t value) {
      put(file, phdr(i, name), kind_.order, value);
    };
    set("p_type", s.type);
    set("p_flags", s.flags);
    set("p_offset", s.offset);
    set("p_vaddr", s.vaddr);
    set("p_paddr", s.vaddr);
    set("p_filesz", s.filesz);
    set("p_memsz", s.memsz);
    set("p_align", s.align);
  }
}

inline void ElfBuilder::write_section_headers(Bytes& file) const {
  for (std::uint32_t i = 0; i < all_.size(); ++i) {
    const NewSection& s = all_[i];
    const auto set = [&](std::string_view name, std::uint64_t value) {
      put(file, shdr(i, name), kind_.order, value);
    };
    set("sh_entsize", s.entsize);
    set("sh_type", s.type);
    set("sh_name", names_[i]);
    set("sh_flags", s.flags);
    set("sh_addr", s.addr);
    set("sh_offset", offsets_[i]);
    set("sh_size", s.type == SHT_NOBITS || i == 0 ? s.size : s.bytes.size());
    set("sh_link", s.link == kSymtab ? symtab_ : s.link);
    set("sh_info", s.info);
    set("sh_addralign", s.align);
  }
}

inline Bytes ElfBuilder::build() {
  all_.assign(1, NewSection{.type = SHT_NULL, .align = 0});
  all_.insert(all_.end(), sections_.begin(), sections_.end());
  add_symbol_table();
  all_.push_back({.name = ".shstrtab", .type = SHT_STRTAB, .bytes = Bytes(1)});
  names_.assign(all_.size(), 0);
  for (std::size_t i = 1; i < all_.size(); ++i)
    if (!all_[i].name.empty()) names_[i] = add_string(all_.back().bytes, all_[i].name);
  if (kind_.extended_numbering) {
    all_[0].size = all_.size();
    all_[0].link = static_cast<std::uint32_t>(all_.size() - 1);
    all_[0].info = static_cast<std::uint32_t>(segments_.size());
  }

  Bytes file(ehdr_size() + segments_.size() * phdr_stride());
  place_sections(file);
  if (kind_.section_headers) {
    pad(file, word());
    shoff_ = file.size();
    file.resize(file.size() + all_.size() * shdr_stride());
    write_section_headers(file);
  }
  write_header(file);
  write_segments(file);
  return file;
}

}  // namespace reprobe::test
