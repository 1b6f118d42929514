// read_dynamic() on files written after the System V ABI, chapter 5.
#include "libprobe/elf/dynamic.hpp"

#include "catch.hpp"
#include "elf_builder.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

constexpr std::uint64_t kAddress = 0x5000;  // of the string table, which is loaded first

struct Entry {
  std::uint64_t tag;
  std::uint64_t value;
};

// A library with a string table, a dynamic section and (where it is not empty) an interpreter, all
// in one PT_LOAD whose addresses are not its offsets.
struct Library {
  ElfBuilder elf;
  Bytes file;
  std::uint32_t dynamic_segment{};

  Library(ElfBuilder::Kind kind, const std::vector<Entry>& entries, std::string_view strings,
          std::string_view interpreter = {})
      : elf(kind) {
    Bytes table;
    for (const Entry& entry : entries) {
      for (const std::uint64_t value : {entry.tag, entry.value}) {
        const Bytes number = elf.number(value, elf.word());
        table.insert(table.end(), number.begin(), number.end());
      }
    }
    const auto text = elf.section(
        {.name = ".dynstr", .flags = SHF_ALLOC, .addr = kAddress, .bytes = bytes_of(strings)});
    const auto dynamic = elf.section({.name = ".dynamic",
                                      .type = SHT_DYNAMIC,
                                      .flags = SHF_ALLOC,
                                      .addr = kAddress + 0x1000,
                                      .align = 8,
                                      .bytes = table});
    auto last = dynamic;
    if (!interpreter.empty()) {
      last = elf.section({.name = ".interp",
                          .flags = SHF_ALLOC,
                          .addr = kAddress + 0x2000,
                          .bytes = bytes_of(interpreter)});
    }
    elf.load(PF_R, text, last);
    dynamic_segment = elf.load(PF_R, dynamic, 0, PT_DYNAMIC);
    if (!interpreter.empty()) elf.load(PF_R, last, 0, PT_INTERP);
    file = elf.build();
  }

  [[nodiscard]] DynamicInfo read() const {
    const auto opened = ElfFile::open(memory_source(file));
    REQUIRE(opened);
    return read_dynamic(*opened);
  }
};

// Offsets:                    1      7      13     19            32       40
constexpr std::string_view kStrings("\0liba.\0libb.\0self.\0$ORIGIN/../x\0/r:/s.\0", 39);
constexpr std::uint64_t DT_NEEDED = 1, DT_STRTAB = 5, DT_STRSZ = 10, DT_SONAME = 14, DT_RPATH = 15,
                        DT_RUNPATH = 29, DT_FLAGS_1 = 0x6ffffffb;

