#include "libprobe/code/flow.hpp"

#include <algorithm>

#include "catch.hpp"
#include "code_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kData = 0x4000;

// Functions by their FDEs, as a stripped file has them, and 0x100 bytes of data at kData.
struct FlowFile : CodeFile {
  using CodeFile::CodeFile;

  // `code` as GNU as and objdump 2.40 print it; gives the function's start.
  std::uint64_t code(std::uint64_t start, std::string_view code_text) {
    const Bytes bytes = hex(code_text);
    std::ranges::copy(bytes, text_bytes.begin() + static_cast<std::ptrdiff_t>(start - kText));
    ranges.push_back({start, bytes.size()});
    return start;
  }
  void data(std::uint64_t at, const Bytes& bytes) {
    std::ranges::copy(bytes, data_bytes.begin() + static_cast<std::ptrdiff_t>(at - kData));
  }

  // A PT_LOAD with the text comes from CodeFile; its section's bytes are taken over here.
  Bytes build() {
    const auto section = builder.section(
        {.name = ".rodata", .flags = SHF_ALLOC, .addr = kData, .bytes = data_bytes});
    builder.load(PF_R, section);
    frames(ranges);
    Bytes file = builder.build();
    const auto opened = ElfFile::open(borrowed_source(file));
    REQUIRE(opened);
    const auto offset = opened->offset_of(VirtAddr{kText});
    REQUIRE(offset);
    std::ranges::copy(text_bytes, file.begin() + static_cast<std::ptrdiff_t>(offset->value));
    return file;
  }

  Bytes text_bytes = Bytes(0x1000);
  Bytes data_bytes = Bytes(0x100);
  std::vector<FrameBuilder::Range> ranges;
};

FunctionFlow flow_of(FlowFile& elf, std::uint64_t site, std::vector<VirtAddr> others = {}) {
  const auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  others.push_back(VirtAddr{site});
  const auto reader = FlowReader::open(*file, others);
  REQUIRE(reader);
  auto flow = reader->function_of(VirtAddr{site});
  REQUIRE(flow);
  return std::move(*flow);
}

// The targets as text: "1000 entry; 1018 jump table".
std::string targets(const FunctionFlow& flow) {
  std::ostringstream out;
  for (const CodeTarget& target : flow.targets) {
    if (&target != &flow.targets.front()) out << "; ";
    out << std::hex << target.address.value << ' ' << target_names(target.kinds);
  }
  return out.str();
}

// cmp $2,%edi; ja 101e; lea 0x4000(%rip),%rdx; mov %edi,%edi; movslq (%rdx,%rdi,4),%rax;
// add %rdx,%rax; notrack jmp *%rax; nop; ret; nop; nop; ret; ret; xor %eax,%eax; ret
constexpr std::string_view kSwitch =
    "83ff02 7719 488d15f42f0000 89ff 486304ba 4801d0 3effe0 90 c3 90 90 c3 c3 31c0 c3";
// 0x1018, 0x101a, 0x101d relative to 0x4000; then 0x101c, which is none of its cases.
constexpr std::string_view kSwitchTable = "18d0ffff 1ad0ffff 1dd0ffff 1cd0ffff";
constexpr std::string_view kCalled = "e800000000";  // filled in by call()

// A function that calls another: what is called is a function and no part of one.
void call(FlowFile& elf, std::uint64_t at, std::uint64_t callee) {
  const auto displacement = static_cast<std::uint32_t>(callee - (at + 5));
  Bytes code = hex(kCalled);
  store_uint(code, 1, 4, std::endian::little, displacement);
  std::ranges::copy(code, elf.text_bytes.begin() + static_cast<std::ptrdiff_t>(at - kText));
  elf.ranges.push_back({at, code.size()});
}

}  // namespace

