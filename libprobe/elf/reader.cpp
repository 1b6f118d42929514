// ElfFile::open(): the ELF header, the program header table, the section header table and the
// section names, in this order, and nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/elf/codec.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/elf/limits.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kIdentSize = 16;  // EI_NIDENT

// Every section of a file may name the same long string: the copies are kept to a multiple of the
// file's own size, and to what a file with holes can state at no cost.
constexpr std::uint64_t kNamesPerFileByte = 4;
constexpr std::uint64_t kMaxNameBytes = std::uint64_t{256} << 20;

constexpr std::size_t kMaxProblems = 1000;

std::string hex_bytes(ByteView bytes) {
  std::string text;
  for (const std::byte b : bytes)
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", std::to_integer<unsigned>(b));
  return text;
}

}  // namespace

class ElfReader {
 public:
  explicit ElfReader(std::shared_ptr<const ByteSource> source) {
    file_.source_ = std::move(source);
  }

  Result<ElfFile> read() {
    if (auto done = read_header(); !done) return tl::unexpected(done.error());
    resolve_counts();
    if (auto done = read_segments(); !done) return tl::unexpected(done.error());
    read_sections();
    read_section_names();
    check_ranges();
    index_addresses();
    return std::move(file_);
  }

 private:
  Result<void> read_header();
  void resolve_counts();
  Result<void> read_segments();
  void read_sections();
  void read_section_names();
  void check_ranges();
  void index_addresses();

  const ByteSource& source() const { return *file_.source_; }
  ElfHeader& header() { return file_.header_; }
  template <typename F>
  auto decode(F&& f) {
    return with_codec(header().is64, header().order, std::forward<F>(f));
  }

  Result<ByteView> table(FileOffset at, std::uint64_t count, std::uint64_t stride,
                         std::string_view what) const;
  void problem(std::string where, std::string message);

  ElfFile file_;
  std::vector<std::uint32_t> names_;  // sh_name of each section
};

Result<void> ElfReader::read_header() {
  const auto fits = [&](std::uint64_t size) -> Result<ByteView> {
    if (auto bytes = source().slice({0}, {size}, "ELF header")) return *bytes;
    return fail(
        ErrorCode::unreadable, "",
        fmt::format("ELF header is cut short; expected {} bytes, found {}", size, source().size()));
  };
  if (source().size() == 0)
    return fail(ErrorCode::not_elf, "", "the file is empty; expected an ELF header, found 0 bytes");

  const auto magic = source().slice({0}, {std::min<std::uint64_t>(4, source().size())}, "magic");
  if (!magic) return tl::unexpected(magic.error());
  constexpr std::string_view kMagic = "\177ELF";
  if (as_text(*magic) != kMagic)
    return fail(ErrorCode::not_elf, "",
                fmt::format("not an ELF file; expected the bytes 7f 45 4c 46, found {}",
                            hex_bytes(*magic)));

  const auto ident = fits(kIdentSize);
  if (!ident) return tl::unexpected(ident.error());
  const auto field = [&](std::size_t at) { return load_uint(*ident, at, 1, std::endian::little); };
  const std::uint64_t elf_class = field(4), data = field(5), version = field(6);
  if (elf_class != 1 && elf_class != 2)
    return fail(
        ErrorCode::not_elf, "EI_CLASS",
        fmt::format("unknown class; expected 1 (32-bit) or 2 (64-bit), found {}", elf_class));
  if (data != 1 && data != 2)
    return fail(ErrorCode::not_elf, "EI_DATA",
                fmt::format("unknown byte order; expected 1 (little) or 2 (big), found {}", data));
  if (version != 1)
    return fail(ErrorCode::not_elf, "EI_VERSION",
                fmt::format("unknown ELF version; expected 1, found {}", version));

  header().is64 = elf_class == 2;
  header().order = data == 1 ? std::endian::little : std::endian::big;
  const auto bytes = fits(decode([](auto codec) { return codec.ehdr; }));
  if (!bytes) return tl::unexpected(bytes.error());
  header() = decode([&](auto codec) { return codec.header(bytes->subspan(kIdentSize)); });
  header().osabi = static_cast<std::uint8_t>(field(7));
  return {};
}

