// Rules about counters. What is right was measured with the kernel's uprobe events (a reference
// counter at the same place of a real program), not taken from the code.
#include "audit_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kFirstCounter = AuditFile::kCounters;

NewProbe probe(std::uint64_t semaphore, const std::string& name = "one",
               std::uint64_t location = 0x1000) {
  return {.location = location, .semaphore = semaphore, .provider = "p", .name = name};
}

NewSymbol counter_symbol(std::uint64_t value, std::uint32_t shndx = 3) {
  return {.name = "p_one_semaphore", .value = value, .size = 2, .type = STT_OBJECT, .shndx = shndx};
}

}  // namespace

TEST_CASE("a counter in .probes is nobody's problem", "[audit]") {
  AuditFile file;
  file.kind.is64 = GENERATE(true, false);
  if (!file.kind.is64) file.kind.machine = EM_386;
  file.probes = {probe(kFirstCounter), probe(kFirstCounter + 2, "two", 0x1001)};
  file.symbols = {counter_symbol(kFirstCounter)};
  CHECK(file.found() == Lines{});
  const auto facts = file.semaphores();
  CHECK(facts[0].in_probes);
  CHECK(facts[0].bcc_finds_it);
  CHECK(facts[0].offset);
  CHECK(facts[0].symbol == VirtAddr{kFirstCounter});
  CHECK_FALSE(facts[1].symbol);
}

TEST_CASE("a counter outside .probes is found by libbpf, not by bcc", "[audit]") {
  AuditFile file;
  file.probes = {probe(kFirstCounter)};
  file.counters = ".mine";
  CHECK(file.found() == Lines{"error semaphore-section p:one"});
  CHECK(file.semaphores()[0].offset);
  // In another section of the same segment as .probes bcc's arithmetic is right all the same.
  file.counters = ".probes";
  file.more_segments = {};
  file.probes = {probe(kFirstCounter + 0x10)};
  CHECK(file.found() != Lines{});  // behind .probes, and in no section
  file.probes = {probe(AuditFile::kData)};
  CHECK(file.found() == Lines{});
}

TEST_CASE("many counters with one cause are one finding about the file", "[audit]") {
  AuditFile file;
  file.counters = ".mine";
  file.probes = {probe(kFirstCounter), probe(kFirstCounter + 2, "two", 0x1001),
                 probe(kFirstCounter + 4, "three", 0x1002)};
  CHECK(file.found() == Lines{"error semaphore-section"});
  const auto findings = AuditFile::findings(file.build());
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].evidence.at(1) == "3 counters: p:one, p:two, p:three");
}

TEST_CASE("counters that the kernel cannot raise", "[audit]") {
  AuditFile file;
  file.probes = {probe(kFirstCounter)};
  SECTION("in .bss") {
    file.counters_nobits = true;
    CHECK(file.found() == Lines{"error semaphore-nobits p:one"});
  }
  SECTION("in a read-only segment") {
    file.counters_flags = PF_R;
    CHECK(file.found() == Lines{"error semaphore-readonly p:one"});
  }
  SECTION("in an executable segment") {
    file.counters_flags = PF_R | PF_W | PF_X;
    CHECK(file.found() == Lines{"error semaphore-executable p:one"});
  }
  SECTION("at an odd address") {
    file.probes = {probe(kFirstCounter + 1)};
    CHECK(file.found() == Lines{"error semaphore-odd p:one"});
  }
  SECTION("one byte short of its section's end") {
    file.probes = {probe(kFirstCounter + 0xe)};
    CHECK(file.found() == Lines{});
    file.counter_bytes = Bytes(0xf);
    CHECK(file.found() == Lines{"error semaphore-nobits p:one"});
  }
}

TEST_CASE("a counter that points nowhere", "[audit]") {
  AuditFile file;
  // What gold and lld 14 leave of a dropped .probes: 0 plus the offset in it.
  const std::uint64_t address = GENERATE(2U, 4U, 0x999000U);
  file.probes = {probe(address)};
  CHECK(file.found() == Lines{"error semaphore-dangling p:one"});
  // The same where the file's headers are loaded.
  if (address < 0x1000) {
    file.more_segments = {{.flags = PF_R, .filesz = 0x40, .memsz = 0x40}};
    CHECK(file.found() == Lines{"error semaphore-dangling p:one"});
  }
  // A dead probe's counter is dead with it.
  file.probes = {probe(address, "one", 0x10)};
  CHECK(file.found() == Lines{"error dangling p:one"});
}