TEST_CASE("Flow: a jump table is as long as the comparison says") {
  FlowFile elf;
  elf.code(0x1000, kSwitch);
  elf.data(kData, hex(kSwitchTable));
  const FunctionFlow flow = flow_of(elf, 0x1018);
  CHECK(flow.complete);
  CHECK(flow.why_incomplete.empty());
  CHECK(targets(flow) ==
        "1000 entry; 1018 jump table, word, site; 101a jump table; 101d jump table; "
        "101e branch, word");
  CHECK(flow.code.size() == 15);
  CHECK(flow.target(VirtAddr{0x101a}) == kTargetTable);
  CHECK(flow.target(VirtAddr{0x101b}) == 0);
  CHECK(flow.target_between(VirtAddr{0x1018}, VirtAddr{0x101b}));
  CHECK_FALSE(flow.target_between(VirtAddr{0x1018}, VirtAddr{0x101a}));
  CHECK_FALSE(flow.target_between(VirtAddr{0x101a}, VirtAddr{0x101d}));
  REQUIRE(flow.at(VirtAddr{0x1015}));
  CHECK(flow.at(VirtAddr{0x1015})->kind == InstructionKind::indirect_jump);
  CHECK(flow.at(VirtAddr{0x1016}) == nullptr);
}

TEST_CASE("Flow: a table without a comparison is read while it may lead to cases") {
  FlowFile elf;
  // lea 0x4000(%rip),%rdx; mov %edi,%edi; movslq (%rdx,%rdi,4),%rax; add %rdx,%rax; jmp *%rax;
  // nop; ret; nop; ret
  elf.code(0x1000, "488d15f92f0000 89ff 486304ba 4801d0 ffe0 90 c3 90 c3");
  SECTION("up to an address that is no code") {
    elf.data(kData, hex("12d0ffff 14d0ffff 00000000 12d0ffff"));
    CHECK(targets(flow_of(elf, 0x1012)) ==
          "1000 entry; 1012 jump table, word, site; 1014 jump table");
  }
  SECTION("past two words that are no case") {
    elf.data(kData, hex("12d0ffff 08d0ffff 00000000 14d0ffff"));
    CHECK(targets(flow_of(elf, 0x1012)) ==
          "1000 entry; 100c word; 1012 jump table, word, site; 1014 jump table");
  }
  SECTION("not past three") {
    elf.data(kData, hex("12d0ffff 08d0ffff 00000000 00000000 14d0ffff"));
    CHECK(targets(flow_of(elf, 0x1012)) == "1000 entry; 100c word; 1012 jump table, word, site");
  }
  SECTION("and one without any case is no table") {
    elf.data(kData, hex("00000000"));
    const FunctionFlow flow = flow_of(elf, 0x1012);
    CHECK_FALSE(flow.complete);
    CHECK(flow.why_incomplete == "indirect jump at 0x1010 that was not understood");
  }
}

TEST_CASE("Flow: indirect jumps through pointers need no table") {
  FlowFile elf;
  SECTION("a pointer from memory, the stack restored before the jump") {
    // push %rbx; mov (%rdi),%rax; mov %rdi,%rbx; mov 0x18(%rax),%rax; pop %rbx; jmp *%rax
    elf.code(0x1000, "53 488b07 4889fb 488b4018 5b ffe0");
    CHECK(flow_of(elf, 0x1000).complete);
  }
  SECTION("memory itself") {
    elf.code(0x1000, "488b07 ff6018");  // mov (%rdi),%rax; jmp *0x18(%rax)
    CHECK(flow_of(elf, 0x1000).complete);
  }
  SECTION("what a callee returned") {
    elf.code(0x1000, "ffd7 ffe0");  // call *%rdi; jmp *%rax
    CHECK(flow_of(elf, 0x1000).complete);
  }
  SECTION("what the caller passed, where calls are known") {
    elf.code(0x1000, "ffe7");  // jmp *%rdi
    CHECK_FALSE(flow_of(elf, 0x1000).complete);
    FlowFile called;
    called.code(0x1000, "ffe7");
    call(called, 0x1100, 0x1000);
    CHECK(flow_of(called, 0x1000).complete);
  }
  SECTION("arithmetic is not understood") {
    elf.code(0x1000, "488b07 4883e810 ffe0");  // mov (%rdi),%rax; sub $16,%rax; jmp *%rax
    const FunctionFlow flow = flow_of(elf, 0x1000);
    CHECK_FALSE(flow.complete);
    CHECK(flow.why_incomplete == "indirect jump at 0x1007 that was not understood");
  }
  SECTION("nor are pointers from memory where labels were added to") {
    // lea 1016(%rip),%rax; movslq %edi,%rdx; add %rdx,%rax; mov %rax,-8(%rsp); jmp *-8(%rsp);
    // nop; ret
    elf.code(0x1000, "488d050f000000 4863d7 4801d0 48894424f8 ff6424f8 90 c3");
    const FunctionFlow flow = flow_of(elf, 0x1000);
    CHECK_FALSE(flow.complete);
    CHECK(flow.target(VirtAddr{0x1016}) == kTargetLea);
  }
}

