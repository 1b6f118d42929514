#include "libprobe/rewrite/section_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libprobe/rewrite/section_symbols.hpp"

namespace reprobe {
namespace {

struct HeaderPlace {
  std::uint64_t offset;
  unsigned width;
};

// Elf32_Shdr and Elf64_Shdr: System V ABI chapter 4, "Sections".
HeaderPlace place(SectionField field, bool is64) {
  switch (field) {
    case SectionField::type:
      return HeaderPlace{4, 4};
    case SectionField::flags:
      return is64 ? HeaderPlace{8, 8} : HeaderPlace{8, 4};
    case SectionField::addr:
      return is64 ? HeaderPlace{16, 8} : HeaderPlace{12, 4};
    case SectionField::offset:
      return is64 ? HeaderPlace{24, 8} : HeaderPlace{16, 4};
    case SectionField::size:
      return is64 ? HeaderPlace{32, 8} : HeaderPlace{20, 4};
    case SectionField::info:
      return is64 ? HeaderPlace{44, 4} : HeaderPlace{28, 4};
    case SectionField::addralign:
      break;
  }
  return is64 ? HeaderPlace{48, 8} : HeaderPlace{32, 4};
}

HeaderPlace link_place(bool is64) { return is64 ? HeaderPlace{40, 4} : HeaderPlace{24, 4}; }
HeaderPlace info_place(bool is64) { return place(SectionField::info, is64); }

// e_shoff, e_shnum and e_shstrndx in Elf32_Ehdr and Elf64_Ehdr.
HeaderPlace shoff_place(bool is64) { return is64 ? HeaderPlace{40, 8} : HeaderPlace{32, 4}; }
HeaderPlace shnum_place(bool is64) { return is64 ? HeaderPlace{60, 2} : HeaderPlace{48, 2}; }
HeaderPlace shstrndx_place(bool is64) { return is64 ? HeaderPlace{62, 2} : HeaderPlace{50, 2}; }

Result<Bytes> field_bytes(std::uint64_t value, unsigned width, std::endian order) {
  const bool fits = width == 8 || (width == 4 && narrow<std::uint32_t>(value)) ||
                    (width == 2 && narrow<std::uint16_t>(value));
  if (!fits) {
    return fail(ErrorCode::internal, "section headers",
                fmt::format("{:#x} does not fit a field of {} bytes", value, width));
  }
  Bytes bytes(width);
  store_uint(bytes, 0, width, order, value);
  return bytes;
}

tl::unexpected<Error> refuse_table(const char* where, std::string why) {
  return fail(ErrorCode::refused, where, std::move(why));
}

}  // namespace

Result<SectionTable> SectionTable::of(const ElfFile& file) {
  const ElfHeader& header = file.header();
  if (file.sections().empty()) {
    return fail(ErrorCode::unreadable, "e_shoff", "the file has no section headers");
  }
  // Its fields change with the table.
  if (header.phnum != 0 && header.phoff.value < (header.is64 ? 64U : 52U)) {
    return fail(ErrorCode::refused, "e_phoff", "the program headers lie over the ELF header");
  }
  const auto size = checked_mul(file.sections().size(), header.shentsize);
  const auto bytes = file.source().slice(header.shoff, Size{size.value_or(~std::uint64_t{0})},
                                         "the section header table");
  if (!bytes) return tl::unexpected(bytes.error());
  SectionTable table(file);
  table.table_.assign(bytes->begin(), bytes->end());
  table.order_.resize(file.sections().size());
  std::iota(table.order_.begin(), table.order_.end(), 0U);
  return table;
}

Result<void> SectionTable::put(std::uint64_t at, unsigned width, std::uint64_t value,
                               std::string why) {
  auto bytes = field_bytes(value, width, file_->header().order);
  if (!bytes) return tl::unexpected(bytes.error());
  std::ranges::copy(*bytes, table_.begin() + static_cast<std::ptrdiff_t>(at));
  changes_[at] = {std::move(why), std::move(*bytes)};
  return {};
}

Result<void> SectionTable::set(const Section& section, SectionField field, std::uint64_t value,
                               std::string why) {
  const auto [offset, width] = place(field, file_->header().is64);
  return put(section.header_offset.value - file_->header().shoff.value + offset, width, value,
             std::move(why));
}

Result<void> SectionTable::rename(const Section& section, std::string_view name, std::string why) {
  const auto at = add_name(name);
  if (!at) return tl::unexpected(at.error());
  return put(section.header_offset.value - file_->header().shoff.value, 4, *at, std::move(why));
}

Result<std::uint64_t> SectionTable::add_name(std::string_view name) {
  if (auto done = read_names(); !done) return tl::unexpected(done.error());
  const std::uint64_t at = names_.size();
  const ByteView text = as_bytes(name);
  names_.insert(names_.end(), text.begin(), text.end());
  names_.push_back(std::byte{0});
  return at;
}

Result<std::uint32_t> SectionTable::add(const Section& section, std::string why) {
  const ElfHeader& header = file_->header();
  const std::size_t count = table_.size() / header.shentsize;
  if (count + 1 >= SHN_LORESERVE) {
    return fail(ErrorCode::refused, "e_shnum", "the file has too many sections to add one");
  }
  const auto name_at = add_name(section.name);
  if (!name_at) return tl::unexpected(name_at.error());

  const unsigned word = header.word();
  Bytes entry(header.shentsize);
  const auto store = [&](std::uint64_t at, unsigned width, std::uint64_t value) -> Result<void> {
    const auto bytes = field_bytes(value, width, header.order);
    if (!bytes) return tl::unexpected(bytes.error());
    std::ranges::copy(*bytes, entry.begin() + static_cast<std::ptrdiff_t>(at));
    return {};
  };
  const auto store_field = [&](SectionField field, std::uint64_t value) {
    const auto [at, width] = place(field, header.is64);
    return store(at, width, value);
  };
  for (auto done : {store(0, 4, *name_at), store_field(SectionField::type, section.type),
                    store_field(SectionField::flags, section.flags),
                    store_field(SectionField::addr, section.addr.value),
                    store_field(SectionField::offset, section.offset.value),
                    store_field(SectionField::size, section.size.value),
                    store(link_place(header.is64).offset, 4, section.link),
                    store(info_place(header.is64).offset, 4, section.info),
                    store_field(SectionField::addralign, section.addralign.value),
                    store(header.is64 ? 56 : 36, word, section.entsize.value)}) {
    if (!done) return tl::unexpected(done.error());
  }
  table_.insert(table_.end(), entry.begin(), entry.end());
  const auto index = static_cast<std::uint32_t>(count);
  if (order_.size() != count) moved_[index] = static_cast<std::uint32_t>(order_.size());
  order_.push_back(index);
  added_why_ = std::move(why);
  return index;
}

Result<std::uint32_t> SectionTable::append(Plan& plan, Section section, Bytes contents,
                                           std::string why_there, std::string why) {
  section.size = Size{contents.size()};
  const auto offset =
      plan.append(file_->source(), std::move(contents), section.addralign, std::move(why_there));
  if (!offset) return tl::unexpected(offset.error());
  section.offset = *offset;
  return add(section, std::move(why));
}

// The names can grow only where they end in a NUL and every section finds its own there: otherwise
// what is added becomes a part of some section's name.
Result<void> SectionTable::read_names() {
  if (!names_.empty()) return {};
  const Section* names = file_->section_at(static_cast<std::uint32_t>(file_->header().shstrndx));
  if (names == nullptr || names->type != SHT_STRTAB) {
    return refuse_table("e_shstrndx", "the section names cannot be read");
  }
  if (names->allocated()) {
    return refuse_table("e_shstrndx", "the section names are loaded with the program");
  }
  const auto contents = file_->contents(*names);
  if (!contents || contents->empty() || contents->back() != std::byte{0}) {
    return refuse_table("e_shstrndx", "the section names cannot be read");
  }
  const StringTable strings(*contents);
  for (const Section& section : file_->sections()) {
    const std::uint64_t at = section.index * std::uint64_t{file_->header().shentsize};
    const auto name = strings.at(load_uint(table_, at, 4, file_->header().order));
    if (name != section.name) {
      return refuse_table("e_shstrndx", "a section's name is not among the section names");
    }
  }
  names_.assign(contents->begin(), contents->end());
  return {};
}

Result<void> SectionTable::movable(std::uint32_t section) const {
  const ElfHeader& header = file_->header();
  // Section 0 holds what does not fit the ELF header's fields.
  const auto shstrndx =
      file_->source().slice(FileOffset{shstrndx_place(header.is64).offset}, Size{2}, "e_shstrndx");
  if (!shstrndx || load_uint(*shstrndx, 0, 2, header.order) != header.shstrndx ||
      file_->sections().size() >= SHN_LORESERVE) {
    return refuse_table("e_shnum", "the section numbers do not stand in the ELF header");
  }
  for (const Section& other : file_->sections()) {
    if (other.type == SHT_GROUP || other.type == SHT_SYMTAB_SHNDX) {
      return refuse_table("section headers", "a section lists the numbers of others");
    }
  }
  if (names_loaded_symbol(*file_, section)) {
    return refuse_table("section headers", "a loaded symbol names the section by its number");
  }
  return check_symbols(*file_);
}

Result<void> SectionTable::exchange(std::uint32_t a, std::uint32_t b, std::string why) {
  for (const std::uint32_t section : {a, b}) {
    if (section < file_->sections().size()) {
      if (auto done = movable(section); !done) return done;
    }
  }
  const std::uint32_t place_a = place_of(a), place_b = place_of(b);
  if (place_a == 0 || place_b == 0) {
    return fail(ErrorCode::internal, "section headers", "a header that is not there is moved");
  }
  order_[place_a] = b;
  order_[place_b] = a;
  moved_[a] = place_b;
  moved_[b] = place_a;
  reorder_why_ = std::move(why);
  return {};
}

Result<void> SectionTable::drop(std::uint32_t section, std::uint32_t heir, std::string why) {
  const std::uint32_t last = order_.back();
  if (last != section) {
    if (auto done = exchange(section, last, why); !done) return done;
  } else if (auto done = movable(section); !done) {
    return done;
  }
  order_.pop_back();
  moved_[section] = 0;
  heirs_[section] = heir;
  reorder_why_ = std::move(why);
  return {};
}

std::uint32_t SectionTable::place_of(std::uint32_t section) const {
  const auto moved = moved_.find(section);
  return moved == moved_.end() ? section : moved->second;
}

std::uint64_t SectionTable::renumbered(std::uint64_t index) const {
  if (index >= table_.size() / file_->header().shentsize) return index;
  const auto section = static_cast<std::uint32_t>(index);
  const auto heir = heirs_.find(section);
  return place_of(heir == heirs_.end() ? section : heir->second);
}

// Headers in their new order, with the numbers in them following it.
Result<Bytes> SectionTable::output_table() const {
  const ElfHeader& header = file_->header();
  const std::size_t stride = header.shentsize;
  Bytes table;
  table.reserve(order_.size() * stride);
  for (const std::uint32_t index : order_) {
    const auto from = table_.begin() + static_cast<std::ptrdiff_t>(index * stride);
    table.insert(table.end(), from, from + static_cast<std::ptrdiff_t>(stride));
    if (!reordered() || index >= file_->sections().size() || index == 0) continue;
    const std::span<std::byte> entry = std::span(table).last(stride);
    const Section& section = *file_->section_at(index);
    const auto renumber = [&](HeaderPlace at, std::uint32_t old) -> Result<void> {
      const auto bytes = field_bytes(renumbered(old), at.width, header.order);
      if (!bytes) return tl::unexpected(bytes.error());
      std::ranges::copy(*bytes, entry.begin() + static_cast<std::ptrdiff_t>(at.offset));
      return {};
    };
    if (auto done = renumber(link_place(header.is64), section.link); !done) {
      return tl::unexpected(done.error());
    }
    if (!section.info_is_section()) continue;
    if (auto done = renumber(info_place(header.is64), section.info); !done) {
      return tl::unexpected(done.error());
    }
  }
  return table;
}

Result<void> SectionTable::write(Plan& plan) const {
  if (names_.empty() && !reordered()) return write_fields(plan);
  SectionTable moved = *this;
  if (!names_.empty()) {
    const auto at = plan.append(file_->source(), names_, Size{1}, "section names");
    if (!at) return tl::unexpected(at.error());
    const Section& names = *file_->section_at(static_cast<std::uint32_t>(file_->header().shstrndx));
    for (auto done :
         {moved.set(names, SectionField::offset, at->value, "section names stand at the end"),
          moved.set(names, SectionField::size, names_.size(), "section names have grown")}) {
      if (!done) return done;
    }
  }
  const auto table = moved.output_table();
  if (!table) return tl::unexpected(table.error());
  if (auto done = write_headers(plan, *table); !done) return done;
  return reordered() ? write_symbols(plan) : Result<void>{};
}

Result<void> SectionTable::write_fields(Plan& plan) const {
  for (const auto& [at, change] : changes_) {
    auto done = plan.replace(file_->source(), FileOffset{file_->header().shoff.value + at},
                             change.value, change.why);
    if (!done) return done;
  }
  return {};
}

Result<void> SectionTable::write_headers(Plan& plan, const Bytes& table) const {
  const ElfHeader& header = file_->header();
  std::uint64_t shoff = header.shoff.value;
  std::string why = reorder_why_;
  if (names_.empty()) {
    // In place, header by header: those that stay as they are make no edit.
    const std::size_t stride = header.shentsize;
    for (std::size_t at = 0; at < table.size(); at += stride) {
      const auto entry = std::span(table).subspan(at, stride);
      auto done = plan.replace(file_->source(), FileOffset{shoff + at},
                               Bytes(entry.begin(), entry.end()), why);
      if (!done) return done;
    }
  } else {
    why = added_why_.empty() ? reorder_why_ : added_why_;
    if (why.empty()) why = "section headers";
    const auto at = plan.append(file_->source(), table, Size{header.word()}, why);
    if (!at) return tl::unexpected(at.error());
    shoff = at->value;
    why = "the section headers stand at the end of the file";
  }
  const auto put_header = [&](HeaderPlace place, std::uint64_t value) -> Result<void> {
    auto bytes = field_bytes(value, place.width, header.order);
    if (!bytes) return tl::unexpected(bytes.error());
    return plan.replace(file_->source(), FileOffset{place.offset}, std::move(*bytes), why);
  };
  if (shoff != header.shoff.value) {
    if (auto done = put_header(shoff_place(header.is64), shoff); !done) return done;
  }
  if (order_.size() != file_->sections().size()) {
    if (auto done = put_header(shnum_place(header.is64), order_.size()); !done) return done;
  }
  if (const std::uint64_t names = renumbered(header.shstrndx); names != header.shstrndx) {
    return put_header(shstrndx_place(header.is64), names);
  }
  return {};
}

Result<void> SectionTable::write_symbols(Plan& plan) const {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const auto& [section, place] : moved_) {
    const std::uint64_t number = renumbered(section);
    if (section < file_->sections().size() && number != section) {
      numbers[section] = static_cast<std::uint32_t>(number);
    }
  }
  return renumber_symbols(plan, *file_, numbers, reorder_why_);
}

}  // namespace reprobe
