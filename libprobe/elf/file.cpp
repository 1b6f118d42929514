#include "libprobe/elf/file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/elf/codec.hpp"
#include "libprobe/elf/limits.hpp"

namespace reprobe {
namespace {

std::string where_of(const Section& section) {
  if (section.name.empty()) return fmt::format("section {}", section.index);
  return fmt::format("section {} {}", section.index, section.name);
}

// The entries of a table section.
struct Entries {
  ByteView bytes;
  std::uint64_t stride{};
  std::uint32_t count{};  // whole ones; a remainder is not an entry
};

// `entry` is the size of the structure. sh_entsize may be larger (the structure comes first) or 0
// (not stated).
Result<Entries> entries_of(const ElfFile& file, const Section& table, std::uint64_t entry) {
  const auto bytes = file.contents(table);
  if (!bytes) return tl::unexpected(bytes.error());
  const std::uint64_t stride = table.entsize.value == 0 ? entry : table.entsize.value;
  if (stride < entry)
    return fail(
        ErrorCode::malformed, where_of(table),
        fmt::format("sh_entsize is too small; expected at least {}, found {}", entry, stride));
  const std::uint64_t count = bytes->size() / stride;
  if (count > kMaxEntries)
    return fail(ErrorCode::malformed, where_of(table),
                fmt::format("too many entries; expected at most {}, found {}", kMaxEntries, count));
  return Entries{*bytes, stride, static_cast<std::uint32_t>(count)};
}

}  // namespace

const Section* ElfFile::section(std::string_view name) const {
  const auto found = std::ranges::find(sections_, name, &Section::name);
  return found == sections_.end() ? nullptr : &*found;
}

const Section* ElfFile::section_at(std::uint32_t index) const {
  return index < sections_.size() ? &sections_[index] : nullptr;
}

const Section* ElfFile::section_containing(VirtAddr address) const {
  const auto index = sections_by_address_.find(address);
  return index ? &sections_[*index] : nullptr;
}

const Segment* ElfFile::load_segment(VirtAddr address) const {
  const auto index = loads_by_memory_.find(address);
  return index ? &segments_[*index] : nullptr;
}

std::optional<FileOffset> ElfFile::offset_of(VirtAddr address) const {
  const auto index = loads_by_file_bytes_.find(address);
  if (header_.type == ET_REL || !index) return std::nullopt;
  if (debug_file_) {
    const Section* holder = section_containing(address);
    if (holder == nullptr || holder->nobits()) return std::nullopt;
  }
  const Segment& segment = segments_[*index];
  const auto offset = checked_add(segment.offset.value, address.value - segment.vaddr.value);
  if (!offset) return std::nullopt;
  return FileOffset{*offset};
}

Result<ByteView> ElfFile::contents(const Section& section) const {
  // Section 0 may hold a count in sh_size.
  if (section.nobits() || section.type == SHT_NULL || section.size.value == 0) return ByteView{};
  auto bytes = source_->slice(section.offset, section.size, "section");
  if (!bytes) bytes.error().where = where_of(section);
  return bytes;
}

ByteView ElfFile::bytes_at(VirtAddr address, Size want, std::uint32_t section) const {
  FileOffset start;
  std::uint64_t available = 0;  // in the section or segment
  if (section != 0) {
    const Section* holder = section_at(section);
    if (holder == nullptr || holder->nobits() || holder->type == SHT_NULL) return {};
    if (address.value >= holder->size.value) return {};
    const auto at = checked_add(holder->offset.value, address.value);
    if (!at) return {};
    start = {*at};
    available = holder->size.value - address.value;
  } else {
    const auto at = offset_of(address);
    if (!at) return {};
    start = *at;
    const Segment& segment = segments_[*loads_by_file_bytes_.find(address)];
    available = segment.filesz.value - (address.value - segment.vaddr.value);
  }
  if (start.value >= source_->size()) return {};
  const std::uint64_t size = std::min({want.value, available, source_->size() - start.value});
  return source_->slice(start, {size}, "code").value_or(ByteView{});
}

Result<SymbolTable> ElfFile::symbol_table(const Section& table) const {
  if (!table.holds_symbols())
    return fail(ErrorCode::malformed, where_of(table),
                fmt::format("not a symbol table; expected sh_type {} or {}, found {}", SHT_SYMTAB,
                            SHT_DYNSYM, table.type));
  const auto entries = entries_of(
      *this, table, with_codec(header_.is64, header_.order, [](auto codec) { return codec.sym; }));
  if (!entries) return tl::unexpected(entries.error());

  SymbolTable symbols;
  symbols.entries_ = entries->bytes;
  symbols.stride_ = entries->stride;
  symbols.size_ = entries->count;
  symbols.is64_ = header_.is64;
  symbols.order_ = header_.order;
  if (const Section* strings = section_at(table.link))
    symbols.strings_ = StringTable(contents(*strings).value_or(ByteView{}));
  if (const auto extended = extended_.find(table.index); extended != extended_.end())
    symbols.extended_ = contents(sections_[extended->second]).value_or(ByteView{});
  return symbols;
}

Result<std::vector<Symbol>> ElfFile::symbols(const Section& table) const {
  const auto entries = symbol_table(table);
  if (!entries) return tl::unexpected(entries.error());
  std::vector<Symbol> symbols;
  symbols.reserve(entries->size());
  for (std::uint32_t i = 0; i < entries->size(); ++i) {
    symbols.push_back(entries->at(i));
    symbols.back().name = entries->name(symbols.back());
  }
  return symbols;
}

Result<std::vector<Relocation>> ElfFile::relocations(const Section& table) const {
  const bool has_addend = table.type == SHT_RELA;
  if (!has_addend && table.type != SHT_REL)
    return fail(ErrorCode::malformed, where_of(table),
                fmt::format("not a relocation table; expected sh_type {} or {}, found {}", SHT_RELA,
                            SHT_REL, table.type));
  const std::uint64_t size = with_codec(
      header_.is64, header_.order, [&](auto codec) { return has_addend ? codec.rela : codec.rel; });
  const auto entries = entries_of(*this, table, size);
  if (!entries) return tl::unexpected(entries.error());
  std::vector<Relocation> relocations;
  relocations.reserve(entries->count);
  for (std::uint32_t i = 0; i < entries->count; ++i) {
    const std::uint64_t at = i * entries->stride;
    const ByteView entry = entries->bytes.subspan(static_cast<std::size_t>(at));
    relocations.push_back(with_codec(header_.is64, header_.order, [&](auto codec) {
      return codec.relocation(entry, has_addend);
    }));
    relocations.back().entry_offset = {table.offset.value + at};
  }
  return relocations;
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_386:
      return "i386";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390";
    case EM_ARM:
      return "arm";
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_RISCV:
      return "riscv";
    default:
      return fmt::format("EM_{}", machine);
  }
}

std::string type_name(std::uint16_t type) {
  switch (type) {
    case ET_REL:
      return "REL";
    case ET_EXEC:
      return "EXEC";
    case ET_DYN:
      return "DYN";
    case ET_CORE:
      return "CORE";
    default:
      return fmt::format("ET_{}", type);
  }
}

}  // namespace reprobe
