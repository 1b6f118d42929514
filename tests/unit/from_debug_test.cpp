// Notes brought back from a debug file. The files are written after the ELF specification; what
// must come out is what the builder put into the unstripped twin.
#include "libprobe/rewrite/from_debug.hpp"

#include "catch.hpp"
#include "elf_builder.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct Kind {
  bool is64;
  std::endian order;
  std::uint16_t machine;
  Bytes nop;
  Bytes ret;  // as long as the nop or a multiple of it
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll{
      {true, std::endian::little, EM_X86_64, bytes_of({0x90}), bytes_of({0xc3})},
      {false, std::endian::little, EM_386, bytes_of({0x90}), bytes_of({0xc3})},
      {true, std::endian::little, EM_AARCH64, bytes_of({0x1f, 0x20, 0x03, 0xd5}),
       bytes_of({0xc0, 0x03, 0x5f, 0xd6})},
      {true, std::endian::big, EM_PPC64, bytes_of({0x60, 0x00, 0x00, 0x00}),
       bytes_of({0x4e, 0x80, 0x00, 0x20})}};
  return kAll;
}

// What one of the files has; the twin by default.
struct Parts {
  bool notes{true};
  bool code{true};  // false: NOBITS, as in a debug file
  bool base{true};
  bool headers{true};
  std::string id{"0123456789abcdef0123"};
  std::uint16_t type{ET_DYN};
  std::uint64_t text{0x2000};
  std::uint64_t data{0x5000};
  std::uint64_t second_semaphore{};  // 0: none
  std::uint64_t third_site{};        // 0: its own
  std::string third_arguments{"4@%eax"};
  std::size_t no_nop{3};  // the site that holds something else
};

constexpr std::uint64_t kBase = 0x1800;

// A library with three functions, each `nop; ret`, and a probe on each nop; the first probe has a
// semaphore.
struct Library {
  ElfBuilder elf;
  Bytes file;
  std::uint32_t text{}, data{}, notes{};
  std::uint32_t text_segment{}, data_segment{};
  std::uint64_t text_address{}, function_size{};

  Library(const Kind& kind, const Parts& parts)
      : elf({.is64 = kind.is64,
             .order = kind.order,
             .type = parts.type,
             .machine = kind.machine,
             .section_headers = parts.headers}) {
    Bytes code, stapsdt;
    for (std::size_t i = 0; i < 3; ++i) {
      std::uint64_t site = parts.text + code.size();
      if (i == 2 && parts.third_site != 0) site = parts.third_site;
      const std::uint64_t semaphore = i == 0 ? parts.data : i == 1 ? parts.second_semaphore : 0;
      const Bytes note = elf.stapsdt({.location = site,
                                      .base = parts.base ? kBase : 0,
                                      .semaphore = semaphore,
                                      .provider = "p",
                                      .name = "n" + std::to_string(i),
                                      .arguments = i == 2 ? parts.third_arguments : ""});
      stapsdt.insert(stapsdt.end(), note.begin(), note.end());
      const Bytes& at_site = parts.no_nop == i ? kind.ret : kind.nop;
      code.insert(code.end(), at_site.begin(), at_site.end());
      code.insert(code.end(), kind.ret.begin(), kind.ret.end());
    }
    const auto id = elf.section(
        {.name = ".note.gnu.build-id",
         .type = SHT_NOTE,
         .flags = SHF_ALLOC,
         .addr = 0x1000,
         .align = 4,
         .bytes = parts.id.empty() ? Bytes{}
                                   : elf.note(std::string_view("GNU", 4), 3, bytes_of(parts.id))});
    std::uint32_t last = id;
    if (parts.base) {
      last = elf.section(
          {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = kBase, .bytes = bytes_of({0})});
    }
    const std::uint64_t size = code.size();
    text_address = parts.text;
    function_size = size / 3;
    text = elf.section({.name = ".text",
                        .type = parts.code ? SHT_PROGBITS : SHT_NOBITS,
                        .flags = SHF_ALLOC | SHF_EXECINSTR,
                        .addr = parts.text,
                        .align = 4,
                        .bytes = parts.code ? code : Bytes{},
                        .size = size});
    data = elf.section({.name = ".probes",
                        .type = parts.code ? SHT_PROGBITS : SHT_NOBITS,
                        .flags = SHF_ALLOC | SHF_WRITE,
                        .addr = parts.data,
                        .align = 2,
                        .bytes = parts.code ? bytes_of({0, 0}) : Bytes{},
                        .size = 2});
    if (parts.notes) {
      notes =
          elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = stapsdt});
    }
    elf.load(PF_R, id, last);
    elf.load(PF_R, id, 0, PT_NOTE);
    text_segment = elf.load(PF_R | PF_X, text);
    data_segment = elf.load(PF_R | PF_W, data);
    file = elf.build();
  }

  // The functions, as only the debug file has them.
  void add_symbols() {
    for (std::uint64_t i = 0; i < 3; ++i) {
      elf.symbol({.name = "f" + std::to_string(i),
                  .value = text_address + i * function_size,
                  .size = function_size,
                  .type = STT_FUNC,
                  .shndx = text});
    }
    file = elf.build();
  }

  [[nodiscard]] ElfFile open() const {
    auto opened = ElfFile::open(memory_source(file));
    REQUIRE(opened);
    return std::move(*opened);
  }
};