TEST_CASE("Flow: the other part of a function jumps back into its middle") {
  FlowFile elf;
  SECTION("with a 32-bit displacement") {
    // test %edi,%edi; js 1100; nop; nop; xor %eax,%eax; ret
    elf.code(0x1000, "85ff 0f88f8000000 90 90 31c0 c3");
    elf.code(0x1100, "ffd6 e903ffffff");  // call *%rsi; jmp 100a
  }
  SECTION("from a neighbour, with 8 bits") {
    // test %edi,%edi; js 1020; the same
    elf.code(0x1000, "85ff 0f8818000000 90 90 31c0 c3");
    elf.code(0x1020, "ffd6 ebe6");  // call *%rsi; jmp 100a
  }
  const FunctionFlow flow = flow_of(elf, 0x1008);
  CHECK(flow.complete);
  CHECK(targets(flow) == "1000 entry; 1008 site; 100a branch from elsewhere");
}

TEST_CASE("Flow: a jump to code that is not known") {
  FlowFile elf;
  SECTION("may come back") {  // js 1100; ret
    elf.code(0x1000, "0f88fa000000 c3");
    const FunctionFlow flow = flow_of(elf, 0x1006);
    CHECK_FALSE(flow.complete);
    CHECK(flow.why_incomplete == "jump to 0x1100, which lies in no known function");
  }
  SECTION("but not from the empty block at the function's end") {  // js 1007; ret
    elf.code(0x1000, "0f8801000000 c3");
    CHECK(flow_of(elf, 0x1006).complete);
  }
  SECTION("nor from outside the file's code") {  // js 0; ret
    elf.code(0x1000, "0f88faefffff c3");
    CHECK(flow_of(elf, 0x1006).complete);
  }
  SECTION("nor from an entry of the procedure linkage table") {
    elf.code(0x1000, "0f88fa000000 c3");
    const Bytes entry = hex("f30f1efa f2ff2500200000");  // endbr64; bnd jmp *x(%rip)
    std::ranges::copy(entry, elf.text_bytes.begin() + 0x100);
    CHECK(flow_of(elf, 0x1006).complete);
  }
}

TEST_CASE("Flow: bytes that only look like a jump are none where the code is known") {
  FlowFile elf;
  elf.code(0x1000, "90 90 31c0 c3");
  // movabs $0xfffffefbe9,%rax: e9 fb fe ff ff at 1102 would lead to 1002.
  elf.code(0x1100, "48b8 e9fbfeffff000000 c3");
  CHECK(targets(flow_of(elf, 0x1000)) == "1000 entry, site");
  // In code of no known function, they count.
  FlowFile without;
  without.code(0x1000, "90 90 31c0 c3");
  const Bytes bytes = hex("48b8 e9fbfeffff000000 c3");
  std::ranges::copy(bytes, without.text_bytes.begin() + 0x100);
  const FunctionFlow flow = flow_of(without, 0x1000);
  CHECK(targets(flow) == "1000 entry, site; 1002 branch from elsewhere");
}

TEST_CASE("Flow: a table of another part leads into the function") {
  FlowFile elf;
  // test %edi,%edi; js 1100; nop; nop; xor %eax,%eax; ret
  elf.code(0x1000, "85ff 0f88f8000000 90 90 31c0 c3");
  // lea 0x4000(%rip),%rdx; movslq (%rdx,%rsi,4),%rax; add %rdx,%rax; jmp *%rax
  elf.code(0x1100, "488d15f92e0000 486304b2 4801d0 ffe0");
  elf.data(kData, hex("09d0ffff 0ad0ffff"));
  const FunctionFlow flow = flow_of(elf, 0x1008);
  CHECK(flow.complete);
  // A word of data names it, and a table.
  CHECK(flow.target(VirtAddr{0x1009}) == (kTargetTable | kTargetDistance));
}

