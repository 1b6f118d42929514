// Instructions at another address. The expected bytes are GNU as's for the same operation there.

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/code/decoder.hpp"
#include "libprobe/rewrite/sled/displace.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

CodeInstruction decoded(const Bytes& bytes, std::uint64_t at) {
  ElfHeader header;
  header.is64 = true;
  header.machine = EM_X86_64;
  const auto decoder = Decoder::open(header, false);
  REQUIRE(decoder);
  const auto code = decoder->decode_operands(bytes, VirtAddr{at});
  REQUIRE(code);
  REQUIRE(code->size.value == bytes.size());
  return *code;
}

}  // namespace

TEST_CASE("displaced instructions mean the same", "[sled]") {
  struct Case {
    const char* what;
    Bytes before;
    Bytes after;
  };
  // From 0x1000 to 0x5000.
  const Case cases[] = {
      {"mov %rsp,%rbp", bytes_of({0x48, 0x89, 0xe5}), bytes_of({0x48, 0x89, 0xe5})},
      {"mov 0x2000(%rip),%eax # 0x3006", bytes_of({0x8b, 0x05, 0x00, 0x20, 0x00, 0x00}),
       bytes_of({0x8b, 0x05, 0x00, 0xe0, 0xff, 0xff})},
      // The displacement counts from behind the immediate.
      {"cmpw $0,0x100(%rip) # 0x1108", bytes_of({0x66, 0x83, 0x3d, 0x00, 0x01, 0x00, 0x00, 0x00}),
       bytes_of({0x66, 0x83, 0x3d, 0x00, 0xc1, 0xff, 0xff, 0x00})},
      {"movl $0x12345678,0(%rip) # 0x100a",
       bytes_of({0xc7, 0x05, 0x00, 0x00, 0x00, 0x00, 0x78, 0x56, 0x34, 0x12}),
       bytes_of({0xc7, 0x05, 0x00, 0xc0, 0xff, 0xff, 0x78, 0x56, 0x34, 0x12})},
      {"jmp 0x1012", bytes_of({0xeb, 0x10}), bytes_of({0xe9, 0x0d, 0xc0, 0xff, 0xff})},
      {"jmp 0xff0", bytes_of({0xeb, 0xee}), bytes_of({0xe9, 0xeb, 0xbf, 0xff, 0xff})},
      {"jmp 0x1105", bytes_of({0xe9, 0x00, 0x01, 0x00, 0x00}),
       bytes_of({0xe9, 0x00, 0xc1, 0xff, 0xff})},
      {"je 0x1007", bytes_of({0x74, 0x05}), bytes_of({0x0f, 0x84, 0x01, 0xc0, 0xff, 0xff})},
      {"jg 0x1007", bytes_of({0x7f, 0x05}), bytes_of({0x0f, 0x8f, 0x01, 0xc0, 0xff, 0xff})},
      {"jb 0x1106", bytes_of({0x0f, 0x82, 0x00, 0x01, 0x00, 0x00}),
       bytes_of({0x0f, 0x82, 0x00, 0xc1, 0xff, 0xff})},
      {"ret", bytes_of({0xc3}), bytes_of({0xc3})},
      {"jmp *0x10(%rip) # 0x1016", bytes_of({0xff, 0x25, 0x10, 0x00, 0x00, 0x00}),
       bytes_of({0xff, 0x25, 0x10, 0xc0, 0xff, 0xff})},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const CodeInstruction code = decoded(c.before, 0x1000);
    REQUIRE_FALSE(why_not_displaced(code));
    CHECK(displaced_size(code).value == c.after.size());
    const auto moved = displace(code, c.before, VirtAddr{0x5000});
    REQUIRE(moved);
    CHECK(*moved == c.after);
    // And it refers to what it referred to.
    const CodeInstruction there = decoded(*moved, 0x5000);
    CHECK(there.target == code.target);
    CHECK(there.rip_target == code.rip_target);
    CHECK(there.kind == code.kind);
  }
}

TEST_CASE("some instructions must stay", "[sled]") {
  struct Case {
    const char* reason;
    Bytes bytes;
  };
  const Case cases[] = {
      {"a call", bytes_of({0xe8, 0, 0, 0, 0})},
      {"a call", bytes_of({0xff, 0xd0})},
      {"an endbr64", bytes_of({0xf3, 0x0f, 0x1e, 0xfa})},
      {"a branch without a long form", bytes_of({0xe3, 0x05})},
      {"a branch without a long form", bytes_of({0xe2, 0x05})},
      {"a repeated string operation", bytes_of({0xf3, 0xa4})},
      {"a transaction's start", bytes_of({0xc7, 0xf8, 0, 0, 0, 0})},
  };
  for (const Case& c : cases) {
    CAPTURE(c.reason);
    const CodeInstruction code = decoded(c.bytes, 0x1000);
    CHECK(why_not_displaced(code).value_or("nothing") == c.reason);
    CHECK_FALSE(displace(code, c.bytes, VirtAddr{0x5000}).has_value());
  }
}

TEST_CASE("what lies more than 2 GiB away is refused", "[sled]") {
  const Bytes load = bytes_of({0x8b, 0x05, 0x00, 0x20, 0x00, 0x00});
  const CodeInstruction code = decoded(load, 0x1000);
  CHECK(displace(code, load, VirtAddr{0x80000000}).has_value());
  const auto far = displace(code, load, VirtAddr{0x80004000});
  REQUIRE_FALSE(far);
  CHECK(far.error().code == ErrorCode::refused);
  CHECK(encode_jump(VirtAddr{0x1000}, VirtAddr{0x1000}).value() ==
        bytes_of({0xe9, 0xfb, 0xff, 0xff, 0xff}));
  CHECK(encode_jump(VirtAddr{0x80000ffa}, VirtAddr{0xfff}).has_value());
  CHECK_FALSE(encode_jump(VirtAddr{0x80000ffb}, VirtAddr{0xfff}).has_value());
}