std::vector<Entry> with_strings(std::vector<Entry> entries) {
  entries.push_back({DT_STRTAB, kAddress});
  entries.push_back({DT_STRSZ, kStrings.size()});
  entries.push_back({0, 0});
  return entries;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("dynamic: every field in each class and byte order, with and without section headers") {
  const std::string_view interpreter("/lib/ld.so\0", 11);
  for (const bool is64 : {true, false}) {
    for (const std::endian order : {std::endian::little, std::endian::big}) {
      for (const bool headers : {true, false}) {
        CAPTURE(is64, order == std::endian::little, headers);
        const Library library({.is64 = is64, .order = order, .section_headers = headers},
                              with_strings({{DT_NEEDED, 7},
                                            {DT_NEEDED, 1},
                                            {DT_SONAME, 13},
                                            {DT_RUNPATH, 19},
                                            {DT_FLAGS_1, 0x800}}),
                              kStrings, interpreter);
        const DynamicInfo info = library.read();
        CHECK(info.needed == Names{"libb.", "liba."});
        CHECK(info.soname == "self.");
        CHECK(info.runpath == "$ORIGIN/../x");
        CHECK(info.has_runpath);
        CHECK(info.rpath.empty());
        CHECK(info.no_default_folders);
        CHECK(info.interpreter == "/lib/ld.so");
      }
    }
  }
}

TEST_CASE("dynamic: DT_RUNPATH, an empty one too, overrides DT_RPATH") {
  const DynamicInfo both =
      Library({}, with_strings({{DT_RPATH, 19}, {DT_RUNPATH, 32}}), kStrings).read();
  CHECK(both.rpath.empty());
  CHECK(both.runpath == "/r:/s.");
  const DynamicInfo empty =
      Library({}, with_strings({{DT_RPATH, 19}, {DT_RUNPATH, 0}}), kStrings).read();
  CHECK(empty.rpath.empty());
  CHECK(empty.has_runpath);
  const DynamicInfo old = Library({}, with_strings({{DT_RPATH, 19}}), kStrings).read();
  CHECK(old.rpath == "$ORIGIN/../x");
  CHECK_FALSE(old.has_runpath);
}

TEST_CASE("dynamic: a name twice is needed once; of other tags the last counts") {
  const DynamicInfo info =
      Library(
          {},
          with_strings(
              {{DT_NEEDED, 1}, {DT_NEEDED, 1}, {DT_NEEDED, 0}, {DT_SONAME, 1}, {DT_SONAME, 13}}),
          kStrings)
          .read();
  CHECK(info.needed == Names{"liba."});
  CHECK(info.soname == "self.");
}

TEST_CASE("dynamic: nothing after DT_NULL, and nothing without it behind the segment") {
  std::vector<Entry> entries = with_strings({{DT_NEEDED, 1}});
  entries.push_back({DT_NEEDED, 7});
  CHECK(Library({}, entries, kStrings).read().needed == Names{"liba."});
  entries.erase(entries.begin() + 3);  // the DT_NULL
  CHECK(Library({}, entries, kStrings).read().needed == Names{"liba.", "libb."});
}

TEST_CASE("dynamic: strings outside their table are left out") {
  for (const std::uint64_t offset :
       {std::uint64_t{39}, std::uint64_t{40}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    CAPTURE(offset);
    const DynamicInfo info =
        Library({}, with_strings({{DT_NEEDED, offset}, {DT_SONAME, offset}, {DT_RUNPATH, offset}}),
                kStrings)
            .read();
    CHECK(info.needed.empty());
    CHECK(info.soname.empty());
    CHECK(info.runpath.empty());
    CHECK(info.has_runpath);
  }
  // The last string has no NUL within the table.
  CHECK(Library({}, {{DT_NEEDED, 1}, {DT_STRTAB, kAddress}, {DT_STRSZ, 6}}, kStrings)
            .read()
            .needed.empty());
}

TEST_CASE("dynamic: without DT_STRSZ, or with a huge one, the table ends with its segment") {
  for (const std::vector<Entry>& entries :
       {std::vector<Entry>{{DT_NEEDED, 1}, {DT_STRTAB, kAddress}},
        std::vector<Entry>{{DT_NEEDED, 1}, {DT_STRTAB, kAddress}, {DT_STRSZ, ~std::uint64_t{0}}}}) {
    CHECK(Library({}, entries, kStrings).read().needed == Names{"liba."});
  }
}

TEST_CASE("dynamic: tables that are not in the file give nothing") {
  CHECK(Library({}, {{DT_NEEDED, 1}}, kStrings).read().needed.empty());
  for (const std::uint64_t address : {std::uint64_t{0}, kAddress - 1, ~std::uint64_t{0}}) {
    CAPTURE(address);
    CHECK(Library({}, {{DT_NEEDED, 1}, {DT_STRTAB, address}}, kStrings).read().needed.empty());
    Library moved({}, with_strings({{DT_NEEDED, 1}}), kStrings);
    moved.elf.poke(moved.file, moved.elf.phdr(moved.dynamic_segment, "p_vaddr"), address);
    CHECK(moved.read().needed.empty());
  }
  Library longer({}, with_strings({{DT_NEEDED, 1}}), kStrings);
  longer.elf.poke(longer.file, longer.elf.phdr(longer.dynamic_segment, "p_filesz"),
                  ~std::uint64_t{0});
  CHECK(longer.read().needed == Names{"liba."});
  Library none({}, with_strings({{DT_NEEDED, 1}}), kStrings);
  none.elf.poke(none.file, none.elf.phdr(none.dynamic_segment, "p_type"), 0);
  CHECK(none.read().needed.empty());
}

TEST_CASE("dynamic: an interpreter without a NUL is none") {
  const Library library({}, with_strings({}), kStrings, "/lib/ld.so");
  CHECK(library.read().interpreter.empty());
}

TEST_CASE("dynamic: names that share a long string do not fill the memory") {
  // 4000 names, each the rest of one string of 64 KiB.
  std::string strings(1, '\0');
  strings += std::string(65536, 'a') + '\0';
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < 4000; ++i) entries.push_back({DT_NEEDED, 1 + i});
  entries.push_back({DT_STRTAB, kAddress - 0x0});
  const Library library({}, entries, strings);
  std::size_t total = 0;
  for (const std::string& name : library.read().needed) total += name.size();
  CHECK(total < 5 * library.file.size());
}