TEST_CASE("a field that is 0 although the probe has a counter", "[audit]") {
  AuditFile file;
  file.probes = {probe(0)};
  CHECK(file.found() == Lines{});
  SECTION("in this file") {
    file.symbols = {counter_symbol(kFirstCounter)};
    CHECK(file.found() == Lines{"error semaphore-undefined p:one"});
  }
  SECTION("in another module") {
    file.symbols = {counter_symbol(0, SHN_UNDEF)};
    CHECK(file.found() == Lines{"error semaphore-undefined p:one"});
    CHECK(file.semaphores()[0].symbol_undefined);
  }
  SECTION("two that differ") {
    file.symbols = {counter_symbol(kFirstCounter), counter_symbol(kFirstCounter + 2)};
    CHECK(file.found() == Lines{"error semaphore-undefined p:one"});
    CHECK(file.semaphores()[0].symbol_ambiguous);
    CHECK_FALSE(file.semaphores()[0].symbol);
  }
  SECTION("another probe's") {
    file.symbols = {{.name = "p_two_semaphore",
                     .value = kFirstCounter,
                     .size = 2,
                     .type = STT_OBJECT,
                     .shndx = 3}};
    CHECK(file.found() == Lines{});
  }
}

TEST_CASE("a copy relocation takes the counter away", "[audit]") {
  const auto [machine, copy] = GENERATE(std::pair<std::uint16_t, std::uint32_t>{EM_X86_64, 5},
                                        std::pair<std::uint16_t, std::uint32_t>{EM_AARCH64, 1024},
                                        std::pair<std::uint16_t, std::uint32_t>{EM_RISCV, 4});
  const bool there = GENERATE(true, false);
  ElfBuilder elf({.machine = machine});
  const Bytes nop = machine == EM_X86_64    ? bytes_of({0x90, 0xc3})
                    : machine == EM_AARCH64 ? bytes_of({0x1f, 0x20, 0x03, 0xd5})
                                            : bytes_of({0x13, 0, 0, 0});
  const auto text = elf.section(
      {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = 0x1000, .bytes = nop});
  const auto base =
      elf.section({.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = 0x2000, .bytes = Bytes(1)});
  const auto rela = elf.section({.name = ".rela.dyn",
                                 .type = SHT_RELA,
                                 .flags = SHF_ALLOC,
                                 .addr = 0x2100,
                                 .bytes = elf.relocation(there ? 0x3000 : 0x3008, 0, copy, 0),
                                 .link = ElfBuilder::kSymtab,
                                 .entsize = 24});
  const auto data = elf.section(
      {.name = ".probes", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x3000, .bytes = Bytes(16)});
  const auto id = elf.section({.name = ".note.gnu.build-id",
                               .type = SHT_NOTE,
                               .align = 4,
                               .bytes = elf.note(std::string_view("GNU", 4), 3, Bytes(20))});
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt({.location = 0x1000,
                                     .base = 0x2000,
                                     .semaphore = 0x3000,
                                     .provider = "p",
                                     .name = "one"})});
  elf.load(PF_R | PF_X, text);
  elf.load(PF_R, base, rela);
  elf.load(PF_R | PF_W, data);
  elf.load(PF_R, id, 0, PT_NOTE);
  elf.symbol({.name = "x", .value = 0x1000, .shndx = text});
  CHECK(AuditFile::found_in(elf.build()) ==
        (there ? Lines{"error semaphore-copied p:one"} : Lines{}));
}