// Counts that do not fit 16 bits stand in section header 0 (System V ABI, "ELF Header").
void ElfReader::resolve_counts() {
  ElfHeader& h = header();
  const bool extended = h.shnum == 0 || h.shstrndx == SHN_XINDEX || h.phnum == PN_XNUM;
  const std::uint64_t size = decode([](auto codec) { return codec.shdr; });
  if (!extended || h.shoff.value == 0) return;
  const auto bytes = source().slice(h.shoff, {size}, "section header 0");
  if (!bytes) return;  // read_segments() and read_sections() say what follows from it
  const Section first = decode([&](auto codec) { return codec.section(*bytes).section; });
  if (h.shnum == 0) h.shnum = first.size.value;
  if (h.shstrndx == SHN_XINDEX) h.shstrndx = first.link;
  if (h.phnum == PN_XNUM) h.phnum = first.info != 0 ? first.info : PN_XNUM;
}

Result<ByteView> ElfReader::table(FileOffset at, std::uint64_t count, std::uint64_t stride,
                                  std::string_view what) const {
  if (count > kMaxHeaders)
    return fail(ErrorCode::malformed, "",
                fmt::format("too many entries in the {}; expected at most {}, found {}", what,
                            kMaxHeaders, count));
  return source().slice(at, {count * stride}, what);  // 2^22 * 2^16 does not wrap
}

Result<void> ElfReader::read_segments() {
  const ElfHeader& h = header();
  if (h.phnum == 0) return {};
  const std::uint64_t size = decode([](auto codec) { return codec.phdr; });
  if (h.phoff.value == 0)
    return fail(ErrorCode::malformed, "e_phoff",
                fmt::format("no program header table; expected the offset of {} entries, found 0",
                            h.phnum));
  if (h.phentsize < size)
    return fail(ErrorCode::malformed, "e_phentsize",
                fmt::format("program headers are too small; expected at least {} bytes, found {}",
                            size, h.phentsize));
  auto bytes = table(h.phoff, h.phnum, h.phentsize, "program header table");
  if (!bytes) {
    bytes.error().where = "e_phoff";
    return tl::unexpected(bytes.error());
  }
  file_.segments_.reserve(static_cast<std::size_t>(h.phnum));
  for (std::uint32_t i = 0; i < h.phnum; ++i) {
    const std::uint64_t at = std::uint64_t{i} * h.phentsize;
    const ByteView entry = bytes->subspan(static_cast<std::size_t>(at));
    Segment segment = decode([&](auto codec) { return codec.segment(entry); });
    segment.index = i;
    segment.header_offset = {h.phoff.value + at};
    file_.segments_.push_back(segment);
  }
  return {};
}

void ElfReader::read_sections() {
  const ElfHeader& h = header();
  if (h.shoff.value == 0) {
    if (h.shnum != 0)
      problem("e_shoff", fmt::format("no section header table; expected the offset of {} entries, "
                                     "found 0",
                                     h.shnum));
    return;
  }
  const std::uint64_t size = decode([](auto codec) { return codec.shdr; });
  if (h.shentsize < size)
    return problem(
        "e_shentsize",
        fmt::format("section headers are too small; expected at least {} bytes, found {}", size,
                    h.shentsize));
  if (h.shnum == 0)
    return problem("e_shnum",
                   "no count of sections; expected it in section header 0, found none there");
  const auto bytes = table(h.shoff, h.shnum, h.shentsize, "section header table");
  if (!bytes) return problem("e_shoff", bytes.error().message);
  file_.sections_.reserve(static_cast<std::size_t>(h.shnum));
  names_.reserve(static_cast<std::size_t>(h.shnum));
  for (std::uint32_t i = 0; i < h.shnum; ++i) {
    const std::uint64_t at = std::uint64_t{i} * h.shentsize;
    const ByteView entry = bytes->subspan(static_cast<std::size_t>(at));
    auto [section, name] = decode([&](auto codec) { return codec.section(entry); });
    section.index = i;
    section.header_offset = {h.shoff.value + at};
    if (section.type == SHT_SYMTAB_SHNDX) file_.extended_.try_emplace(section.link, i);
    file_.sections_.push_back(std::move(section));
    names_.push_back(name);
  }
}

