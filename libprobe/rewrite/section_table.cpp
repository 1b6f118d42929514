#include "libprobe/rewrite/section_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace reprobe {
namespace {

struct Place {
  std::uint64_t offset;
  unsigned width;
};

// Elf32_Shdr and Elf64_Shdr: System V ABI chapter 4, "Sections".
Place place(SectionField field, bool is64) {
  switch (field) {
    case SectionField::flags:
      return is64 ? Place{8, 8} : Place{8, 4};
    case SectionField::addr:
      return is64 ? Place{16, 8} : Place{12, 4};
    case SectionField::offset:
      return is64 ? Place{24, 8} : Place{16, 4};
    case SectionField::size:
      return is64 ? Place{32, 8} : Place{20, 4};
    case SectionField::addralign:
      break;
  }
  return is64 ? Place{48, 8} : Place{32, 4};
}

// e_shoff and e_shnum in Elf32_Ehdr and Elf64_Ehdr.
Place shoff_place(bool is64) { return is64 ? Place{40, 8} : Place{32, 4}; }
Place shnum_place(bool is64) { return is64 ? Place{60, 2} : Place{48, 2}; }

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

}  // namespace

Result<SectionTable> SectionTable::of(const ElfFile& file) {
  const ElfHeader& header = file.header();
  if (file.sections().empty()) {
    return fail(ErrorCode::unreadable, "e_shoff", "the file has no section headers");
  }
  const auto size = checked_mul(file.sections().size(), header.shentsize);
  const auto bytes = file.source().slice(header.shoff, Size{size.value_or(~std::uint64_t{0})},
                                         "the section header table");
  if (!bytes) return tl::unexpected(bytes.error());
  SectionTable table(file);
  table.table_.assign(bytes->begin(), bytes->end());
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

Result<void> SectionTable::add(const Section& section, std::string why) {
  const ElfHeader& header = file_->header();
  const std::size_t count = table_.size() / header.shentsize;
  if (count + 1 >= SHN_LORESERVE) {
    return fail(ErrorCode::refused, "e_shnum", "the file has too many sections to add one");
  }
  if (auto done = read_names(); !done) return done;
  const std::uint64_t name_at = names_.size();
  const ByteView text = as_bytes(section.name);
  names_.insert(names_.end(), text.begin(), text.end());
  names_.push_back(std::byte{0});

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
  for (auto done : {store(0, 4, name_at), store(4, 4, section.type),
                    store_field(SectionField::flags, section.flags),
                    store_field(SectionField::addr, section.addr.value),
                    store_field(SectionField::offset, section.offset.value),
                    store_field(SectionField::size, section.size.value),
                    // sh_link and sh_info lie between size and alignment.
                    store(header.is64 ? 40 : 24, 4, section.link),
                    store(header.is64 ? 44 : 28, 4, section.info),
                    store_field(SectionField::addralign, section.addralign.value),
                    store(header.is64 ? 56 : 36, word, section.entsize.value)}) {
    if (!done) return done;
  }
  table_.insert(table_.end(), entry.begin(), entry.end());
  added_why_ = std::move(why);
  return {};
}

// The names can grow only where they end in a NUL and every section finds its own there: otherwise
// what is added becomes a part of some section's name.
Result<void> SectionTable::read_names() {
  if (!names_.empty()) return {};
  const auto refused = [](const char* why) { return fail(ErrorCode::refused, "e_shstrndx", why); };
  const Section* names = file_->section_at(static_cast<std::uint32_t>(file_->header().shstrndx));
  if (names == nullptr || names->type != SHT_STRTAB) {
    return refused("the section names cannot be read");
  }
  if (names->allocated()) return refused("the section names are loaded with the program");
  const auto contents = file_->contents(*names);
  if (!contents || contents->empty() || contents->back() != std::byte{0}) {
    return refused("the section names cannot be read");
  }
  const StringTable strings(*contents);
  for (const Section& section : file_->sections()) {
    const std::uint64_t at = section.index * std::uint64_t{file_->header().shentsize};
    const auto name = strings.at(load_uint(table_, at, 4, file_->header().order));
    if (name != section.name) return refused("a section's name is not among the section names");
  }
  names_.assign(contents->begin(), contents->end());
  return {};
}

Result<void> SectionTable::write(Plan& plan) const {
  if (!names_.empty()) return write_moved(plan);
  for (const auto& [at, change] : changes_) {
    auto done = plan.replace(file_->source(), FileOffset{file_->header().shoff.value + at},
                             change.value, change.why);
    if (!done) return done;
  }
  return {};
}

Result<void> SectionTable::write_moved(Plan& plan) const {
  const ElfHeader& header = file_->header();
  const auto names_at = plan.append(file_->source(), names_, Size{1}, "section names");
  if (!names_at) return tl::unexpected(names_at.error());
  SectionTable moved = *this;
  const Section& names = *file_->section_at(static_cast<std::uint32_t>(header.shstrndx));
  for (auto done :
       {moved.set(names, SectionField::offset, names_at->value, "section names stand at the end"),
        moved.set(names, SectionField::size, names_.size(), "section names have grown")}) {
    if (!done) return done;
  }
  const auto table_at = plan.append(file_->source(), moved.table_, Size{header.word()}, added_why_);
  if (!table_at) return tl::unexpected(table_at.error());
  const auto put_header = [&](Place place, std::uint64_t value) -> Result<void> {
    auto bytes = field_bytes(value, place.width, header.order);
    if (!bytes) return tl::unexpected(bytes.error());
    return plan.replace(file_->source(), FileOffset{place.offset}, std::move(*bytes),
                        "the section headers stand at the end of the file");
  };
  auto done = put_header(shoff_place(header.is64), table_at->value);
  if (!done) return done;
  return put_header(shnum_place(header.is64), table_.size() / header.shentsize);
}

}  // namespace reprobe