TEST_CASE("a library's counter in a program that has no probes", "[audit]") {
  const bool copied = GENERATE(true, false);
  constexpr std::uint32_t kCopy = 5;  // R_X86_64_COPY
  ElfBuilder elf;
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  const auto rela = elf.section({.name = ".rela.dyn",
                                 .type = SHT_RELA,
                                 .flags = SHF_ALLOC,
                                 .addr = 0x2100,
                                 .bytes = elf.relocation(copied ? 0x3000 : 0x3008, 0, kCopy, 0),
                                 .link = ElfBuilder::kSymtab,
                                 .entsize = 24});
  const auto data = elf.section(
      {.name = ".data", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x3000, .bytes = Bytes(16)});
  elf.section({.name = ".comment", .bytes = Bytes(4)});
  elf.load(PF_R | PF_X, text);
  elf.load(PF_R, rela);
  elf.load(PF_R | PF_W, data);
  elf.symbol({.name = "p_one_semaphore",
              .value = 0x3000,
              .size = 2,
              .type = STT_OBJECT,
              .shndx = static_cast<std::uint16_t>(data)});
  CHECK(AuditFile::found_in(elf.build()) == (copied ? Lines{} : Lines{"warning notes-stripped"}));
}

// Measured on Linux 6.18 with programs of lld 19 and mold 1.10 whose segments were such: the
// counter stays 0 in a program that is started while it is traced; with one RELRO segment, it rises
// in one that runs already.
TEST_CASE("a page of the file that is mapped twice", "[audit]") {
  AuditFile file;
  file.probes = {probe(kFirstCounter)};
  const std::uint64_t offset = 0x3000;  // of .probes in this file
  REQUIRE(file.semaphores()[0].offset == FileOffset{offset});
  NewSegment other{.flags = PF_R | PF_W, .offset = offset - 0x100, .vaddr = 0x8000f00};
  other.filesz = other.memsz = 0x80;
  SECTION("by a later segment: harmless") {
    other.offset = offset;
    file.more_segments = {other};
    CHECK(file.found() == Lines{});
  }
  SECTION("by an earlier one") {
    // Segments 2 and 3 are the counters' and .data's: put the other before both.
    Bytes bytes = file.build();
    ElfBuilder layout;
    other.offset = offset + 0x20;
    other.vaddr = 0x2800020;
    const auto put_segment = [&](std::uint32_t flags) {
      layout.poke(bytes, layout.phdr(1, "p_flags"), flags);
      layout.poke(bytes, layout.phdr(1, "p_offset"), other.offset);
      layout.poke(bytes, layout.phdr(1, "p_vaddr"), other.vaddr);
      layout.poke(bytes, layout.phdr(1, "p_filesz"), other.filesz);
      layout.poke(bytes, layout.phdr(1, "p_memsz"), other.memsz);
    };
    put_segment(PF_R | PF_W);
    CHECK(AuditFile::found_in(bytes) == Lines{"error semaphore-relro-page p:one"});
    put_segment(PF_R);  // never writable: the kernel passes it over
    CHECK(AuditFile::found_in(bytes) == Lines{});
    other.offset = offset - 0x1000;  // another page
    put_segment(PF_R | PF_W);
    CHECK(AuditFile::found_in(bytes) == Lines{});
  }
  SECTION("by its own segment in RELRO") {
    NewSegment relro{.type = PT_GNU_RELRO, .vaddr = kFirstCounter, .memsz = 0x1000};
    file.more_segments = {relro};
    CHECK(file.found() == Lines{"error semaphore-relro-page p:one"});
    // ld.so rounds the end down: a page that RELRO only begins stays writable.
    file.more_segments[0].memsz = 0x800;
    CHECK(file.found() == Lines{});
  }
}

TEST_CASE("counters that get into each other's way", "[audit]") {
  AuditFile file;
  SECTION("at one instruction") {
    file.probes = {probe(kFirstCounter), probe(kFirstCounter + 2, "two")};
    CHECK(file.found() ==
          Lines{"error semaphore-conflict p:two", "note alias p:one", "note alias p:two"});
    file.probes[1].semaphore = kFirstCounter;
    CHECK(file.found() == Lines{"note alias p:one", "note alias p:two"});
  }
  SECTION("of one name") {
    file.probes = {probe(kFirstCounter), probe(kFirstCounter + 2, "one", 0x1001)};
    CHECK(file.found() == Lines{"error semaphore-conflict p:one"});
    file.probes[1].semaphore = kFirstCounter;
    CHECK(file.found() == Lines{});
    // A probe of another provider is another probe.
    file.probes[1] = probe(kFirstCounter + 2, "one", 0x1001);
    file.probes[1].provider = "q";
    CHECK(file.found() == Lines{});
  }
}
