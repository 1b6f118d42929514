#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "libprobe/code/boundary.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000;

// The code as the whole of .text, and one function over it.
class Code {
 public:
  explicit Code(const Bytes& code, const ElfBuilder::Kind& kind = {})
      : relocatable_(kind.type == ET_REL) {
    ElfBuilder elf(kind);
    text_ = elf.section({.name = ".text",
                         .flags = SHF_ALLOC | SHF_EXECINSTR,
                         .addr = relocatable_ ? 0 : kText,
                         .bytes = code});
    if (!relocatable_) elf.load(PF_R | PF_X, text_);
    file_ = ElfFile::open(memory_source(elf.build()));
    REQUIRE(file_);
    function.start = VirtAddr{relocatable_ ? 0 : kText};
    function.size = Size{code.size()};
  }

  std::vector<BoundaryCheck> check(const std::vector<VirtAddr>& sites,
                                   Size* budget = nullptr) const {
    auto checks = check_boundaries(*file_, function, relocatable_ ? text_ : 0, sites, budget);
    REQUIRE(checks.size() == sites.size());
    return checks;
  }
  BoundaryCheck at(std::uint64_t address) const { return check({VirtAddr{address}}).front(); }

  // "Y", "n" or "?" for each byte of the function; "P" for a boundary that looks like padding.
  std::string map() const {
    std::vector<VirtAddr> sites;
    for (std::uint64_t i = 0; i < function.size.value; ++i)
      sites.push_back(VirtAddr{function.start.value + i});
    std::string map;
    for (const BoundaryCheck& check : check(sites)) {
      const char* letters = "Yn?";
      map += check.after_terminator ? 'P' : letters[static_cast<int>(check.result)];
    }
    return map;
  }

  Function function;

 private:
  bool relocatable_;
  std::uint32_t text_{};
  Result<ElfFile> file_ = fail(ErrorCode::internal, "", "");
};

// Assembled by GNU as 2.40:
//   f: test %edi,%edi; je 1f; mov $1,%eax; ret; .p2align 4
//   1: mov $2,%eax; dec %edi; jne 1b; ret; nop
const char* const kLoop =
    "85ff 740c b801000000 c3 660f1f440000"
    "b802000000 ffcf 75f7 c3 90";

}  // namespace

TEST_CASE("boundaries: x86-64: each byte of a function with padding in it and behind it") {
  const Code code(hex(kLoop));
  CHECK(code.map() == "YnYnYnnnnYPnnnnnYnnnnYnYnYP");
  CHECK(code.at(0x1005).detail == "inside mov at 0x1004 (5 bytes)");
  CHECK(code.at(0x1003).detail == "inside je at 0x1002 (2 bytes)");
  CHECK(code.at(0x1004).detail.empty());
}

TEST_CASE("what makes a nop after a jump look like a probe") {
  // jmp 3f; nop; jmp back: the cold probe of a loop. 0x1008 is aligned and a target.
  SECTION("a branch goes to it") {
    //   0: je 7f; 2: mov %eax,%eax; 4: jmp 8f; 6: nop; 7: nop; 8: ret
    CHECK(Code(hex("7405 89c0 eb02 90 90 c3")).map() == "YnYnYnYYY");
  }
  SECTION("no branch goes to it, one goes behind it") {
    //   0: je 8f; 2: mov; 4: jmp 8f; 6: nop; 7: nop; 8: ret
    CHECK(Code(hex("7406 89c0 eb02 90 90 c3")).map() == "YnYnYnPPY");
  }
  SECTION("a branch goes to the first nop, the second is reached through it") {
    CHECK(Code(hex("7404 89c0 eb02 90 90 c3")).map() == "YnYnYnYYY");
  }
  SECTION("nothing goes behind it: it leads somewhere that nothing else reaches") {
    //   0: mov; 2: mov; 4: ret; 5: mov; 7: nop; 8: ret
    CHECK(Code(hex("89c0 89c0 c3 90 90 90 c3")).map() == "YnYnYYYYY");
  }
  SECTION("a loop's head behind it is aligned") {
    //   0: mov; 2: nop (6 bytes); 8: dec %edi; a: jne 8b; c: ret
    const Code code(hex("89c0 660f1f440000 ffcf 75fc c3"));
    CHECK(code.at(0x1002).before_aligned_target);
    CHECK_FALSE(code.at(0x1000).before_aligned_target);
    CHECK_FALSE(Code(hex("89c0 0f1f440000 ffcf 75fc c3")).at(0x1002).before_aligned_target);
  }
  SECTION("the target behind it is not aligned") {
    //   0: je 7f; 2: mov; 4: jmp 7f; 6: nop; 7: ret
    CHECK(Code(hex("7405 89c0 eb01 90 c3")).map() == "YnYnYnYY");
  }
  SECTION("it follows an instruction that goes on") {
    //   0: je 8f; 2: call; 7: nop; 8: ret
    CHECK(Code(hex("7406 e8f9000000 90 c3")).map() == "YnYnnnnYY");
  }
  SECTION("the function starts with it") { CHECK(Code(hex("90 c3")).map() == "YY"); }
  SECTION("behind ud2, at the end") { CHECK(Code(hex("0f0b 90 90")).map() == "YnPP"); }
}