Result<FromDebugPlan> plan(const Library& file, const Library& debug) {
  return plan_from_debug(file.open(), debug.open());
}

Parts stripped(Parts parts = {}) {
  parts.notes = false;
  return parts;
}

// The output; every byte before the input's end is the input's, but for e_shoff and e_shnum.
Bytes output(const Library& file, const FromDebugPlan& plan) {
  const auto result = apply(plan.fix.plan, *memory_source(file.file));
  REQUIRE(result);
  Bytes same(result->begin(), result->begin() + static_cast<std::ptrdiff_t>(file.file.size()));
  for (const char* field : {"e_shoff", "e_shnum"}) {
    const Field at = file.elf.ehdr(field);
    for (std::size_t i = at.at; i < at.at + at.width; ++i) same[i] = file.file[i];
  }
  CHECK(same == file.file);
  return *result;
}

Bytes notes_in(const Bytes& bytes) {
  const auto file = ElfFile::open(memory_source(bytes));
  REQUIRE(file);
  CHECK(file->problems().empty());
  const Section* section = file->section(".note.stapsdt");
  REQUIRE(section != nullptr);
  CHECK(section->type == SHT_NOTE);
  CHECK(section->flags == 0);
  CHECK(section->addralign == Size{4});
  const auto contents = file->contents(*section);
  REQUIRE(contents);
  return {contents->begin(), contents->end()};
}

// What is brought back, and behind it "-name" for what is dangling.
std::vector<std::string> restored_names(const FromDebugPlan& plan) {
  std::vector<std::string> names;
  for (const Probe& probe : plan.probes) names.push_back(probe.note.name);
  for (const std::size_t i : plan.fix.removed) {
    CHECK(plan.probes[i].verdict == Verdict::dangling);
    names[i] = "-" + names[i];
  }
  CHECK(names.size() ==
        plan.fix.removed.size() + static_cast<std::size_t>(std::ranges::count(
                                      plan.fix.repairs, kFromDebugRule, &Repair::rule)));
  return names;
}

