// That a rewritten function does what it did: hand-assembled originals and results, and one fault
// planted after the other.

#include "libprobe/verify/compare_code.hpp"

#include "catch.hpp"
#include "elf_builder.hpp"
#include "flow_of_bytes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr VirtAddr kStart{0x1000};
constexpr std::size_t kStub = 0x40;  // offset of the stub in the code

struct Code {
  explicit Code(Bytes text) {
    ElfBuilder elf;
    text.resize(0x100, std::byte{0xcc});
    const auto section = elf.section({.name = ".text",
                                      .flags = SHF_ALLOC | SHF_EXECINSTR,
                                      .addr = kStart.value,
                                      .align = 16,
                                      .bytes = std::move(text)});
    elf.load(PF_R | PF_X, section);
    bytes = elf.build();
  }
  [[nodiscard]] ElfFile file() const { return ElfFile::open(borrowed_source(bytes)).value(); }
  Bytes bytes;
};

// push %rbp; nop; mov %edi,%eax; cmp 0x1080(%rip),%eax; je 1f; xor %eax,%eax; 1: pop %rbp; ret
const Bytes kOriginal = bytes_of(
    {0x55, 0x90, 0x89, 0xf8, 0x3b, 0x05, 0x76, 0, 0, 0, 0x74, 0x02, 0x31, 0xc0, 0x5d, 0xc3});
constexpr std::uint64_t kSite = 1;

Bytes with_stub(Bytes function, const Bytes& stub) {
  function.resize(kStub, std::byte{0xcc});
  function.insert(function.end(), stub.begin(), stub.end());
  return function;
}

// push %rbp; jmp stub; int3...; xor %eax,%eax; pop %rbp; ret. Stub: nop, nop10; mov; cmp; je; jmp.
const Bytes kResult =
    with_stub(bytes_of({0x55, 0xe9, 0x3a, 0, 0, 0, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x31, 0xc0,
                        0x5d, 0xc3}),
              bytes_of({0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0,    0,    0,    0,
                        0,    0x89, 0xf8, 0x3b, 0x05, 0x2d, 0,    0,    0,    0x0f,
                        0x84, 0xb5, 0xff, 0xff, 0xff, 0xe9, 0xae, 0xff, 0xff, 0xff}));
constexpr std::size_t kMoved = kStub + 11;  // behind the sled

ComparedCode compared(const Bytes& original, const Bytes& result, std::uint64_t sled,
                      std::initializer_list<std::pair<int, TargetKinds>> targets) {
  const Code before(original);
  const Code after(result);

  const FunctionFlow flow = flow_of(kStart, original, targets);
  const VirtAddr site{kStart.value + kSite};
  const auto named = [site](std::uint64_t at) {
    return SledOf([=](VirtAddr address) {
      return address.value == kStart.value + at ? std::optional(site) : std::nullopt;
    });
  };
  const ElfFile a = before.file();
  const ElfFile b = after.file();
  return compare_code(flow, a, b, named(kSite), named(sled));
}

bool is_proven(const Bytes& result, std::uint64_t sled = kStub) {
  return compared(kOriginal, result, sled, {{1, kTargetSite}, {14, kTargetBranch}})
      .findings.empty();
}

Bytes poked(std::size_t at, std::uint8_t value) {
  Bytes bytes = kResult;
  REQUIRE(bytes[at] != std::byte{value});
  bytes[at] = std::byte{value};
  return bytes;
}

}  // namespace

TEST_CASE("a function through its stub does what it did", "[sled][verify]") {
  const ComparedCode code =
      compared(kOriginal, kResult, kStub, {{1, kTargetSite}, {14, kTargetBranch}});
  CHECK(code.findings.empty());
  REQUIRE_FALSE(code.proven.empty());
  CHECK(code.proven.front().first == VirtAddr{0x1001});
  CHECK(code.proven.back().second == VirtAddr{0x100c});
  CHECK(code.lower.at(0x1001) == 0);
}