TEST_CASE("nothing looks like padding where control may come from elsewhere") {
  const Bytes padded = hex("7406 89c0 eb02 90 90 c3");
  REQUIRE(Code(padded).map() == "YnYnYnPPY");
  SECTION("an indirect jump") {
    CHECK(Code(padded + hex("ffe0")).map() == "Y?Y?Y?YYYY?");
    CHECK(Code(padded + hex("ffd0")).map() == "YnYnYnPPYY?");  // a call comes back
  }
  SECTION("a jump to other code: a cold part may jump back") {
    CHECK(Code(padded + hex("0f8500100000")).map() == "YnYnYnYYYY?????");
    CHECK(Code(padded + hex("e800100000")).map() == "YnYnYnPPYY????");
  }
  SECTION("landing pads") {
    Code code(padded);
    code.function.may_have_landing_pads = true;
    CHECK(code.map() == "YnYnYnYYY");
  }
}

TEST_CASE("a branch into an instruction: one of the two is not what it seems") {
  //   0: je 4f; 2: mov $0x90909090,%eax; 7: ret
  const Code code(hex("7402 b890909090 c3"));
  CHECK(code.map() == "????????");
  CHECK(code.at(0x1007).detail == "a branch goes to 0x1004, inside mov at 0x1002 (5 bytes)");
  // Hand-written code skips the lock prefix: je 1f; lock; 1: cmpxchg %ecx,(%rdx); ret
  CHECK(Code(hex("7401 f00fb10a c3")).map() == "YnYnnnY");
}

TEST_CASE("bytes that are no instruction: known before them, unknown behind") {
  //   0: mov; 2: nop; 3: 06 (push %es, not on x86-64); 4: nop
  const Code code(hex("89c0 90 06 90"));
  CHECK(code.map() == "Y?Y??");
  CHECK(code.at(0x1004).detail == "no instruction at 0x1003");
  CHECK(code.at(0x1001).detail == "no instruction at 0x1003");
}

TEST_CASE("what is inside another instruction only if nothing else stands there") {
  //   0: ret; 1: mov $1,%eax; 6: ret
  const Bytes behind = hex("c3 b801000000 c3");
  SECTION("behind a return data may stand") {
    CHECK(Code(behind).map() == "YY????Y");
    CHECK(Code(behind).at(0x1003).detail ==
          "inside mov at 0x1001 (5 bytes), but nothing branches there");
  }
  SECTION("a branch goes there") {
    //   0: je 3f; 2: ret; 3: mov; 8: ret
    CHECK(Code(hex("7401 c3 b801000000 c3")).map() == "YnYYnnnnY");
  }
  SECTION("a function whose end is a guess may be data further on") {
    Code code(hex("b801000000 c3"));
    CHECK(code.map() == "YnnnnY");
    code.function.size_guessed = true;
    CHECK(code.map() == "Y????Y");
  }
}

TEST_CASE("a function that ends inside its last instruction") {
  Code code(hex("90 b801000000"));
  code.function.size = Size{3};
  CHECK(code.map() == "Y??");
}

TEST_CASE("a function that goes on where the file has no bytes") {
  Code code(hex("90 89c0"));
  code.function.size = Size{0x100};
  const auto checks = code.check({VirtAddr{0x1000}, VirtAddr{0x1001}, VirtAddr{0x1050}});
  CHECK(checks[0].result == Boundary::yes);
  CHECK(checks[1].result == Boundary::yes);
  CHECK(checks[2].result == Boundary::unknown);
  CHECK(checks[2].detail == "the function goes on behind the bytes of its segment or section");
  code.function.start = VirtAddr{0x9000};
  CHECK(code.at(0x9000).result == Boundary::unknown);
  CHECK(code.at(0x9000).detail == "the file does not hold the function's bytes");
}

TEST_CASE("too much to decode") {
  SECTION("one function") {
    Code code(hex(kLoop));
    code.function.size = Size{kLongestDecodedFunction.value + 1};
    CHECK(code.at(0x1000).result == Boundary::unknown);
    CHECK(code.at(0x1000).detail == "the function is too long to decode (1048577 bytes)");
  }
  SECTION("all of them") {
    const Code code(hex(kLoop));
    Size budget{60};
    CHECK(code.check({VirtAddr{0x1000}}, &budget)[0].result == Boundary::yes);
    CHECK(budget.value == 60 - 27);
    CHECK(code.check({VirtAddr{0x1000}}, &budget)[0].result == Boundary::yes);
    CHECK(budget.value == 60 - 2 * 27);
    const auto refused = code.check({VirtAddr{0x1000}}, &budget)[0];
    CHECK(refused.result == Boundary::unknown);
    CHECK(refused.detail == "the file's functions overlap: too much to decode");
    CHECK(budget.value == 60 - 2 * 27);
  }
}