// Why the whole is refused.
std::string refused(const Library& file, const Library& debug) {
  const auto result = plan(file, debug);
  if (result) return "";
  CHECK(result.error().code == ErrorCode::refused);
  return result.error().where + ": " + result.error().message;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("from debug: the twin's notes come back byte for byte") {
  for (const Kind& kind : kinds()) {
    for (const bool code : {true, false}) {
      CAPTURE(kind.machine, code);
      const Library file(kind, stripped());
      const Library debug(kind, {.code = code});
      const auto result = plan(file, debug);
      REQUIRE(result);
      CHECK(result->fix.refused.empty());
      CHECK(restored_names(*result) == Names{"n0", "n1", "n2"});
      CHECK(notes_in(output(file, *result)) == notes_in(debug.file));
    }
  }
}

TEST_CASE("from debug: .stapsdt.base comes back with them") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.machine);
    const Library file(kind, stripped({.base = false}));
    Library debug(kind, {.base = false});
    // Nothing shows that code was dropped: what stands on a nop is live without symbols, too.
    CHECK(restored_names(*plan(file, debug)) == Names{"n0", "n1", "n2"});
    debug.add_symbols();
    const auto result = plan(file, debug);
    REQUIRE(result);
    for (const Refusal& refusal : result->fix.refused) {
      FAIL_CHECK(refusal.where + ": " + refusal.reason);
    }
    REQUIRE(result->fix.base);
    const auto after = ElfFile::open(memory_source(output(file, *result)));
    REQUIRE(after);
    const Section* base = after->section(".stapsdt.base");
    REQUIRE(base != nullptr);
    CHECK(base->addr == *result->fix.base);
    for (const Note& note : scan_notes(*after).notes) CHECK(note.base == base->addr);
    CHECK(scan_notes(*after).notes.size() == 3);
  }
}

TEST_CASE("from debug: files of two links are refused, with both ids") {
  const Kind& kind = kinds().front();
  const std::string other(20, 'z');
  const std::string hex = "3031323334353637383961626364656630313233";
  const std::string found = refused(Library(kind, stripped()), Library(kind, {.id = other}));
  CHECK(found.find(hex) != std::string::npos);
  CHECK(found.find("7a7a7a7a7a") != std::string::npos);
  for (const auto& [ours, theirs] :
       {std::pair<std::string, std::string>{"", ""}, {"", other}, {other, ""}}) {
    CAPTURE(ours, theirs);
    const std::string none =
        refused(Library(kind, stripped({.id = ours})), Library(kind, {.id = theirs}));
    CHECK(none.starts_with("build-id: "));
    CHECK(none.find("none") != std::string::npos);
  }
}

TEST_CASE("from debug: files of other kinds are refused") {
  const Kind& kind = kinds().front();
  const Library debug(kind, {});
  CHECK(refused(Library(kinds()[1], stripped()), debug).starts_with("ELF header: "));
  CHECK(refused(Library(kind, stripped({.type = ET_EXEC})), debug).starts_with("ELF header: "));
  CHECK(refused(Library(kind, stripped({.type = ET_REL})), debug).starts_with("e_type: "));
  CHECK(refused(Library(kind, stripped({.headers = false})), debug).find("section headers") !=
        std::string::npos);
  const Kind unknown{true, std::endian::little, 9999, bytes_of({0x90}), bytes_of({0xc3})};
  CHECK(refused(Library(unknown, stripped()), Library(unknown, {})).starts_with("e_machine: "));
}

TEST_CASE("from debug: a layout that differs in one field is refused") {
  for (const Kind& kind : kinds()) {
    const Library file(kind, stripped());
    for (const char* field : {"p_vaddr", "p_memsz", "p_flags"}) {
      for (const bool text : {true, false}) {
        CAPTURE(kind.machine, field, text);
        Library debug(kind, {});
        const auto segment = text ? debug.text_segment : debug.data_segment;
        debug.elf.poke(debug.file, debug.elf.phdr(segment, field), 7);
        CHECK(refused(file, debug).starts_with("program headers: "));
      }
    }
    for (const char* field : {"sh_addr", "sh_size"}) {
      CAPTURE(kind.machine, field);
      Library debug(kind, {});
      debug.elf.poke(debug.file, debug.elf.shdr(debug.text, field), 8);
      CHECK(refused(file, debug).starts_with(".text: "));
    }
  }
}

