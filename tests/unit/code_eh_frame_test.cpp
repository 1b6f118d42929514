#include <cstring>
#include <sstream>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "frame_builder.hpp"
#include "libprobe/code/eh_frame.hpp"
#include "mapped_files.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kCodeAt = 0x1000, kFrameAt = 0x3000, kHeaderAt = 0x4000;

// A file with 0x1000 bytes of text at kText and the given unwind sections.
Bytes file_with(const ElfBuilder::Kind& kind, const Bytes& frame, const Bytes& header = {}) {
  ElfBuilder elf(kind);
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = kCodeAt,
                                 .bytes = Bytes(0x1000)});
  elf.load(PF_R | PF_X, text);
  const auto eh_frame =
      elf.section({.name = ".eh_frame", .flags = SHF_ALLOC, .addr = kFrameAt, .bytes = frame});
  if (header.empty()) {
    elf.load(PF_R, eh_frame);
  } else {
    const auto hdr = elf.section(
        {.name = ".eh_frame_hdr", .flags = SHF_ALLOC, .addr = kHeaderAt, .bytes = header});
    elf.load(PF_R, eh_frame, hdr);
    elf.load(PF_R, hdr, 0, PT_GNU_EH_FRAME);
  }
  return elf.build();
}

struct Asked {
  explicit Asked(Bytes bytes) : file(ElfFile::open(memory_source(std::move(bytes)))) {
    REQUIRE(file);
    table = UnwindTable::open(*file);
  }

  // "start+size", "start+size L" with an LSDA, "" where no FDE covers the address.
  std::string at(std::uint64_t address) const {
    const auto fde = table ? table->find(VirtAddr{address}) : std::nullopt;
    if (!fde) return "";
    std::ostringstream out;
    out << std::hex << fde->start.value << '+' << fde->size.value << (fde->has_lsda ? " L" : "");
    return out.str();
  }

  Result<ElfFile> file;
  std::optional<UnwindTable> table;
};

void check_two_functions(const Asked& asked) {
  CHECK(asked.at(0xfff) == "");
  CHECK(asked.at(0x1000) == "1000+20");
  CHECK(asked.at(0x101f) == "1000+20");
  CHECK(asked.at(0x1020) == "");
  CHECK(asked.at(0x102f) == "");
  CHECK(asked.at(0x1030) == "1030+8");
  CHECK(asked.at(0x1037) == "1030+8");
  CHECK(asked.at(0x1038) == "");
  CHECK(asked.at(0) == "");
  CHECK(asked.at(~std::uint64_t{0}) == "");
}

}  // namespace

TEST_CASE("FDEs in every class, byte order and pointer encoding, with and without the table") {
  const bool is64 = GENERATE(true, false);
  const auto order = GENERATE(std::endian::little, std::endian::big);
  const unsigned format = GENERATE(0x00u, 0x03u, 0x04u, 0x0bu, 0x0cu);
  const unsigned relation = GENERATE(0x00u, 0x10u);
  const bool with_table = GENERATE(true, false);
  const bool format64 = GENERATE(true, false);
  CAPTURE(is64, order == std::endian::big, format, relation, with_table, format64);
  // An unsigned distance cannot go back to .text, unless it wraps.
  if (is64 && format == 0x03 && relation == 0x10) return;
  const ElfBuilder::Kind kind{.is64 = is64, .order = order};
  const unsigned encoding = format | relation;
  FrameBuilder frame(kFrameAt, is64 ? 8 : 4, order);
  const auto cie = frame.cie("zR", frame.number(encoding, 1));
  const auto second = frame.fde(cie, {0x1030, 8}, encoding, hex("00"), format64);
  const auto first = frame.fde(cie, {0x1000, 0x20}, encoding, hex("00"), format64);
  frame.terminator();
  const Bytes header =
      with_table ? frame.header(kHeaderAt, {{0x1000, first}, {0x1030, second}}) : Bytes{};
  check_two_functions(Asked(file_with(kind, frame.bytes(), header)));
}

TEST_CASE("16-bit pointers, which reach the first 64 KiB only") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto cie = frame.cie("zR", hex("02"));
  frame.fde(cie, {0x1030, 8}, 0x02);
  frame.fde(cie, {0x1000, 0x20}, 0x02);
  check_two_functions(Asked(file_with({}, frame.bytes())));
}

