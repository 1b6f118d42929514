// binutils' readelf -n as oracle: the codec reads from generated files what readelf reads. Files
// of every class, byte order and machine, linked and with relocations to apply.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct Target {
  bool is64;
  std::endian order;
  std::uint16_t machine;
  std::uint32_t type;  // of an absolute word
  bool rela;
};

const std::vector<Target> kTargets{
    {true, std::endian::little, EM_X86_64, 1, true},
    {false, std::endian::little, EM_X86_64, 10, true},
    {false, std::endian::little, EM_386, 1, false},
    {true, std::endian::little, EM_AARCH64, 257, true},
    {false, std::endian::little, EM_ARM, 2, false},
    {true, std::endian::little, EM_PPC64, 38, true},
    {true, std::endian::big, EM_PPC64, 38, true},
    {true, std::endian::big, EM_S390, 22, true},
    {false, std::endian::big, EM_S390, 4, true},
    {true, std::endian::little, EM_RISCV, 2, true},
};

bool have_readelf() { return std::system("readelf --version >/dev/null 2>&1") == 0; }

// The lines of readelf -n that belong to stapsdt notes, and "exit N" where N is not 0.
std::string readelf(const Bytes& file) {
  char path[] = "/tmp/reprobe-notes-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  std::ofstream(path, std::ios::binary)
      .write(as_text(file).data(), static_cast<std::streamsize>(file.size()));
  const std::string command = std::string("LC_ALL=C readelf -n ") + path + " 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string_view view(line);
    for (const std::string_view start :
         {"    Provider:", "    Name:", "    Location:", "    Arguments:"}) {
      if (view.starts_with(start)) text += line;
    }
  }
  const int status = pclose(pipe);
  close(fd);
  std::remove(path);
  return text + (status == 0 ? "" : "exit " + std::to_string(WEXITSTATUS(status)));
}

// The same lines from our reading.
std::string ours(const NoteScan& scan, bool is64) {
  std::string text;
  char line[200];
  for (const Note& note : scan.notes) {
    const int width = is64 ? 16 : 8;
    std::snprintf(line, sizeof line,
                  "    Location: 0x%0*llx, Base: 0x%0*llx, Semaphore: 0x%0*llx\n", width,
                  static_cast<unsigned long long>(note.location.value), width,
                  static_cast<unsigned long long>(note.base.value), width,
                  static_cast<unsigned long long>(note.semaphore.value));
    text += "    Provider: " + note.provider + "\n    Name: " + note.name + "\n" + line +
            "    Arguments: " + note.arguments + "\n";
  }
  return text;
}

NoteScan scan(const std::shared_ptr<const ByteSource>& source) {
  const auto elf = ElfFile::open(source);
  REQUIRE(elf);
  return scan_notes(*elf);
}

const std::vector<NewProbe> kProbes{
    {.location = 0x401136,
     .base = 0x402010,
     .provider = "prov",
     .name = "a",
     .arguments = "8@%rax"},
    {.location = 0x10, .base = 0, .semaphore = 0x4030, .provider = "p", .name = "bb"},
    {.location = 0xffffffff,
     .base = 1,
     .semaphore = 2,
     .provider = "prov",
     .name = "ccc",
     .arguments = "-4@[sp, 8] 8f@24(%rdi) -4@$-5"},
    {.location = 0x20,
     .base = 3,
     .provider = "a_longer_provider",
     .name = "dddd",
     .arguments = "1@%al"},
};

}  // namespace

TEST_CASE("readelf agrees on linked files") {
  if (!have_readelf()) {
    WARN("skipped: there is no readelf");
    return;
  }
  const Target target = GENERATE(from_range(kTargets));
  const std::size_t align = GENERATE(4U, 8U);
  CAPTURE(target.machine, target.is64, target.order == std::endian::big, align);
  ElfBuilder elf({.is64 = target.is64, .order = target.order, .machine = target.machine});
  Bytes notes;
  for (const NewProbe& probe : kProbes) {
    const Bytes note = elf.stapsdt(probe, align);
    notes.insert(notes.end(), note.begin(), note.end());
  }
  elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = align, .bytes = notes});
  const Bytes file = elf.build();
  const auto source = memory_source(file);
  const NoteScan found = scan(source);
  CHECK(found.notes.size() == kProbes.size());
  CHECK(ours(found, target.is64) == readelf(file));
}