TEST_CASE("from debug: a note that does not fit is left out, with its reason") {
  struct Case {
    Parts file, debug;
    Names restored;
    std::string reason;
  };
  const std::vector<Case> cases{
      // The code there is a return in this file.
      {{.no_nop = 1}, {.code = false}, {"n0", "n2"}, "ambiguous"},
      // The site lies outside of the code.
      {{}, {.code = false, .third_site = 0x9000}, {"n0", "n1", "-n2"}, ""},
      {{}, {.third_site = 0x10}, {"n0", "n1", "-n2"}, ""},
      // The counter lies in the code, outside of everything, at the last byte.
      {{}, {.second_semaphore = 0x2000}, {"n0", "n2"}, "semaphore"},
      {{}, {.second_semaphore = 0x9000}, {"n0", "n2"}, "semaphore"},
      {{}, {.second_semaphore = 0x5001}, {"n0", "n2"}, "semaphore"},
      {{}, {.second_semaphore = ~std::uint64_t{0}}, {"n0", "n2"}, "semaphore"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const Kind& kind : kinds()) {
      if (!kind.is64 && cases[i].debug.second_semaphore > 0xffffffff) continue;
      CAPTURE(i, kind.machine);
      const Library file(kind, stripped(cases[i].file));
      const auto result = plan(file, Library(kind, cases[i].debug));
      REQUIRE(result);
      CHECK(restored_names(*result) == cases[i].restored);
      REQUIRE(result->fix.refused.size() == (cases[i].reason.empty() ? 0 : 1));
      for (const Refusal& refusal : result->fix.refused) {
        CAPTURE(refusal.reason);
        CHECK(refusal.provider == "p");
        CHECK(std::ranges::find(cases[i].restored, refusal.name) == cases[i].restored.end());
        CHECK(refusal.reason.find(cases[i].reason) != std::string::npos);
      }
      const auto after = ElfFile::open(memory_source(output(file, *result)));
      REQUIRE(after);
      CHECK(scan_notes(*after).notes.size() == 2);
    }
  }
}

TEST_CASE("from debug: where no note fits nothing is written") {
  const Kind& kind = kinds().front();
  Library file(kind, stripped());
  for (std::size_t i = 0; i < 6; ++i) {
    file.file[static_cast<std::size_t>(file.elf.offset(file.text)) + i] = std::byte{0xc3};
  }
  const auto result = plan(file, Library(kind, {.code = false}));
  REQUIRE(result);
  CHECK(result->fix.plan.empty());
  CHECK(result->probes.empty());
  CHECK(result->fix.refused.size() == 3);
}

TEST_CASE("from debug: a file that has its notes") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.machine);
    const auto same = plan(Library(kind, {}), Library(kind, {.code = false}));
    REQUIRE(same);
    CHECK(same->fix.plan.empty());
    CHECK(same->probes.empty());
    CHECK(same->fix.refused.empty());
    const std::string others =
        refused(Library(kind, {.third_arguments = "8@%rax"}), Library(kind, {.code = false}));
    CHECK(others.starts_with(".note.stapsdt: "));
    Library empty(kind, {});
    empty.elf.poke(empty.file, empty.elf.shdr(empty.notes, "sh_size"), 0);
    CHECK(refused(empty, Library(kind, {.code = false})).starts_with(".note.stapsdt: "));
  }
}

TEST_CASE("from debug: only the selected ones") {
  const Kind& kind = kinds().front();
  const auto result = plan_from_debug(Library(kind, stripped()).open(), Library(kind, {}).open(),
                                      [](const Probe& probe) { return probe.note.name != "n1"; });
  REQUIRE(result);
  CHECK(restored_names(*result) == Names{"n0", "n2"});
  CHECK(result->fix.refused.empty());
}