TEST_CASE("augmentations") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto add = [&](std::string_view augmentation, const Bytes& data, std::uint64_t start,
                       unsigned encoding, const Bytes& fde_data, int version = 1) {
    frame.fde(frame.cie(augmentation, data, version), {start, 0x10}, encoding, fde_data);
  };
  add("", {}, 0x1000, 0x00, {});
  add("eh", {}, 0x1010, 0x00, {});
  // A personality (sdata4, pcrel, indirect), an LSDA (sdata4, pcrel), pointers (sdata4, pcrel).
  const Bytes zplr = hex("9b 11223344 1b 1b");
  add("zPLR", zplr, 0x1020, 0x1b, hex("04 44330000"));
  add("zPLR", zplr, 0x1030, 0x1b, hex("04 00000000"));  // no LSDA here
  add("zPLR", zplr, 0x1040, 0x1b, hex("00"));           // should be there, is not
  add("zRB", hex("1b"), 0x1050, 0x1b, hex("00"));       // AArch64: signed with key B
  add("zR", hex("1b"), 0x1060, 0x1b, hex("00"), 3);
  // Those that are not understood: a signal frame's start, an unknown letter, no 'z', an indirect
  // or datarel pointer, another version.
  add("zRS", hex("1b"), 0x1070, 0x1b, hex("00"));
  add("zRX", hex("1b 00"), 0x1080, 0x1b, hex("00"));
  add("R", hex("1b"), 0x1090, 0x1b, hex("00"));
  add("zR", hex("9b"), 0x10a0, 0x1b, hex("00"));
  add("zR", hex("3b"), 0x10b0, 0x0b, hex("00"));
  add("zR", hex("1b"), 0x10c0, 0x1b, hex("00"), 2);
  add("zzzzzzzzzzzzzzzzzzzzR", hex("1b"), 0x10d0, 0x1b, hex("00"));
  add("zR", hex("1b"), 0x10e0, 0x1b, hex("00"));
  const Asked asked(file_with({}, frame.bytes()));
  CHECK(asked.at(0x1005) == "1000+10");
  CHECK(asked.at(0x1015) == "1010+10");
  CHECK(asked.at(0x1025) == "1020+10 L");
  CHECK(asked.at(0x1035) == "1030+10");
  CHECK(asked.at(0x1045) == "1040+10 L");
  CHECK(asked.at(0x1055) == "1050+10");
  CHECK(asked.at(0x1065) == "1060+10");
  for (std::uint64_t start = 0x1070; start < 0x10e0; start += 0x10) {
    CAPTURE(start);
    CHECK(asked.at(start + 5) == "");
  }
  CHECK(asked.at(0x10e5) == "10e0+10");
}

TEST_CASE("an FDE of a discarded function covers nothing") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto absolute = frame.cie("zR", hex("00"));
  frame.fde(absolute, {0, 0x2000}, 0x00);
  const auto relative = frame.cie("zR", hex("1b"));
  // The field itself holds 0: start = the field's address.
  const std::uint64_t field = kFrameAt + frame.bytes().size() + 8;
  frame.fde(relative, {field, 0x100}, 0x1b);
  frame.fde(absolute, {0x1800, 0}, 0x00);  // and one without code
  frame.fde(absolute, {0x1900, 4}, 0x00);
  const Asked asked(file_with({}, frame.bytes()));
  CHECK(asked.at(0x1000) == "");
  CHECK(asked.at(field) == "");
  CHECK(asked.at(0x1800) == "");
  CHECK(asked.at(0x1900) == "1900+4");
}

TEST_CASE("a table of another form is not used, the walk is") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto cie = frame.cie("zR", hex("1b"));
  const auto second = frame.fde(cie, {0x1030, 8}, 0x1b);
  const auto first = frame.fde(cie, {0x1000, 0x20}, 0x1b);
  Bytes header = frame.header(kHeaderAt, {{0x1000, first}, {0x1030, second}});
  SECTION("table encoding") { header[3] = std::byte{0x3c}; }
  SECTION("no table") { header[3] = std::byte{0xff}; }
  SECTION("count encoding") { header[2] = std::byte{0x02}; }
  SECTION("count of 0") { put(header, {8, 4}, std::endian::little, 0); }
  SECTION("count behind the end") { put(header, {8, 4}, std::endian::little, 3); }
  SECTION("huge count") { put(header, {8, 4}, std::endian::little, 0xffffffff); }
  SECTION("version") { header[0] = std::byte{2}; }
  SECTION("pointer to .eh_frame") { header[1] = std::byte{0x50}; }
  SECTION("cut off") { header.resize(3); }
  check_two_functions(Asked(file_with({}, frame.bytes(), header)));
}

TEST_CASE("without section headers the walk starts where .eh_frame_hdr says and ends at the zero") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto cie = frame.cie("zR", hex("1b"));
  const auto second = frame.fde(cie, {0x1030, 8}, 0x1b);
  const auto first = frame.fde(cie, {0x1000, 0x20}, 0x1b);
  frame.terminator();
  frame.raw(hex("ffffff0f ffffffff"));
  const ElfBuilder::Kind kind{.section_headers = false};
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs = {{0x1000, first},
                                                                      {0x1030, second}};
  check_two_functions(Asked(file_with(kind, frame.bytes(), frame.header(kHeaderAt, pairs))));
  check_two_functions(Asked(file_with(kind, frame.bytes(), frame.header(kHeaderAt, {}))));
}

