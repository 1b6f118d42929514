// find_functions() on many symbols, on large .eh_frame, and against the dynamic linker.
#include "catch.hpp"
#include "code_file.hpp"
#include "counting_source.hpp"
#include "libprobe/code/functions.hpp"
#include "mapped_files.hpp"

using namespace reprobe;
using namespace reprobe::test;

// With work by symbol times address this would take hours.
TEST_CASE("every symbol covers every address, and all names are the tails of one") {
  constexpr std::uint32_t kCount = 100'000;
  CodeFile elf;
  Bytes strings(1);
  strings.resize(kCount + 1, std::byte{'a'});
  strings.push_back(std::byte{0});
  Bytes table(24);
  std::vector<CodeAddress> asked;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::size_t at = table.size();
    table.resize(at + 24);
    const auto set = [&](std::string_view field, std::uint64_t v) {
      put(table, field_of(field, true, at), std::endian::little, v);
    };
    set("st_name", 1 + i);
    set("st_info", STB_GLOBAL << 4 | STT_FUNC);
    set("st_shndx", elf.text);
    set("st_value", i % 2 == 0 ? 0x1000 : 0x1000 + i % 0x800);
    set("st_size", std::uint64_t{1} << 40);
    asked.push_back({VirtAddr{0x1800 + i}, 0});
  }
  const auto strtab =
      elf.builder.section({.name = ".dynstr", .type = SHT_STRTAB, .bytes = strings});
  NewSection dynsym{.name = ".dynsym", .type = SHT_DYNSYM, .align = 8, .bytes = table};
  dynsym.link = strtab;
  dynsym.entsize = 24;
  elf.builder.section(dynsym);
  FoundFunctions found(elf, asked);
  for (const auto& function : found.lookup.functions) {
    REQUIRE(function);
    REQUIRE(function->start.value == 0x17ff);
  }
}

TEST_CASE(
    "little of .eh_frame is read where there is a table, and nothing where nothing is asked") {
  constexpr std::uint64_t kHeader = 0x400000;
  CodeFile elf;
  FrameBuilder frame(kFrame, 8, std::endian::little);
  const auto cie = frame.cie("zR", hex("1b"));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::uint64_t start = 0x10000000 + 0x10 * i;
    pairs.push_back({start, frame.fde(cie, {start, 0x10}, 0x1b)});
  }
  const auto eh_frame = elf.builder.section(
      {.name = ".eh_frame", .flags = SHF_ALLOC, .addr = kFrame, .bytes = frame.bytes()});
  const auto hdr = elf.builder.section({.name = ".eh_frame_hdr",
                                        .flags = SHF_ALLOC,
                                        .addr = kHeader,
                                        .bytes = frame.header(kHeader, pairs)});
  elf.builder.load(PF_R, eh_frame);
  elf.builder.load(PF_R, hdr);
  elf.builder.load(PF_R, hdr, 0, PT_GNU_EH_FRAME);
  const Bytes bytes = elf.builder.build();
  const std::uint64_t begin = elf.builder.offset(eh_frame);
  const std::uint64_t end = begin + frame.bytes().size();
  const auto counting = std::make_shared<CountingSource>(borrowed_source(bytes));
  const auto file = ElfFile::open(counting);
  REQUIRE(file);
  const auto read_of_frame = [&] {
    std::uint64_t sum = 0;
    for (const auto& slice : counting->slices()) {
      if (slice.offset >= begin && slice.offset < end) sum += slice.size;
    }
    return sum;
  };
  counting->forget();
  CHECK(find_functions(*file, {}).functions.empty());
  CHECK(counting->slices().empty());
  const std::vector<CodeAddress> asked = {{VirtAddr{0x10000008}, 0}, {VirtAddr{0x10008888}, 0}};
  const auto lookup = find_functions(*file, asked);
  CHECK(describe(lookup.functions[0]) == "? 10000000+10 x0 F");
  CHECK(describe(lookup.functions[1]) == "? 10008880+10 x0 F");
  CHECK(read_of_frame() > 0);
  CHECK(read_of_frame() < 1024);
}

TEST_CASE("functions of this process's libraries are those that dladdr() names") {
  std::size_t compared = 0;
  for (const MappedFile& mapped : mapped_files()) {
    const auto source = map_file(mapped.path);
    if (!source) continue;
    const auto file = ElfFile::open(*source);
    REQUIRE(file);
    std::vector<CodeAddress> asked;
    for (const Segment& segment : file->segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
      for (std::uint64_t at = 0; at < segment.filesz.value; at += 101)
        asked.push_back({VirtAddr{segment.vaddr.value + at}, 0});
    }
    const FunctionLookup lookup = find_functions(*file, asked);
    if (lookup.has_symtab) continue;  // dladdr() looks at .dynsym alone
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto start = exported_symbol_at(mapped.bias + asked[i].address.value);
      if (!start) continue;
      CAPTURE(mapped.path, asked[i].address.value);
      REQUIRE(lookup.functions[i]);
      REQUIRE(lookup.functions[i]->start.value == *start - mapped.bias);
      ++compared;
    }
  }
  CHECK(compared > 1000);
}
