// The contents of .probes as the headers of SystemTap up to 1.3 write it, and small files around
// it.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe::test {

inline constexpr std::uint64_t kText = 0x1000, kProbes = 0x2000, kTable = 0x3000, kDynamic = 0x4000;

// The contents of .probes, word by word as the headers write it.
class Records {
 public:
  explicit Records(ElfBuilder::Kind kind) : kind_(kind) {}

  std::uint64_t word() const { return kind_.is64 ? 8 : 4; }
  std::uint64_t at() const { return kProbes + bytes.size(); }
  void align(std::size_t to) {
    while (bytes.size() % to != 0) bytes.push_back(std::byte{0});
  }
  void number(std::uint64_t value, unsigned width) {
    bytes.resize(bytes.size() + width);
    store_uint(bytes, bytes.size() - width, width, kind_.order, value);
  }
  std::uint64_t text(std::string_view text) {
    align(8);
    const std::uint64_t place = at();
    const Bytes view = bytes_of(text);
    bytes.insert(bytes.end(), view.begin(), view.end());
    bytes.push_back(std::byte{0});
    return place;
  }
  // A slot of 8 bytes; `relocated`: the file has zeros, the dynamic linker writes the value.
  void slot(std::uint64_t value, bool relocated) {
    align(8);
    const bool big32 = !kind_.is64 && kind_.order == std::endian::big;
    if (big32) number(0, 4);
    if (relocated && value != 0) places.emplace_back(at(), value);
    number(relocated && kind_.machine != EM_386 ? 0 : value, static_cast<unsigned>(word()));
    if (!kind_.is64 && !big32) number(0, 4);
  }

  void first(std::uint32_t magic, std::string_view name, std::uint64_t second, bool relocated) {
    const std::uint64_t place = text(name);
    align(4);
    number(magic, 4);
    slot(place, relocated);
    slot(second, relocated && second >= kText);
    number(0, 4);
  }

  void second(std::uint32_t magic, std::string_view operands, std::uint64_t count, std::uint64_t pc,
              std::optional<std::uint64_t> counter, bool relocated) {
    align(8);
    const std::uint64_t start = at(), texts = start + (counter ? 0x38 : 0x30);
    const auto rounded = [](std::uint64_t value) { return (value + 7) / 8 * 8; };
    const std::uint64_t provider = rounded(texts + operands.size() + 1);
    const std::uint64_t name = rounded(provider + sizeof "prov");
    number(magic, 4);
    slot(name, relocated);
    slot(provider, relocated);
    slot(count, false);
    slot(pc == 0 ? 0 : texts, relocated);
    slot(pc, relocated);
    if (counter) slot(*counter, relocated);
    text(operands);
    text("prov");
    text("name");
  }

  Bytes bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // relocated words and their values

 private:
  ElfBuilder::Kind kind_;
};

inline ElfFile opened(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

// A file with the section, a text of nops and RELATIVE relocations for the records' words.
inline Bytes file_with(const ElfBuilder::Kind& kind, const Records& records) {
  ElfBuilder elf(kind);
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = kText,
                                 .bytes = Bytes(64, std::byte{0x90})});
  const auto probes = elf.section({.name = ".probes",
                                   .flags = SHF_ALLOC | SHF_WRITE,
                                   .addr = kProbes,
                                   .align = 8,
                                   .bytes = records.bytes});
  Bytes table, dynamic;
  const unsigned word = kind.is64 ? 8 : 4;
  const auto append = [&](Bytes& to, std::uint64_t value) {
    to.resize(to.size() + word);
    store_uint(to, to.size() - word, word, kind.order, value);
  };
  const bool rela = kind.machine != EM_386;
  const std::uint32_t type = kind.machine == EM_S390 ? 12 : 8;
  for (const auto& [place, value] : records.places) {
    append(table, place);
    append(table, type);
    if (rela) append(table, value);
  }
  for (const auto& [tag, value] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {rela ? DT_RELA : DT_REL, kTable},
           {rela ? DT_RELASZ : DT_RELSZ, table.size()},
           {0, 0}}) {
    append(dynamic, tag);
    append(dynamic, value);
  }
  const auto relocations = elf.section({.name = ".rela.dyn",
                                        .type = rela ? SHT_RELA : SHT_REL,
                                        .flags = SHF_ALLOC,
                                        .addr = kTable,
                                        .align = word,
                                        .bytes = table,
                                        .entsize = (rela ? 3U : 2U) * word});
  const auto entries = elf.section({.name = ".dynamic",
                                    .type = SHT_DYNAMIC,
                                    .flags = SHF_ALLOC | SHF_WRITE,
                                    .addr = kDynamic,
                                    .align = word,
                                    .bytes = dynamic,
                                    .entsize = 2U * word});
  elf.load(PF_R | PF_X, text);
  elf.load(PF_R | PF_W, probes);
  elf.load(PF_R, relocations);
  elf.load(PF_R | PF_W, entries);
  elf.load(PF_R | PF_W, entries, 0, PT_DYNAMIC);
  return elf.build();
}

inline const std::vector<ElfBuilder::Kind> kKinds{
    {.is64 = true, .machine = EM_X86_64},
    {.is64 = false, .machine = EM_386},
    {.is64 = true, .order = std::endian::big, .machine = EM_S390},
    {.is64 = false, .order = std::endian::big, .machine = EM_S390},
};

}  // namespace reprobe::test
