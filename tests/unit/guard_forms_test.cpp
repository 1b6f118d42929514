// The instructions that look at a site: bytes as GNU as writes them.

#include "catch.hpp"
#include "code_bytes.hpp"
#include "libprobe/code/decoder.hpp"
#include "libprobe/rewrite/guards/check_forms.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

CodeInstruction decoded(const Bytes& bytes, VirtAddr at = {}) {
  ElfHeader header;
  header.is64 = true;
  header.machine = EM_X86_64;
  const auto code = Decoder::open(header, false)->decode_operands(bytes, at);
  REQUIRE(code);
  REQUIRE(code->size.value == bytes.size());
  return *code;
}

struct Case {
  const char* check;
  CheckForm form;
  const char* site;  // what looks at a site 0x1000 behind its own end, or at the same register
};

}  // namespace

TEST_CASE("guard forms: what looks at the site does so with the same operand") {
  const std::vector<Case> cases{
      {"66 83 3d f8 1f 00 00 00", CheckForm::compare, "66 80 3d 00 10 00 00 90"},
      {"66 41 83 3c 24 00", CheckForm::compare, "66 41 80 3c 24 90"},
      {"f6 05 f9 1f 00 00 01", CheckForm::bit, "80 3d 00 10 00 00 90"},
      {"f6 03 01", CheckForm::bit, "80 3b 90"},
      {"0f b7 05 f8 1f 00 00", CheckForm::load, "80 3d 00 10 00 00 90 0f 95 c0 0f b6 c0"},
      {"44 0f b7 25 f8 1f 00 00", CheckForm::load,
       "40 80 3d 00 10 00 00 90 41 0f 95 c4 45 0f b6 e4"},
      {"48 0f b7 0d f8 1f 00 00", CheckForm::load, "48 80 3d 00 10 00 00 90 0f 95 c1 0f b6 c9"},
      {"66 8b 15 f8 1f 00 00", CheckForm::load, "66 80 3d 00 10 00 00 90 0f 95 c2 66 0f b6 d2"},
      {"66 44 8b 0d f8 1f 00 00", CheckForm::load,
       "66 40 80 3d 00 10 00 00 90 41 0f 95 c1 66 45 0f b6 c9"},
      {"0f b6 05 f8 1f 00 00", CheckForm::load, "80 3d 00 10 00 00 90 0f 95 c0 0f b6 c0"},
      {"0f b7 00", CheckForm::load, "80 38 90 0f 95 c0 0f b6 c0"},
      {"0f b7 30", CheckForm::load, "80 38 90 40 0f 95 c6 40 0f b6 f6"},
      {"45 0f b7 6d 00", CheckForm::load, "41 80 7d 00 90 41 0f 95 c5 45 0f b6 ed"},
      {"41 0f b7 04 24", CheckForm::load, "41 80 3c 24 90 0f 95 c0 0f b6 c0"},
      {"66 0b 03", CheckForm::merge, "66 80 3b 90 74 04 66 83 c8 01 66 85 c0"},
      {"66 45 0b 4d 00", CheckForm::merge, "66 41 80 7d 00 90 74 05 66 41 83 c9 01 66 45 85 c9"},
      {"66 44 0b 0d f8 1f 00 00", CheckForm::merge,
       "66 40 80 3d 00 10 00 00 90 74 05 66 41 83 c9 01 66 45 85 c9"},
      {"66 41 83 7d 00 01", CheckForm::below, "66 41 80 7d 00 90 f9 74 01 f8"},
      {"66 83 3d f8 1f 00 00 01", CheckForm::below, "66 80 3d 00 10 00 00 90 f9 74 01 f8"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.check);
    const Bytes check = hex(c.check);
    const Bytes expected = hex(c.site);
    const CodeInstruction code = decoded(check, VirtAddr{0x5000});
    REQUIRE(check_form(code) == c.form);
    SiteByte site{0x90, {}};
    constexpr VirtAddr at{0x4000};
    if (code.rip_target) {
      // The operand's instruction comes first.
      const CodeInstruction first = [&] {
        ElfHeader header;
        header.is64 = true;
        header.machine = EM_X86_64;
        return *Decoder::open(header, false)->decode_operands(expected, at);
      }();
      site.site = VirtAddr{first.end().value + 0x1000};
    }
    const auto made = look_at_site(code, check, site, at);
    REQUIRE(made);
    CHECK(*made == expected);
  }
}

TEST_CASE("guard forms: the byte of the five-byte nop") {
  const Bytes check = hex("66 83 38 00");
  CHECK(look_at_site(decoded(check), check, {0x0f, {}}, VirtAddr{0}).value() == hex("66 80 38 0f"));
  const Bytes load = hex("0f b7 00");
  CHECK(look_at_site(decoded(load), load, {0x0f, {}}, VirtAddr{0}).value() ==
        hex("80 38 0f 0f 95 c0 0f b6 c0"));
}