TEST_CASE("Flow: addresses in relocations, words and symbols are targets") {
  constexpr std::string_view code = "90 90 90 90 90 90 90 c3";
  SECTION("RELATIVE and symbol plus addend") {
    FlowFile elf;
    elf.code(0x1000, code);
    elf.function("f", 0x1000, 8);
    Bytes rela;
    const auto entry = [&](std::uint64_t info, std::uint64_t addend) {
      for (const std::uint64_t v : {std::uint64_t{0x4000}, info, addend}) {
        Bytes word(8);
        store_uint(word, 0, 8, std::endian::little, v);
        rela = rela + word;
      }
    };
    entry(8, 0x1002);                        // R_X86_64_RELATIVE
    entry((std::uint64_t{1} << 32) | 1, 4);  // R_X86_64_64, f + 4
    entry(18, 0x1006);                       // R_X86_64_TPOFF64: no address
    elf.builder.section({.name = ".rela.dyn",
                         .type = SHT_RELA,
                         .flags = SHF_ALLOC,
                         .align = 8,
                         .bytes = rela,
                         .link = ElfBuilder::kSymtab,
                         .entsize = 24});
    CHECK(targets(flow_of(elf, 0x1001)) ==
          "1000 entry, symbol; 1001 site; 1002 relocation; 1004 relocation");
  }
  SECTION("RELR") {
    FlowFile elf;
    elf.code(0x1000, code);
    elf.data(kData, hex("0210000000000000 0310000000000000 0410000000000000 0510000000000000"));
    // The word at 0x4000; of the words behind it the second and third (bits 2 and 3).
    elf.builder.section({.name = ".relr.dyn",
                         .type = SHT_RELR,
                         .flags = SHF_ALLOC,
                         .align = 8,
                         .bytes = hex("0040000000000000 0d00000000000000"),
                         .entsize = 8});
    CHECK(targets(flow_of(elf, 0x1001)) ==
          "1000 entry; 1001 site; 1002 relocation; 1004 relocation; 1005 relocation");
  }
  SECTION("words of a program at fixed addresses only") {
    FlowFile fixed(ElfBuilder::Kind{.type = ET_EXEC});
    fixed.code(0x1000, code);
    fixed.data(kData + 1, hex("03100000"));
    // The FDE holds the function's own start.
    CHECK(targets(flow_of(fixed, 0x1001)) == "1000 entry, word; 1001 site; 1003 word");
    FlowFile shared;
    shared.code(0x1000, code);
    shared.data(kData + 1, hex("03100000"));
    CHECK(targets(flow_of(shared, 0x1001)) == "1000 entry; 1001 site");
  }
  SECTION("symbols of any type, FDEs, other sites") {
    FlowFile elf;
    elf.code(0x1000, code);
    elf.function("f", 0x1000, 8);
    elf.label("label", 0x1002);
    elf.builder.symbol({"object", 0x1004, 2, STT_OBJECT, STB_LOCAL, elf.text});
    elf.builder.symbol({"thread", 0x1005, 2, STT_TLS, STB_LOCAL, elf.text});
    elf.ranges.push_back({0x1006, 1});
    CHECK(targets(flow_of(elf, 0x1001, {VirtAddr{0x1003}})) ==
          "1000 entry, symbol; 1001 site; 1002 symbol; 1003 site; 1004 symbol; 1006 FDE");
  }
}

TEST_CASE("Flow: labels that the code itself marks") {
  FlowFile elf;
  SECTION("endbr64 in the middle") {
    elf.code(0x1000, "f30f1efa ffd7 f30f1efa 90 c3");
    CHECK(targets(flow_of(elf, 0x100a)) == "1000 entry; 1006 endbr; 100a site");
  }
  SECTION("lea of a label") {  // lea 100c(%rip),%rax; mov %rax,(%rdi); nop; nop; ret
    elf.code(0x1000, "488d0505000000 488907 90 90 c3");
    CHECK(targets(flow_of(elf, 0x100a)) == "1000 entry; 100a site; 100c lea");
  }
}

TEST_CASE("Flow: jumps into instructions") {
  FlowFile elf;
  SECTION("over a lock prefix") {  // test %edi,%edi; je 1005; lock incl (%rsi); nop; ret
    elf.code(0x1000, "85ff 7401 f0ff06 90 c3");
    const FunctionFlow flow = flow_of(elf, 0x1007);
    CHECK(flow.complete);
    CHECK(flow.target(VirtAddr{0x1005}) == kTargetBranch);
  }
  SECTION("anywhere else: the code is not what it seems") {
    elf.code(0x1000, "7402 b890909090 c3");  // je 1004; mov $0x90909090,%eax; ret
    const FunctionFlow flow = flow_of(elf, 0x1000);
    CHECK_FALSE(flow.complete);
    CHECK(flow.why_incomplete == "branch 0x1004 lies inside the instruction at 0x1002");
  }
  SECTION("bytes that are no code") {
    elf.code(0x1000, "90 06 c3");
    const FunctionFlow flow = flow_of(elf, 0x1000);
    CHECK_FALSE(flow.complete);
    CHECK(flow.code.empty());
  }
}