TEST_CASE("ET_REL: boundaries, but no proof, for branches are not relocated") {
  //   call f, as an assembler leaves it: the field is 0 (x86-64) or -4 (i386)
  const bool i386 = GENERATE(false, true);
  const Bytes call = i386 ? hex("e8fcffffff") : hex("e800000000");
  const ElfBuilder::Kind kind{.is64 = !i386, .type = ET_REL, .machine = i386 ? EM_386 : EM_X86_64};
  const Code code(hex("90") + call + hex("90 c3 90"), kind);
  CHECK(code.map() == "YY????YYY");
  CHECK(code.at(3).detail == "inside call at 0x1 (5 bytes), but its branches are not relocated");
}

TEST_CASE("boundaries: AArch64 and ARM: the address tells") {
  const auto machine = GENERATE(EM_AARCH64, EM_ARM);
  const ElfBuilder::Kind kind{.is64 = machine == EM_AARCH64, .machine = machine};
  const Bytes nop = machine == EM_AARCH64 ? hex("1f2003d5") : hex("00f020e3");
  Code code(nop + nop + hex("00000000"), kind);
  code.function.names_here = 1;
  CHECK(code.map() == "YnnnYnnnYnnn");
  CHECK(code.at(0x1006).detail == "inside the instruction at 0x1004 (4 bytes)");
  code.function.size = Size{std::uint64_t{1} << 30};
  CHECK(code.at(0x10000000).result == Boundary::yes);
  CHECK(code.at(0x10000002).result == Boundary::no);
}

TEST_CASE("boundaries: AArch64: padding") {
  const ElfBuilder::Kind kind{.machine = EM_AARCH64};
  //   0: cbz x0, 10f; 4: ret; 8: nop; c: nop; 10: ret
  CHECK(Code(hex("b4000080 d65f03c0 d503201f d503201f d65f03c0", 4), kind).map() ==
        "YnnnYnnnPnnnPnnnYnnn");
  //   the same with cbz x0, 8f
  CHECK(Code(hex("b4000040 d65f03c0 d503201f d503201f d65f03c0", 4), kind).map() ==
        "YnnnYnnnYnnnYnnnYnnn");
}

TEST_CASE("boundaries: Thumb: two and four bytes, and no claim about padding") {
  Code code(hex("bf00 f3af8000 4770 bf00", 2), {.is64 = false, .machine = EM_ARM});
  code.function.thumb = true;
  CHECK(code.map() == "YnYnnnYnYn");
}

TEST_CASE("ARM: a function that only an FDE knows may be Thumb code") {
  Code code(hex("bf00 4770", 2), {.is64 = false, .machine = EM_ARM});
  CHECK(code.at(0x1002).result == Boundary::unknown);
  CHECK(code.at(0x1002).detail == "no symbol tells whether the function is Thumb code");
}

TEST_CASE("boundaries: PowerPC: a prefixed instruction has eight bytes") {
  const ElfBuilder::Kind kind{.machine = EM_PPC64};
  CHECK(Code(hex("00000060 00000006 01006038 2000804e"), kind).map() == "YnnnYnnnnnnnYnnn");
}

TEST_CASE("boundaries: s390x: two, four and six bytes") {
  const ElfBuilder::Kind kind{.order = std::endian::big, .machine = EM_S390};
  const Code code(hex("47000000 c0e500000100 07fe"), kind);
  CHECK(code.map() == "YnnnYnnnnnYn");
  CHECK(code.at(0x1006).detail == "inside brasl at 0x1004 (6 bytes)");
}

TEST_CASE("boundaries: RISC-V: two and four bytes") {
  const ElfBuilder::Kind kind{.machine = EM_RISCV};
  //   c.nop; nop; beq a0,a1,.-6; ret
  CHECK(Code(hex("0100 13000000 e30db5fe 8280"), kind).map() == "YnYnnnYnnnYn");
  //   a branch into the middle of nop
  CHECK(Code(hex("0100 13000000 e30fb5fe 8280"), kind).map() == "????????????");
}

TEST_CASE("a machine that is not known") {
  const Code code(hex("00000000"), {.machine = 8});  // EM_MIPS
  CHECK(code.at(0x1000).result == Boundary::unknown);
  CHECK(code.at(0x1000).detail == "this machine's instructions are not known");
}