TEST_CASE("guard forms: where flags are read behind the check") {
  const auto looks = [](const char* check, std::vector<VirtAddr> others = {}) {
    const Bytes bytes = hex(check);
    const SiteByte site{0x90, {}, true, std::move(others)};
    return look_at_site(decoded(bytes), bytes, site, VirtAddr{0x4000});
  };
  // movzbl (%rax),%eax; xchg %rcx,%rax; lea -0x90(%rcx),%ecx; jrcxz; mov $1,%ecx; xchg %rcx,%rax
  CHECK(looks("0f b7 00").value() ==
        hex("0f b6 00 48 87 c8 8d 89 70 ff ff ff e3 05 b9 01 00 00 00 48 87 c8"));
  CHECK(looks("44 0f b7 20").value() ==
        hex("44 0f b6 20 49 87 cc 8d 89 70 ff ff ff e3 05 b9 01 00 00 00 49 87 cc"));
  CHECK(looks("0f b7 08").value() == hex("0f b6 08 8d 89 70 ff ff ff e3 05 b9 01 00 00 00"));
  // cmpb; jne 1f; cmpq $-1,%rsp; jmp 2f; 1: cmpb %al,%al; 2:
  CHECK(looks("66 83 38 01").value() == hex("66 80 38 90 75 06 48 83 fc ff eb 02 38 c0"));
  // The upper bits of the register stay, or there are several sites.
  CHECK_FALSE(looks("66 8b 00"));
  CHECK_FALSE(looks("0f b7 00", {VirtAddr{0x5000}}));
}

TEST_CASE("guard forms: several sites") {
  const Bytes check = hex("66 83 38 00");
  const SiteByte site{0x90, {}, false, {VirtAddr{0x5000}, VirtAddr{0x6000}}};
  CHECK(look_at_site(decoded(check), check, site, VirtAddr{0x4000}).value() ==
        hex("66 80 38 90 75 10 80 3d f3 0f 00 00 90 75 07 80 3d ea 1f 00 00 90"));
}

TEST_CASE("guard forms: absolute operands") {
  // cmpw $0,0x404010; movzwl 0x404010,%eax
  const Bytes compare = hex("66 83 3c 25 10 40 40 00 00");
  const SiteByte site{0x90, VirtAddr{0x401136}};
  CHECK(look_at_site(decoded(compare), compare, site, VirtAddr{0}).value() ==
        hex("66 80 3c 25 36 11 40 00 90"));
  const Bytes load = hex("0f b7 04 25 10 40 40 00");
  CHECK(look_at_site(decoded(load), load, site, VirtAddr{0}).value() ==
        hex("80 3c 25 36 11 40 00 90 0f 95 c0 0f b6 c0"));
  // It is sign-extended, and is no address above 2 GiB.
  CHECK_FALSE(look_at_site(decoded(load), load, {0x90, VirtAddr{0x80000000}}, VirtAddr{0}));
}

TEST_CASE("guard forms: other instructions are none") {
  for (const char* other : {
           "83 3d 00 10 00 00 00",        // cmpl $0,m32
           "80 3d 00 10 00 00 00",        // cmpb $0,m8
           "66 83 3d 00 10 00 00 02",     // cmpw $2,m16
           "66 83 0d 00 10 00 00 00",     // orw $0,m16
           "66 81 3d 00 10 00 00 00 00",  // cmpw $0,m16 with a long immediate
           "0f bf 05 00 10 00 00",        // movswl m16,%eax
           "66 0f b6 05 00 10 00 00",     // movzbw m8,%ax
           "f6 05 00 10 00 00 02",        // testb $2,m8
           "66 39 05 00 10 00 00",        // cmpw %ax,m16
           "66 3b 05 00 10 00 00",        // cmpw m16,%ax
           "66 89 05 00 10 00 00",        // movw %ax,m16
           "66 ff 05 00 10 00 00",        // incw m16
           "66 83 f8 00",                 // cmpw $0,%ax
           "0f b7 c0",                    // movzwl %ax,%eax
           "64 66 83 3d 00 10 00 00 00",  // cmpw $0,%fs:m16
           "f0 66 83 0d 00 10 00 00 01",  // lock orw
           "8b 05 00 10 00 00",           // movl
       }) {
    CAPTURE(other);
    CHECK_FALSE(check_form(decoded(hex(other))));
  }
}

TEST_CASE("guard forms: addresses in registers") {
  struct Origin {
    const char* before;
    unsigned reg;
    const char* after;  // at 0x4000, for 0x401136
  };
  const std::vector<Origin> origins{
      {"48 8d 05 00 10 00 00", 0, "48 8d 05 2f d1 3f 00"},  // lea
      {"4c 8d 2d 00 10 00 00", 13, "4c 8d 2d 2f d1 3f 00"},
      {"48 8b 1d 00 10 00 00", 3, "48 8d 1d 2f d1 3f 00"},  // mov slot(%rip): becomes lea
      {"b8 10 40 40 00", 0, "b8 36 11 40 00"},              // mov $imm32
      {"41 bd 10 40 40 00", 13, "41 bd 36 11 40 00"},
      {"48 c7 c1 10 40 40 00", 1, "48 c7 c1 36 11 40 00"},
      {"49 be 10 40 40 00 00 00 00 00", 14, "49 be 36 11 40 00 00 00 00 00"},  // movabs
  };
  for (const Origin& o : origins) {
    CAPTURE(o.before);
    const Bytes before = hex(o.before);
    const CodeInstruction code = decoded(before);
    REQUIRE(address_register(code) == o.reg);
    const auto after = with_address(code, before, VirtAddr{0x4000}, VirtAddr{0x401136});
    REQUIRE(after);
    CHECK(*after == hex(o.after));
  }
  for (const char* other :
       {"48 03 05 00 10 00 00", "8d 05 00 10 00 00", "8b 05 00 10 00 00", "48 8d 04 25 00 10 00 00",
        "68 10 40 40 00", "48 3d 10 40 40 00", "48 81 ee 10 40 40 00", "66 b8 10 40"}) {
    CAPTURE(other);
    CHECK_FALSE(address_register(decoded(hex(other))));
  }
}