TEST_CASE("readelf agrees on objects") {
  if (!have_readelf()) {
    WARN("skipped: there is no readelf");
    return;
  }
  const Target target = GENERATE(from_range(kTargets));
  CAPTURE(target.machine, target.is64, target.order == std::endian::big);
  ElfBuilder elf(
      {.is64 = target.is64, .order = target.order, .type = ET_REL, .machine = target.machine});
  const auto text =
      elf.section({.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = Bytes(256)});
  const auto probes =
      elf.section({.name = ".probes", .flags = SHF_ALLOC | SHF_WRITE, .bytes = Bytes(64)});
  const std::vector<std::uint32_t> symbols{
      elf.symbol({.type = STT_SECTION, .binding = STB_LOCAL, .shndx = text}),
      elf.symbol({.name = "f", .value = 0x40, .type = STT_FUNC, .shndx = text}),
      elf.symbol({.name = "p_semaphore", .value = 6, .type = STT_OBJECT, .shndx = probes})};
  Bytes notes, table;
  for (std::size_t i = 0; i < 6; ++i) {
    const std::size_t start = notes.size();
    const Bytes note =
        elf.stapsdt({.provider = "p", .name = std::string(i + 1, 'n'), .arguments = "8@x"});
    notes.insert(notes.end(), note.begin(), note.end());
    for (const std::size_t field : {0U, 2U}) {
      const std::size_t at = start + 20 + field * elf.word();
      const auto addend = static_cast<std::int64_t>(i * 2);
      if (!target.rela) put(notes, {at, elf.word()}, target.order, i * 2);
      const Bytes entry = elf.relocation(at, field == 2 ? symbols[2] : symbols[i % 2], target.type,
                                         target.rela ? std::optional(addend) : std::nullopt);
      table.insert(table.end(), entry.begin(), entry.end());
    }
  }
  const auto section =
      elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = notes});
  elf.section({.name = ".rela",
               .type = target.rela ? SHT_RELA : SHT_REL,
               .align = 8,
               .bytes = table,
               .link = ElfBuilder::kSymtab,
               .info = section,
               .entsize = elf.word() * (target.rela ? 3U : 2U)});
  const Bytes file = elf.build();
  const auto source = memory_source(file);
  const NoteScan found = scan(source);
  CHECK(found.notes.size() == 6);
  CHECK(found.notes.at(1).location.value == 0x42);
  CHECK(ours(found, target.is64) == readelf(file));
}

TEST_CASE("readelf agrees on notes whose faults it reads through") {
  if (!have_readelf()) {
    WARN("skipped: there is no readelf");
    return;
  }
  // The rules whose notes readelf prints, whatever other tracers do with them.
  const std::string fault = GENERATE("type", "namesz", "name", "alloc", "align", "two");
  CAPTURE(fault);
  ElfBuilder elf;
  const Bytes desc = elf.stapsdt_desc(kProbes[0]);
  Bytes notes = elf.note(std::string_view("stapsdt", fault == "namesz" ? 7 : 8),
                         fault == "type" ? 4 : 3, desc);
  const Bytes second = elf.stapsdt({.provider = "p", .name = fault == "name" ? "" : "n"});
  notes.insert(notes.end(), second.begin(), second.end());
  const NewSection section{.name = ".note.stapsdt",
                           .type = SHT_NOTE,
                           .flags = fault == "alloc" ? SHF_ALLOC : 0,
                           .align = fault == "align" ? 2U : 4U,
                           .bytes = notes};
  elf.section(section);
  if (fault == "two") elf.section(section);
  const Bytes file = elf.build();
  const auto source = memory_source(file);
  const NoteScan found = scan(source);
  CHECK(found.findings.size() == 1);
  CHECK(found.notes.size() == (fault == "two" ? 4 : 2));
  CHECK(ours(found, true) == readelf(file));
}