TEST_CASE("Flow: padding behind a function") {
  FlowFile elf;
  elf.code(0x1000, "90 c3");
  const auto pad = [&](std::string_view code) {
    const Bytes bytes = hex(code);
    std::ranges::copy(bytes, elf.text_bytes.begin() + 2);
  };
  SECTION("nops and int3 up to other bytes") {
    pad("662e0f1f840000000000 cc cc 90");
    const FunctionFlow flow = flow_of(elf, 0x1000);
    CHECK(flow.padding.value == 13);
    CHECK(flow.code.size() == 6);
  }
  SECTION("up to the next function") {
    pad("90 90 90 90");
    elf.code(0x1004, "c3");
    CHECK(flow_of(elf, 0x1000).padding.value == 2);
  }
  SECTION("up to a symbol") {
    pad("90 90 90 90");
    elf.label("patchable", 0x1003);
    CHECK(flow_of(elf, 0x1000).padding.value == 1);
  }
  SECTION("not into a nop that a symbol cuts") {
    pad("0f1f4000");
    elf.label("inside", 0x1004);
    CHECK(flow_of(elf, 0x1000).padding.value == 0);
  }
}

TEST_CASE("Flow: what is refused") {
  const auto refused = [](const ElfBuilder::Kind& kind) {
    CodeFile elf(kind);
    const auto file = ElfFile::open(memory_source(elf.builder.build()));
    REQUIRE(file);
    const auto reader = FlowReader::open(*file, {});
    return !reader && reader.error().code == ErrorCode::refused;
  };
  CHECK(refused({.type = ET_REL}));
  CHECK(refused({.is64 = false}));  // x32
  CHECK(refused({.machine = EM_AARCH64}));
  CHECK(refused({.section_headers = false}));
  CHECK_FALSE(refused({}));
}

TEST_CASE("Flow: a site in no function, or not among those asked") {
  FlowFile elf;
  elf.code(0x1000, "90 c3");
  const auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  const std::vector<VirtAddr> sites{VirtAddr{0x1000}, VirtAddr{0x1800}};
  const auto reader = FlowReader::open(*file, sites);
  REQUIRE(reader);
  CHECK(reader->function_of(VirtAddr{0x1000}));
  CHECK_FALSE(reader->function_of(VirtAddr{0x1001}));
  CHECK_FALSE(reader->function_of(VirtAddr{0x1800}));
  CHECK(reader->functions().size() == 1);
}

TEST_CASE("Flow: a site in the cold part of a function") {
  FlowFile elf;
  const auto returns = [&] { std::fill_n(elf.text_bytes.begin() + 0x102, 5, std::byte{0xc3}); };
  // The function: test %edi,%edi; js 1100; jmp *%rsi, a tail call of its argument.
  elf.code(0x1000, "85ff 0f88f8000000 ffe6");
  elf.code(0x1100, "90 90 e901ffffff");  // nop; nop; jmp 1008
  SECTION("whose function has a symbol: an argument is a whole pointer") {
    elf.builder.symbol({"f.cold", 0x1100, 7, STT_FUNC, STB_LOCAL, elf.text});
    elf.function("f", 0x1000, 10);
    const FunctionFlow flow = flow_of(elf, 0x1101);
    CHECK(flow.function.name == "f.cold");
    // It may have been changed before control came back from the cold part.
    CHECK_FALSE(flow.complete);
    CHECK(flow.target(VirtAddr{0x1100}) == (kTargetEntry | kTargetForeign | kTargetSymbol));
  }
  SECTION("that does not come back to the jump") {
    returns();
    elf.builder.symbol({"f.cold", 0x1100, 7, STT_FUNC, STB_LOCAL, elf.text});
    elf.function("f", 0x1000, 10);
    CHECK(flow_of(elf, 0x1101).complete);
  }
  SECTION("without symbols") {
    returns();
    CHECK_FALSE(flow_of(elf, 0x1101).complete);
  }
}
