// Call frame programs assembled by hand. The rows follow from the tables of DWARF 4, 6.4.2.
#include "libprobe/code/cfi_rows.hpp"

#include <sstream>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "frame_builder.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kFrame = 0x3000, kStart = 0x1000, kSize = 0x1000;

std::string text(const RegisterRule& rule) {
  using Kind = RegisterRule::Kind;
  const std::string bytes = std::to_string(rule.expression.size());
  switch (rule.kind) {
    case Kind::undefined:
      return "u";
    case Kind::same_value:
      return "s";
    case Kind::offset:
      return "c" + std::to_string(rule.value);
    case Kind::val_offset:
      return "v" + std::to_string(rule.value);
    case Kind::in_register:
      return "r" + std::to_string(rule.value);
    case Kind::expression:
      return "e" + bytes;
    case Kind::val_expression:
      return "ve" + bytes;
  }
  return "?";
}

// "1000 7+8 16:c-8; 1004 ..."; a CFA expression as e and its length.
std::string text(const CfiRows& rows) {
  std::ostringstream out;
  for (const PlacedRow& placed : rows.rows) {
    const CfiRow& row = placed.row;
    out << (out.tellp() > 0 ? "; " : "") << std::hex << placed.start.value << std::dec << ' ';
    if (row.cfa.is_expression) out << 'e' << row.cfa.expression.size();
    if (!row.cfa.is_expression) out << row.cfa.reg << std::showpos << row.cfa.offset;
    out << std::noshowpos;
    for (const auto& [reg, rule] : row.registers) out << ' ' << reg << ':' << text(rule);
    if (row.args_size != 0) out << " args " << row.args_size;
    if (row.return_signed) out << " signed";
  }
  return out.str();
}

struct Programs {
  Bytes initial = hex("0c 07 08 90 01");  // def_cfa rsp+8; offset ra, -8
  Bytes function{};
  std::uint64_t code_alignment = 1;
};

// The rows as text, or the reason why there are none.
std::string rows_of(const Programs& programs, const ElfBuilder::Kind& kind = {}) {
  FrameBuilder frame(kFrame, kind.is64 ? 8 : 4, kind.order);
  // "zR": code alignment, data alignment -8, return register 16, absolute 4-byte pointers.
  const Bytes head = hex("00000000 01 7a5200") + frame.number(programs.code_alignment, 1) +
                     hex("78 10 01 03") + programs.initial;
  frame.raw(frame.number(head.size(), 4) + head);
  const std::uint64_t at = frame.bytes().size();
  frame.raw(frame.number(17 + programs.function.size() - 4, 4) + frame.number(at + 4, 4) +
            frame.number(kStart, 4) + frame.number(kSize, 4) + hex("00") + programs.function);
  ElfBuilder elf(kind);
  elf.load(PF_R,
           elf.section(
               {.name = ".eh_frame", .flags = SHF_ALLOC, .addr = kFrame, .bytes = frame.bytes()}));
  const auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  std::optional<CfiCie> cie;
  const auto fde = read_fde(*file, VirtAddr{kFrame + at}, cie);
  REQUIRE(fde);
  CHECK(fde->start.value == kStart);
  CHECK(fde->size.value == kSize);
  const auto rows = read_rows(*file, *cie, *fde);
  return rows ? text(*rows) : rows.error().message;
}

std::string rows_of(std::string_view function) { return rows_of({.function = hex(function)}); }

}  // namespace

TEST_CASE("rows: what a function without instructions has") {
  CHECK(rows_of("") == "1000 7+8 16:c-8");
  CHECK(rows_of("00 00 00") == "1000 7+8 16:c-8");
}

TEST_CASE("rows: advances of every width, and DW_CFA_set_loc") {
  CHECK(rows_of("41 0e10") == "1000 7+8 16:c-8; 1001 7+16 16:c-8");
  CHECK(rows_of("02 ff 0e10") == "1000 7+8 16:c-8; 10ff 7+16 16:c-8");
  CHECK(rows_of("03 0102 0e10") == "1000 7+8 16:c-8; 1201 7+16 16:c-8");
  CHECK(rows_of("04 01020000 0e10") == "1000 7+8 16:c-8; 1201 7+16 16:c-8");
  CHECK(rows_of("01 08100000 0e10") == "1000 7+8 16:c-8; 1008 7+16 16:c-8");
  // No advance, no row; a row behind the function holds nowhere.
  CHECK(rows_of("40 0e10") == "1000 7+16 16:c-8");
  CHECK(rows_of("04 00100000 0e10").starts_with("1000 7+8 16:c-8"));
}

TEST_CASE("rows: a code alignment, and the byte order of operands") {
  const ElfBuilder::Kind big{.order = std::endian::big};
  CHECK(rows_of({.function = hex("41 0e10"), .code_alignment = 4}) ==
        "1000 7+8 16:c-8; 1004 7+16 16:c-8");
  CHECK(rows_of({.function = hex("03 0102 0e10"), .code_alignment = 2}, big) ==
        "1000 7+8 16:c-8; 1204 7+16 16:c-8");
}

