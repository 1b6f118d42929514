// Branches of other functions into code that a result has changed.

#include "libprobe/verify/arrivals.hpp"

#include "audit_file.hpp"
#include "catch.hpp"
#include "code_bytes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000;

// f at 0x1000: nop; mov %edi,%eax; ret. g at 0x1010: the code.
Bytes program(const char* g) {
  AuditFile file;
  file.code = hex("90 89 f8 c3");
  file.code.resize(0x10, std::byte{0xcc});
  const Bytes other = hex(g);
  file.code.insert(file.code.end(), other.begin(), other.end());
  file.code.resize(0x80, std::byte{0xcc});
  file.symbols = {
      {.name = "f", .value = kText, .size = 4, .type = STT_FUNC, .shndx = 1},
      {.name = "g", .value = kText + 0x10, .size = other.size(), .type = STT_FUNC, .shndx = 1}};
  file.probes = {{.location = kText, .provider = "p", .name = "n"}};
  return file.build();
}

std::vector<ArrivingBranch> arrivals(const char* g) {
  const Bytes before = program(g);
  const auto a = ElfFile::open(borrowed_source(before)).value();
  Bytes after = before;
  const auto offset = a.offset_of(VirtAddr{kText});
  REQUIRE(offset);
  for (std::size_t i = 0; i < 4; ++i)
    after[static_cast<std::size_t>(offset->value) + i] ^= std::byte{1};
  const auto b = ElfFile::open(borrowed_source(after)).value();
  return find_arrivals(a, b);
}

}  // namespace

TEST_CASE("arrivals: short and long branches of another function", "[verify]") {
  const auto near = arrivals("eb ef c3");  // jmp 0x1001
  REQUIRE(near.size() == 1);
  CHECK(near[0].source == VirtAddr{0x1010});
  CHECK(near[0].target == VirtAddr{0x1001});
  const auto far = arrivals("31 c0 0f 84 e9 ff ff ff c3");  // xor; je 0x1001
  REQUIRE(far.size() == 1);
  CHECK(far[0].source == VirtAddr{0x1012});
  CHECK(far[0].target == VirtAddr{0x1001});
}

TEST_CASE("arrivals: bytes inside an instruction are no branch", "[verify]") {
  CHECK(arrivals("b8 00 00 eb ed c3").empty());  // mov $imm,%eax
  CHECK(arrivals("eb 01 90 c3").empty());        // leads elsewhere
}
