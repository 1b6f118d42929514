// Expressions assembled by hand from DWARF 4, 7.7.1.
#include "libprobe/code/cfi_expression.hpp"

#include "catch.hpp"
#include "code_bytes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

using Registers = std::set<std::uint64_t>;

std::optional<Registers> read(std::string_view expression, bool is64 = true) {
  return registers_read(hex(expression), header_of(EM_X86_64, is64));
}

}  // namespace

TEST_CASE("expressions: the registers that they read") {
  CHECK(read("") == Registers{});
  CHECK(read("7608") == Registers{6});         // breg6 8
  CHECK(read("7678 06") == Registers{6});      // breg6 -8; deref
  CHECK(read("92 10 8001") == Registers{16});  // bregx 16, 128
  CHECK(read("57") == Registers{7});           // reg7
  CHECK(read("90 07") == Registers{7});        // regx 7
  // .plt: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
  CHECK(read("77 08 80 00 3f 1a 3b 2a 33 24 22") == Registers{7, 16});
  // An operand is no operation: const1u 0x77 (breg7), constu, plus_uconst.
  CHECK(read("08 77") == Registers{});
  CHECK(read("10 f701 23 77") == Registers{});
  CHECK(read("0a 7777 0c 77777777 0e 7777777777777777") == Registers{});
  CHECK(read("03 7777777777777777") == Registers{});
  CHECK(read("03 77777777", false) == Registers{});
  CHECK(read("15 77 94 77 2f 7777 28 7777") == Registers{});  // pick, deref_size, skip, bra
}

TEST_CASE("expressions: what is not known is not guessed") {
  // Nothing: reserved; xderef_size; call_frame_cfa; GNU_encoded_addr; user-defined.
  for (const char* expression : {"00", "95 08", "9c", "f1 00 00", "ff"}) {
    CAPTURE(expression);
    CHECK_FALSE(read(expression));
  }
  for (const char* cut : {"76", "92 10", "03 00", "08", "10 80", "2f 00", "90"}) {
    CAPTURE(cut);
    CHECK_FALSE(read(cut));
  }
}