TEST_CASE("rows: the CFA") {
  CHECK(rows_of("0d06") == "1000 6+8 16:c-8");
  CHECK(rows_of("0c 06 8001") == "1000 6+128 16:c-8");
  CHECK(rows_of("12 06 02") == "1000 6-16 16:c-8");  // def_cfa_sf: factored by -8
  CHECK(rows_of("13 7e") == "1000 7+16 16:c-8");     // def_cfa_offset_sf
  CHECK(rows_of("0f 02 7608") == "1000 e2 16:c-8");  // breg6 8
  CHECK(rows_of("0f 02 7608 0c 07 10") == "1000 7+16 16:c-8");
}

TEST_CASE("rows: registers") {
  CHECK(rows_of("83 03") == "1000 7+8 3:c-24 16:c-8");
  CHECK(rows_of("05 43 03") == "1000 7+8 16:c-8 67:c-24");
  CHECK(rows_of("11 03 7d") == "1000 7+8 3:c24 16:c-8");  // offset_extended_sf -3
  CHECK(rows_of("2f 03 02") == "1000 7+8 3:c16 16:c-8");  // GNU_negative_offset_extended
  CHECK(rows_of("14 03 02") == "1000 7+8 3:v-16 16:c-8");
  CHECK(rows_of("15 03 7e") == "1000 7+8 3:v16 16:c-8");
  CHECK(rows_of("07 10") == "1000 7+8 16:u");
  CHECK(rows_of("08 03") == "1000 7+8 3:s 16:c-8");
  CHECK(rows_of("09 03 0c") == "1000 7+8 3:r12 16:c-8");
  CHECK(rows_of("10 03 02 7600") == "1000 7+8 3:e2 16:c-8");
  CHECK(rows_of("16 03 02 7600") == "1000 7+8 3:ve2 16:c-8");
  CHECK(rows_of("2e 10") == "1000 7+8 16:c-8 args 16");
}

TEST_CASE("rows: DW_CFA_restore goes back to the CIE, or to no rule") {
  CHECK(rows_of("83 03 41 c3") == "1000 7+8 3:c-24 16:c-8; 1001 7+8 16:c-8");
  CHECK(rows_of("90 04 41 d0") == "1000 7+8 16:c-32; 1001 7+8 16:c-8");
  CHECK(rows_of("05 43 03 41 06 43") == "1000 7+8 16:c-8 67:c-24; 1001 7+8 16:c-8");
}

TEST_CASE("rows: remembered states nest; the size of the arguments is not part of them") {
  CHECK(rows_of("0a 0e10 0a 0e18 83 02 2e 20 41 0b 41 0b") ==
        "1000 7+24 3:c-16 16:c-8 args 32; 1001 7+16 16:c-8 args 32; 1002 7+8 16:c-8 args 32");
}

TEST_CASE("rows: AArch64 signs return addresses; elsewhere the instruction is unknown") {
  CHECK(rows_of({.function = hex("2d 41 2d")}, {.machine = EM_AARCH64}) ==
        "1000 7+8 16:c-8 signed; 1001 7+8 16:c-8");
  CHECK(rows_of("2d").find("unknown instruction 45") != std::string::npos);
}

TEST_CASE("rows: programs that make no sense are refused") {
  const std::string program =
      GENERATE("0e", "0c07", "8380", "03 01", "0f 05 76", "0b",  // cut off, nothing remembered
               "0f 02 7608 0e 10", "0f 02 7608 0d 07",           // an offset to an expression
               "17 00", "1c 00", "30 00 00 00", "3f",            // no such instruction
               "41 01 00100000",                                 // goes back
               "83 ffffffffffffffffffff01", "04 ffffffff 01 00000000");
  CAPTURE(program);
  const std::string rows = rows_of(program);
  // An advance behind the end is where a reader stops.
  if (program.starts_with("04")) CHECK(rows.starts_with("1000 7+8"));
  if (!program.starts_with("04")) CHECK(rows.starts_with("call frame instructions: "));
  CHECK(rows_of({.initial = hex("41 0c 07 08")}).starts_with("call frame instructions: "));
  CHECK(rows_of({.initial = hex("c3")}).starts_with("call frame instructions: "));
}

TEST_CASE("rows: a program whose rows would take memory without end is refused") {
  // 256 rules, then every byte copies them: remembered, or as a row.
  Bytes rules;
  for (unsigned reg = 128; reg < 256; ++reg) {
    const auto low = static_cast<std::byte>(reg & 0x7f);
    rules = rules + Bytes{std::byte{0x05}, std::byte{0x80} | low, std::byte{1}, std::byte{1}};
  }
  const auto copies = GENERATE(std::byte{0x0a}, std::byte{0x41});
  Bytes program = rules;
  program.resize(rules.size() + 3000, copies);
  CHECK(rows_of({.function = program}).find("more rules") != std::string::npos);
  program.resize(rules.size() + 100);
  CHECK(rows_of({.function = program}).starts_with("1000 7+8"));
}