void ElfReader::read_section_names() {
  const ElfHeader& h = header();
  if (file_.sections_.empty()) return;
  if (h.shstrndx == SHN_UNDEF || h.shstrndx >= file_.sections_.size())
    return problem("e_shstrndx",
                   fmt::format("no section names; expected a section from 1 to {}, found {}",
                               file_.sections_.size() - 1, h.shstrndx));
  const Section& table = file_.sections_[static_cast<std::size_t>(h.shstrndx)];
  const auto bytes = file_.contents(table);
  if (!bytes) return problem("e_shstrndx", "no section names: " + bytes.error().message);

  const StringTable strings(*bytes);
  std::uint64_t left =
      std::min(kMaxNameBytes, std::min(kMaxNameBytes, source().size()) * kNamesPerFileByte);
  for (Section& section : file_.sections_) {
    const auto name = strings.at(names_[section.index]);
    if (!name) {
      problem(fmt::format("section {}", section.index),
              fmt::format("name is not in the string table; expected a string before {:#x}, found "
                          "sh_name {:#x}",
                          strings.size(), names_[section.index]));
      continue;
    }
    if (name->size() > left)
      return problem(fmt::format("section {}", section.index),
                     "section names are too long together; expected a few times the file's size, "
                     "found more");
    left -= name->size();
    section.name = *name;
  }
}

// What lies outside the file is noted here, once; contents() fails on it.
void ElfReader::check_ranges() {
  const auto outside = [&](std::uint64_t offset, std::uint64_t size) {
    return offset > source().size() || size > source().size() - offset;
  };
  const auto message = [&](std::uint64_t offset, std::uint64_t size) {
    return fmt::format(
        "contents lie outside the file; expected an end up to {:#x}, found {:#x}+{:#x}",
        source().size(), offset, size);
  };
  for (Section& s : file_.sections_) {
    if (s.executable() && s.nobits() && s.size.value != 0) file_.debug_file_ = true;
    if (s.nobits() || s.type == SHT_NULL || s.size.value == 0) continue;
    if (!outside(s.offset.value, s.size.value)) continue;
    s.in_file = false;
    problem(fmt::format("section {}", s.index), message(s.offset.value, s.size.value));
  }
  // eu-strip keeps the program's own headers in the debug file: they say nothing about it.
  if (file_.debug_file_) return;
  for (const Segment& s : file_.segments_)
    if (s.filesz.value != 0 && outside(s.offset.value, s.filesz.value))
      problem(fmt::format("program header {}", s.index), message(s.offset.value, s.filesz.value));
}

void ElfReader::index_addresses() {
  std::vector<AddressRange> in_memory, in_file;
  for (const Segment& s : file_.segments_) {
    if (s.type != PT_LOAD) continue;
    in_memory.push_back({s.vaddr, s.memsz, s.index});
    in_file.push_back({s.vaddr, s.filesz, s.index});
  }
  file_.loads_by_memory_ = AddressMap(in_memory);
  file_.loads_by_file_bytes_ = AddressMap(in_file);
  if (header().type == ET_REL) return;

  // .tbss takes no place at its address: what follows it starts there too.
  std::vector<const Section*> loaded;
  for (const Section& s : file_.sections_)
    if (s.allocated() && !(s.nobits() && (s.flags & SHF_TLS) != 0)) loaded.push_back(&s);
  std::ranges::stable_sort(loaded, [](const Section* a, const Section* b) {
    return std::pair(!a->executable(), a->size) < std::pair(!b->executable(), b->size);
  });
  std::vector<AddressRange> best_first;
  best_first.reserve(loaded.size());
  for (const Section* s : loaded) best_first.push_back({s->addr, s->size, s->index});
  file_.sections_by_address_ = AddressMap(best_first);
}

void ElfReader::problem(std::string where, std::string message) {
  if (file_.problems_.size() > kMaxProblems) return;
  if (file_.problems_.size() == kMaxProblems) {
    where = "";
    message =
        fmt::format("further problems are left out; expected at most {}, found more", kMaxProblems);
  }
  file_.problems_.push_back({std::move(where), std::move(message)});
}

Result<ElfFile> ElfFile::open(std::shared_ptr<const ByteSource> source) {
  return ElfReader(std::move(source)).read();
}

}  // namespace reprobe
