// An ELF file as read: headers decoded into 64-bit neutral structs that keep each item's index
// and place in the file. Nothing but the headers and the section names is read by open(); the
// rest is read when asked for, so that listing a large library touches little of it.
// Format: System V ABI, ELF-64 Object File Format.
#pragma once

#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libprobe/elf/address_map.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/constants.hpp"
#include "libprobe/elf/symbols.hpp"
#include "libprobe/elf/types.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

struct ElfHeader {
  bool is64{};
  std::endian order{std::endian::little};
  std::uint8_t osabi{};
  std::uint16_t type{};     // ET_*
  std::uint16_t machine{};  // EM_*
  std::uint32_t flags{};
  VirtAddr entry;
  FileOffset phoff;
  FileOffset shoff;
  std::uint16_t phentsize{};
  std::uint16_t shentsize{};
  std::uint64_t phnum{};     // resolved: PN_XNUM followed through section 0
  std::uint64_t shnum{};     // resolved: e_shnum 0 followed through section 0
  std::uint64_t shstrndx{};  // resolved: SHN_XINDEX followed through section 0

  // Bytes of an address or offset field: 4 or 8. x32 is ELFCLASS32 with EM_X86_64: 4.
  [[nodiscard]] unsigned word() const { return is64 ? 8 : 4; }
};

struct Segment {
  std::uint32_t index{};
  std::uint32_t type{};   // PT_*
  std::uint32_t flags{};  // PF_*
  FileOffset offset;
  VirtAddr vaddr;
  VirtAddr paddr;
  Size filesz;
  Size memsz;
  Size align;
  FileOffset header_offset;  // of this entry in the program header table
};

struct Section {
  std::uint32_t index{};
  std::string name;       // "" where the string table is unreadable
  std::uint32_t type{};   // SHT_*
  std::uint64_t flags{};  // SHF_*
  VirtAddr addr;
  FileOffset offset;
  Size size;
  std::uint32_t link{};
  std::uint32_t info{};
  Size addralign;
  Size entsize;
  FileOffset header_offset;  // of this entry in the section header table
  // The header's range lies in the file (or takes no file bytes). False: contents() fails.
  bool in_file{true};

  [[nodiscard]] bool nobits() const { return type == SHT_NOBITS; }
  [[nodiscard]] bool holds_symbols() const { return type == SHT_SYMTAB || type == SHT_DYNSYM; }
  // Not SHT_RELR, whose entries have no symbol.
  [[nodiscard]] bool holds_relocations() const { return type == SHT_REL || type == SHT_RELA; }
  // sh_info is a section's index (System V ABI chapter 4, "sh_link and sh_info Interpretation").
  [[nodiscard]] bool info_is_section() const {
    return holds_relocations() || (flags & SHF_INFO_LINK) != 0;
  }
  [[nodiscard]] bool allocated() const { return (flags & SHF_ALLOC) != 0; }
  [[nodiscard]] bool executable() const { return allocated() && (flags & SHF_EXECINSTR) != 0; }
  [[nodiscard]] bool contains(VirtAddr a) const {
    return in_range(a.value, addr.value, size.value);
  }
};

struct Relocation {
  VirtAddr offset;                     // ET_REL: offset in the target section
  std::uint32_t type{};                // R_*
  std::uint32_t symbol{};              // index in the linked symbol table
  std::optional<std::int64_t> addend;  // nothing: SHT_REL, the addend is in place
  FileOffset entry_offset;
};

// Something the reader had to step over: it is reported, and the rest is still read.
struct ReadProblem {
  std::string where;    // "section 5", "e_shoff", ...
  std::string message;  // "what; expected X, found Y"
};

class ElfFile {
 public:
  // Errors: not_elf, unreadable (shorter than its ELF header or its program header table),
  // malformed. A section header table that is missing, outside the file or cut short is NOT an
  // error: the file then has no sections and problems() says why.
  [[nodiscard]] static Result<ElfFile> open(std::shared_ptr<const ByteSource> source);