TEST_CASE("a table that lies gives no wrong function") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto cie = frame.cie("zR", hex("1b"));
  const auto second = frame.fde(cie, {0x1030, 8}, 0x1b);
  const auto first = frame.fde(cie, {0x1000, 0x20}, 0x1b);
  using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  // Swapped FDEs, a CIE in place of an FDE, FDEs outside every section, an unsorted table.
  const Pairs pairs = GENERATE_COPY(values<Pairs>({{{0x1000, second}, {0x1030, first}},
                                                   {{0x1000, cie}, {0x1030, cie}},
                                                   {{0x1000, 0x7000}, {0x1030, 0x7fffffff}},
                                                   {{0x1000, first + 1}, {0x1030, second + 2}},
                                                   {{0x1030, second}, {0x1000, first}}}));
  const Asked asked(file_with({}, frame.bytes(), frame.header(kHeaderAt, pairs, false)));
  REQUIRE(asked.table);
  for (std::uint64_t address = 0xff0; address < 0x1050; ++address) {
    CAPTURE(address);
    const std::string found = asked.at(address);
    const bool in_first = address >= 0x1000 && address < 0x1020;
    const bool in_second = address >= 0x1030 && address < 0x1038;
    CHECK((found.empty() || (found == "1000+20" && in_first) || (found == "1030+8" && in_second)));
  }
}

TEST_CASE("damaged .eh_frame: no table, no loop, no read outside") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  const auto cie = frame.cie("zPLR", hex("9b 11223344 1b 1b"));
  frame.fde(cie, {0x1000, 0x20}, 0x1b, hex("04 44330000"));
  frame.fde(cie, {0x1030, 8}, 0x1b, hex("04 44330000"), true);
  const Bytes whole = frame.bytes();
  SECTION("cut off everywhere") {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      Bytes cut = whole;
      cut.resize(size);
      const Asked asked(file_with({}, cut));
      const std::string found = asked.at(0x1005);
      CHECK((found == "" || found == "1000+20 L"));
      CHECK(asked.at(0x1035) == "");
    }
  }
  SECTION("every byte replaced") {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        CAPTURE(at, value);
        Bytes poked = whole;
        poked[at] = static_cast<std::byte>(value);
        const Asked asked(file_with({}, poked));
        const auto fde = asked.table ? asked.table->find(VirtAddr{0x1005}) : std::nullopt;
        if (fde) CHECK(in_range(0x1005, fde->start.value, fde->size.value));
      }
    }
  }
}

TEST_CASE("files without unwind information that could be read") {
  FrameBuilder frame(kFrameAt, 8, std::endian::little);
  frame.fde(frame.cie("zR", hex("1b")), {0x1000, 0x20}, 0x1b);
  SECTION("ET_REL: the starts are not relocated yet") {
    CHECK_FALSE(Asked(file_with({.type = ET_REL}, frame.bytes())).table);
  }
  SECTION("an empty section") { CHECK_FALSE(Asked(file_with({}, hex("00000000"))).table); }
  SECTION("no section") {
    ElfBuilder elf;
    CHECK_FALSE(Asked(elf.build()).table);
  }
  SECTION("a debug file: .eh_frame has no bytes") {
    ElfBuilder elf;
    elf.section({.name = ".eh_frame",
                 .type = SHT_NOBITS,
                 .flags = SHF_ALLOC,
                 .addr = kFrameAt,
                 .size = 0x1000});
    CHECK_FALSE(Asked(elf.build()).table);
  }
}

extern "C" {
struct dwarf_eh_bases {
  void* tbase;
  void* dbase;
  void* func;
};
// libgcc's own search (unwind-dw2-fde-dip.c).
const void* _Unwind_Find_FDE(void* pc, dwarf_eh_bases* bases);
}

namespace {

// The augmentation string of the CIE that a mapped FDE belongs to.
std::string augmentation_of(const void* fde) {
  const char* id = static_cast<const char*>(fde) + 4;
  std::int32_t distance = 0;
  std::memcpy(&distance, id, 4);
  return id - distance + 9;
}

}  // namespace

TEST_CASE("every FDE that libgcc finds in this process is found, and no other") {
  std::size_t found = 0;
  for (const MappedFile& mapped : mapped_files()) {
    const auto source = map_file(mapped.path);
    if (!source) continue;  // the kernel's vDSO is no file
    const auto file = ElfFile::open(*source);
    REQUIRE(file);
    const auto table = UnwindTable::open(*file);
    for (const Segment& segment : file->segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
      for (std::uint64_t at = 0; at < segment.filesz.value; at += 61) {
        const std::uint64_t address = segment.vaddr.value + at;
        dwarf_eh_bases bases{};
        const void* theirs =
            _Unwind_Find_FDE(reinterpret_cast<void*>(mapped.bias + address), &bases);
        const auto ours = table ? table->find(VirtAddr{address}) : std::nullopt;
        if (theirs != nullptr && augmentation_of(theirs).find('S') != std::string::npos) continue;
        CAPTURE(mapped.path, address);
        REQUIRE(ours.has_value() == (theirs != nullptr));
        if (!ours) continue;
        ++found;
        REQUIRE(ours->start.value == reinterpret_cast<std::uintptr_t>(bases.func) - mapped.bias);
      }
    }
  }
  CHECK(found > 1000);
}