TEST_CASE("planted faults are found", "[sled][verify]") {
  CHECK_FALSE(is_proven(poked(kMoved + 1, 0xf0)));   // mov %esi,%eax
  CHECK_FALSE(is_proven(poked(kMoved + 4, 0x2c)));   // another variable
  CHECK_FALSE(is_proven(poked(kMoved + 9, 0x85)));   // jne
  CHECK_FALSE(is_proven(poked(kMoved + 10, 0xb3)));  // the branch leads to the other arm
  CHECK_FALSE(is_proven(poked(kMoved + 15, 0xb0)));  // the way back leaves out an instruction
  CHECK_FALSE(is_proven(poked(kMoved + 15, 0xaf)));  // and arrives in the middle of one
  CHECK_FALSE(is_proven(poked(2, 0x45)));            // the way there leaves out the sled
  CHECK_FALSE(is_proven(poked(14, 0x58)));           // pop %rax, far from the sled
  CHECK_FALSE(is_proven(kResult, kStub + 2));        // the note names another place
}

TEST_CASE("no flipped bit of moved code or of a jump is proven", "[sled][verify]") {
  std::vector<std::size_t> places{1, 2, 3, 4, 5};
  for (std::size_t at = kMoved; at < kResult.size(); ++at) places.push_back(at);
  for (const std::size_t at : places) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes bytes = kResult;
      bytes[at] ^= static_cast<std::byte>(1U << bit);
      CAPTURE(at, bit);
      CHECK_FALSE(is_proven(bytes));
    }
  }
}

TEST_CASE("a target inside what was replaced is found", "[sled][verify]") {
  CHECK_FALSE(compared(kOriginal, kResult, kStub,
                       {{1, kTargetSite}, {4, kTargetBranch}, {14, kTargetBranch}})
                  .findings.empty());
}

TEST_CASE("a guarded sled is 128 bytes lower, and only a whole guard is one", "[sled][verify]") {
  // push %rbp; nop; mov %edi,%eax; xor %ecx,%ecx; pop %rbp; ret
  const Bytes original = bytes_of({0x55, 0x90, 0x89, 0xf8, 0x31, 0xc9, 0x5d, 0xc3});
  // Stub: lea -128(%rsp),%rsp; nop5; lea 128(%rsp),%rsp; mov; xor; jmp
  const Bytes result = with_stub(
      bytes_of({0x55, 0xe9, 0x3a, 0, 0, 0, 0x5d, 0xc3}),
      bytes_of({0x48, 0x8d, 0x64, 0x24, 0x80, 0x0f, 0x1f, 0x44, 0,    0,    0x48, 0x8d, 0xa4, 0x24,
                0x80, 0,    0,    0,    0x89, 0xf8, 0x31, 0xc9, 0xe9, 0xab, 0xff, 0xff, 0xff}));
  const ComparedCode code = compared(original, result, kStub + 5, {{1, kTargetSite}});
  CHECK(code.findings.empty());
  CHECK(code.lower.at(0x1001) == 128);
  for (const std::size_t at : {4U, 14U}) {
    Bytes other = result;
    other[kStub + at] ^= std::byte{8};
    CHECK_FALSE(compared(original, other, kStub + 5, {{1, kTargetSite}}).findings.empty());
  }
}

TEST_CASE("in the stub of a call the stack pointer is 8 bytes lower", "[sled][verify]") {
  // push %rbp; nop; call 0x1020; pop %rbp; ret
  Bytes original = bytes_of({0x55, 0x90, 0xe8, 0x19, 0, 0, 0, 0x5d, 0xc3});
  Bytes result = with_stub(bytes_of({0x55, 0x90, 0xe8, 0x39, 0, 0, 0, 0x5d, 0xc3}),
                           bytes_of({0x0f, 0x1f, 0x44, 0, 0, 0xe9, 0xd6, 0xff, 0xff, 0xff}));
  const ComparedCode code = compared(original, result, kStub, {{1, kTargetSite}});
  CHECK(code.findings.empty());
  CHECK(code.lower.at(0x1001) == 8);
  // Half a guard would leave the callee's stack 128 bytes lower.
  const Bytes half = with_stub(bytes_of({0x55, 0x90, 0xe8, 0x39, 0, 0, 0, 0x5d, 0xc3}),
                               bytes_of({0x48, 0x8d, 0x64, 0x24, 0x80, 0x0f, 0x1f, 0x44, 0, 0, 0xe9,
                                         0xd1, 0xff, 0xff, 0xff}));
  CHECK_FALSE(compared(original, half, kStub + 5, {{1, kTargetSite}}).findings.empty());
  result[kStub + 6] ^= std::byte{1};  // another callee
  CHECK_FALSE(compared(original, result, kStub, {{1, kTargetSite}}).findings.empty());
}