  [[nodiscard]] const ElfHeader& header() const { return header_; }
  [[nodiscard]] std::span<const Segment> segments() const { return segments_; }
  [[nodiscard]] std::span<const Section> sections() const { return sections_; }
  [[nodiscard]] std::span<const ReadProblem> problems() const { return problems_; }
  [[nodiscard]] const ByteSource& source() const { return *source_; }

  // The first section of that name; nullptr where there is none.
  [[nodiscard]] const Section* section(std::string_view name) const;
  [[nodiscard]] const Section* section_at(std::uint32_t index) const;
  // The allocated, non-TLS-NOBITS section that holds the address; nullptr where none does. Where
  // sections overlap, an executable one wins, then the smaller, then the first. Always nullptr in
  // ET_REL, where every section starts at 0.
  [[nodiscard]] const Section* section_containing(VirtAddr address) const;
  // The first PT_LOAD whose memory holds the address (as libbpf and the kernel choose).
  [[nodiscard]] const Segment* load_segment(VirtAddr address) const;

  // The one place where an address becomes a file offset: the first PT_LOAD that holds it with
  // file bytes. Nothing in .bss, outside every segment, in a debug file's NOBITS sections (whose
  // program headers may still be the program's own), or (ET_REL) always.
  [[nodiscard]] std::optional<FileOffset> offset_of(VirtAddr address) const;

  // The section's bytes. NOBITS gives an empty view. Error: unreadable where they lie outside the
  // file; SHF_COMPRESSED sections are given as stored.
  [[nodiscard]] Result<ByteView> contents(const Section& section) const;

  // Up to `want` bytes of code at the address, fewer at the end of its segment's or section's
  // file bytes. With `section` != 0 (ET_REL) the address is an offset in that section. Empty
  // where the file has no bytes there (NOBITS in a debug file, outside every segment).
  [[nodiscard]] ByteView bytes_at(VirtAddr address, Size want, std::uint32_t section = 0) const;

  // A SHT_SYMTAB or SHT_DYNSYM section for reading in place. Errors: malformed (not such a
  // section, an impossible sh_entsize or count), unreadable (outside the file).
  [[nodiscard]] Result<SymbolTable> symbol_table(const Section& table) const;

  // The whole of a SHT_SYMTAB or SHT_DYNSYM section, decoded. Entries whose name lies outside the
  // string table get an empty name. Errors as symbol_table().
  [[nodiscard]] Result<std::vector<Symbol>> symbols(const Section& table) const;

  // Decodes a SHT_REL or SHT_RELA section (MIPS64's packed r_info is not decoded: type and
  // symbol are as little-endian r_info gives them). Errors as symbol_table().
  [[nodiscard]] Result<std::vector<Relocation>> relocations(const Section& table) const;

  // NT_GNU_BUILD_ID as lower-case hex, from PT_NOTE or from .note.gnu.build-id; "" where absent.
  [[nodiscard]] std::string build_id() const;
  // Where the id's bytes stand in the file; nothing where there is no id.
  [[nodiscard]] std::optional<std::pair<FileOffset, Size>> build_id_range() const;

 private:
  std::shared_ptr<const ByteSource> source_;
  ElfHeader header_;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
  std::vector<ReadProblem> problems_;
  std::unordered_map<std::uint32_t, std::uint32_t> extended_;  // symbol table -> SYMTAB_SHNDX
  AddressMap sections_by_address_;
  AddressMap loads_by_memory_;
  AddressMap loads_by_file_bytes_;
  // A separate debug file: its executable sections are NOBITS.
  bool debug_file_{};

  friend class ElfReader;
};

// "x86_64", "aarch64", ... as elfutils names machines; "EM_<n>" for others.
[[nodiscard]] std::string machine_name(std::uint16_t machine);
// "REL", "EXEC", "DYN", "CORE", "ET_<n>".
[[nodiscard]] std::string type_name(std::uint16_t type);

}  // namespace reprobe
