// LIEF's second opinion: each kind of difference is named, and nothing that LIEF does reaches us.
// The subject is this test program's own file, or a small ELF file whose bytes are written here.
#include "libprobe/verify/second_opinion.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "catch.hpp"
#include "commit_folder.hpp"
#include "small_library.hpp"

using namespace reprobe;
using namespace reprobe::testing;
namespace fs = std::filesystem;
using State = SecondOpinion::State;

namespace {

// One field of the second file differs from the first.
struct Poke {
  const char* what;
  std::uint64_t at;
  std::uint32_t value;  // of one byte
  const char* expected;
};

struct Pair {
  TempFolder folder;
  fs::path before = folder / "before";
  fs::path after = folder / "after";
  Pair() {
    write_file(before, SmallLibrary().bytes());
    write_file(after, SmallLibrary().bytes());
  }
  [[nodiscard]] SecondOpinion opinion(const std::vector<std::string>& changed = {},
                                      const SecondOpinionLimits& limits = {}) const {
    return second_opinion(before, after, {.sections = changed}, limits);
  }
};

std::string joined(const SecondOpinion& opinion) {
  std::string text = opinion.detail;
  for (const std::string& line : opinion.differences) text += line + "\n";
  return text;
}

// Does that process still have this test program's handler of SIGSEGV? proc(5), SigCgt.
bool catches_crashes(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) {
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGSEGV - 1) & 1) != 0;
    }
  }
  return true;
}

// A sanitizer's runtime maps its shadow memory where no program of ours would: it shows in the
// size of the address space.
bool has_sanitizer() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages > std::uint64_t{1} << 28;  // 1 TiB of 4 KiB pages
}

fs::path own_program() { return fs::read_symlink("/proc/self/exe"); }

}  // namespace

TEST_CASE("LIEF agrees that a file equals itself", "[second-opinion]") {
  const Pair pair;
  const auto opinion = pair.opinion();
  INFO(joined(opinion));
  CHECK(opinion.state == State::agrees);
  CHECK(opinion.differences.empty());

  const auto own = second_opinion(own_program(), own_program(), {});
  INFO(joined(own));
  CHECK(own.state == State::agrees);
}

TEST_CASE("a changed field is named", "[second-opinion]") {
  const auto poke = GENERATE(
      Poke{"e_entry", offsetof(Elf64_Ehdr, e_entry), 0x40, "ELF header: entry was 0x100, is 0x140"},
      Poke{"e_type", offsetof(Elf64_Ehdr, e_type), ET_EXEC, "ELF header: type was 0x3, is 0x2"},
      Poke{"e_machine", offsetof(Elf64_Ehdr, e_machine), EM_386,
           "ELF header: machine was 0x3e, is 0x3"},
      Poke{"p_flags", SmallLibrary::segment(0) + offsetof(Elf64_Phdr, p_flags), 7,
           "segment 0: flags was 0x5, is 0x7"},
      Poke{"p_offset", SmallLibrary::segment(2) + offsetof(Elf64_Phdr, p_offset), 0x04,
           "segment 2: offset was 0x300, is 0x304"},
      Poke{"p_vaddr", SmallLibrary::segment(1) + offsetof(Elf64_Phdr, p_vaddr), 0x88,
           "segment 1: vaddr was 0x280, is 0x288"},
      Poke{"p_paddr", SmallLibrary::segment(1) + offsetof(Elf64_Phdr, p_paddr), 0x88,
           "segment 1: paddr was 0x280, is 0x288"},
      Poke{"p_filesz", SmallLibrary::segment(0) + offsetof(Elf64_Phdr, p_filesz), 1,
           "segment 0: filesz was 0x400, is 0x401"},
      Poke{"p_memsz", SmallLibrary::segment(0) + offsetof(Elf64_Phdr, p_memsz), 1,
           "segment 0: memsz was 0x400, is 0x401"},
      Poke{"p_align", SmallLibrary::segment(2) + offsetof(Elf64_Phdr, p_align), 8,
           "segment 2: align was 0x4, is 0x8"},
      Poke{"sh_flags",
           SmallLibrary::section(SmallLibrary::kStapsdt) + offsetof(Elf64_Shdr, sh_flags), 2,
           "section 5 .note.stapsdt: flags was 0x0, is 0x2"},
      Poke{"sh_addralign",
           SmallLibrary::section(SmallLibrary::kStapsdt) + offsetof(Elf64_Shdr, sh_addralign), 4,
           "section 5 .note.stapsdt: addralign was 0x8, is 0x4"},
      Poke{"sh_name", SmallLibrary::kNames + 1, 'x', "section 1 .dynsym: is now xdynsym"},
      Poke{"st_value", SmallLibrary::kSymbols + 24 + offsetof(Elf64_Sym, st_value), 0x24,
           ".dynsym entry 1 probe_me: value was 0x123, is 0x124"},
      Poke{"st_size", SmallLibrary::kSymbols + 24 + offsetof(Elf64_Sym, st_size), 5,
           ".dynsym entry 1 probe_me: size was 0x4, is 0x5"},
      Poke{"st_shndx", SmallLibrary::kSymbols + 24 + offsetof(Elf64_Sym, st_shndx), 2,
           ".dynsym entry 1 probe_me: shndx was 0x1, is 0x2"},
      Poke{"st_name", SmallLibrary::kStrings + 1, 'P', ".dynsym entry 1 probe_me: is now Probe_me"},
      Poke{"d_val", SmallLibrary::kDynamic + 4 * 16 + 8, 4,
           "dynamic entry 4: value was 0x8, is 0x4"},
      Poke{"d_tag", SmallLibrary::kDynamic + 4 * 16, DT_DEBUG,
           "dynamic entry 4: tag was 0x1e, is 0x15"},
      Poke{"contents", SmallLibrary::kProbes + 20, 'X', "section 5 .note.stapsdt: other contents"},
      Poke{"note", SmallLibrary::kNote + 16, 'X', "note 0 GNU: other description"});
  const Pair pair;
  SmallLibrary subject;
  subject.put(poke.at, static_cast<unsigned char>(poke.value));
  write_file(pair.after, subject.bytes());
  const auto opinion = pair.opinion();
  CAPTURE(poke.what, joined(opinion));
  CHECK(opinion.state == State::differs);
  CHECK(std::ranges::find(opinion.differences, poke.expected) != opinion.differences.end());
}

TEST_CASE("a changed entry of .symtab is named", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  subject.put(SmallLibrary::section(SmallLibrary::kDynsym) + offsetof(Elf64_Shdr, sh_type),
              std::uint32_t{SHT_SYMTAB});
  // LIEF 0.9 counts the entries of .symtab by sh_info.
  subject.put(SmallLibrary::section(SmallLibrary::kDynsym) + offsetof(Elf64_Shdr, sh_info),
              std::uint32_t{2});
  write_file(pair.before, subject.bytes());
  subject.put(SmallLibrary::kSymbols + 24 + offsetof(Elf64_Sym, st_info),
              static_cast<unsigned char>(ELF64_ST_INFO(STB_WEAK, STT_FUNC)));
  write_file(pair.after, subject.bytes());
  const auto opinion = pair.opinion({".dynsym"});
  CHECK(joined(opinion).find(".symtab entry 1 probe_me: binding was 0x1, is 0x2") !=
        std::string::npos);
}

TEST_CASE("a section that is named may change in size, place and contents", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  const auto header = SmallLibrary::section(SmallLibrary::kStapsdt);
  subject.put(header + offsetof(Elf64_Shdr, sh_size), std::uint64_t{0x10});
  subject.put(header + offsetof(Elf64_Shdr, sh_offset), std::uint64_t{SmallLibrary::kProbes + 8});
  subject.put(header + offsetof(Elf64_Shdr, sh_addralign), std::uint64_t{4});
  subject.text(SmallLibrary::kProbes + 8, "other bytes");
  write_file(pair.after, subject.bytes());
  const auto named = pair.opinion({".note.stapsdt"});
  INFO(joined(named));
  CHECK(named.state == State::agrees);
  CHECK(pair.opinion().state == State::differs);

  subject.put(header + offsetof(Elf64_Shdr, sh_link), std::uint32_t{3});
  write_file(pair.after, subject.bytes());
  const auto link = pair.opinion({".note.stapsdt"});
  CHECK(joined(link) == "section .note.stapsdt: link was , is .dynamic\n");
}

TEST_CASE("a section may be added or left out only where it is named", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  subject.put(offsetof(Elf64_Ehdr, e_shnum), std::uint16_t{SmallLibrary::kCount - 1});
  write_file(pair.after, subject.bytes());
  CHECK(pair.opinion({".bss"}).state == State::agrees);
  CHECK(joined(pair.opinion()) == "sections: there were 8, there are 7\n");
  CHECK(second_opinion(pair.after, pair.before, {.sections = {".bss"}}).state == State::agrees);
}

TEST_CASE("a build-id may change where its section is named", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  subject.text(SmallLibrary::kNote + 16, "ANOTHER1");
  write_file(pair.after, subject.bytes());
  const auto opinion = pair.opinion({".note.gnu.build-id"});
  INFO(joined(opinion));
  CHECK(opinion.state == State::agrees);
}

TEST_CASE("a NOBITS section has no contents to compare", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  subject.text(SmallLibrary::kNames + 0x60, "after .shstrtab");  // in what .bss would cover
  subject.put(SmallLibrary::section(SmallLibrary::kBss) + offsetof(Elf64_Shdr, sh_offset),
              std::uint64_t{SmallLibrary::kNames});
  write_file(pair.after, subject.bytes());
  CHECK(pair.opinion().state == State::agrees);
}

TEST_CASE("a file that LIEF cannot read is never an agreement", "[second-opinion]") {
  const Pair pair;
  const std::string whole = SmallLibrary().bytes();
  const std::string broken = GENERATE(std::string(), std::string("not an ELF file at all"),
                                      std::string("\x7f"
                                                  "ELF"),
                                      std::string(SmallLibrary().bytes().substr(0, 0x40)));
  CAPTURE(broken.size());
  write_file(pair.after, broken);
  const auto after = pair.opinion();
  INFO(joined(after));
  CHECK(after.state != State::agrees);
  CHECK_FALSE(joined(after).empty());
  const auto before = second_opinion(pair.after, pair.before, {});
  INFO(joined(before));
  CHECK(before.state != State::agrees);
}

TEST_CASE("a missing file gives no opinion", "[second-opinion]") {
  const Pair pair;
  const auto opinion = second_opinion(pair.folder / "none", pair.after, {});
  CHECK(opinion.state == State::unavailable);
  CHECK(opinion.detail.find("LIEF cannot read the file before") == 0);
}

TEST_CASE("hostile fields end in an answer", "[second-opinion]") {
  // Every 8-byte field of the headers and tables, all ones.
  const Pair pair;
  std::size_t answered = 0;
  std::size_t agreed = 0;
  for (std::uint64_t at = 0x10; at + 8 <= SmallLibrary().bytes().size(); at += 0x38) {
    SmallLibrary subject;
    subject.put(at, ~std::uint64_t{0});
    write_file(pair.after, subject.bytes());
    const auto opinion = pair.opinion();
    CAPTURE(at, joined(opinion));
    CHECK((opinion.state != State::unavailable || !opinion.detail.empty()));
    CHECK((opinion.state == State::differs) == !opinion.differences.empty());
    ++answered;
    if (opinion.state == State::agrees) ++agreed;
  }
  CHECK(answered > 20);
  CHECK(agreed < answered);
}

TEST_CASE("very many notes are no work for LIEF, and their bytes are compared", "[second-opinion]") {
  // LIEF 0.9 compares each of them with all others, which takes longer than the child has.
  constexpr std::uint32_t kCount = 30000, kSize = 24;
  SmallLibrary subject;
  const std::uint64_t at = subject.bytes().size();
  subject.put(SmallLibrary::section(SmallLibrary::kStapsdt) + 24, at);
  subject.put(SmallLibrary::section(SmallLibrary::kStapsdt) + 32, std::uint64_t{kCount} * kSize);
  std::string notes;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::array<std::uint32_t, 6> note{8, 4, 3, 0x70617473, 0x00746473, i};  // "stapsdt"
    notes.append(reinterpret_cast<const char*>(note.data()), kSize);
  }
  const Pair pair;
  write_file(pair.before, subject.bytes() + notes);
  write_file(pair.after, subject.bytes() + notes);
  const auto same = pair.opinion();
  INFO(joined(same));
  CHECK(same.state == State::agrees);
  notes[kSize * 20000 + 20] ^= 1;
  write_file(pair.after, subject.bytes() + notes);
  CHECK(joined(pair.opinion()) == "section 5 .note.stapsdt: other contents\n");
  CHECK(pair.opinion({".note.stapsdt"}).state == State::agrees);
}

TEST_CASE("names from the file are printed without control characters", "[second-opinion]") {
  const Pair pair;
  SmallLibrary subject;
  subject.text(SmallLibrary::kStrings + 1, "\x1b[2Jx\nE");
  write_file(pair.after, subject.bytes());
  const auto opinion = pair.opinion();
  CHECK(opinion.state == State::differs);
  CHECK(joined(opinion).find(".dynsym entry 1 probe_me: is now ?[2Jx?E") != std::string::npos);
}

TEST_CASE("without time there is no opinion, and no child is left", "[second-opinion]") {
  const Pair pair;
  const auto late = pair.opinion({}, {.time = std::chrono::seconds(0)});
  CHECK(late.state == State::unavailable);
  CHECK(late.detail == "LIEF took longer than 0 s");
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("without memory there is no opinion", "[second-opinion]") {
  if (has_sanitizer()) {
    WARN("skipped: a sanitizer's own memory cannot be limited");
    return;
  }
  // More than malloc gives from memory that it has already (mallopt(3): DEFAULT_MMAP_THRESHOLD_MAX),
  // whatever this process did before.
  constexpr std::uintmax_t kFile = std::uintmax_t{64} << 20;
  const Pair pair;
  for (const fs::path& path : {pair.before, pair.after}) fs::resize_file(path, kFile);
  const SecondOpinionLimits limits{.time = std::chrono::seconds(60), .memory = Size{1 << 16}};
  const auto small = second_opinion(pair.before, pair.after, {}, limits);
  INFO(small.detail);
  CHECK(small.state == State::unavailable);
  CHECK(small.detail.find("LIEF") == 0);
}

TEST_CASE("a LIEF that hangs is ended, and one that crashes is reported", "[second-opinion]") {
  // A FIFO that nobody writes to: the child waits in open() or read() until it is ended.
  const Pair pair;
  const fs::path fifo = pair.folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  SECTION("time") {
    const auto opinion = second_opinion(fifo, pair.after, {}, {.time = std::chrono::seconds(1)});
    CHECK(opinion.state == State::unavailable);
    CHECK(opinion.detail == "LIEF took longer than 1 s at the file before");
  }
  SECTION("crash") {
    const std::string parent = std::to_string(::getpid());
    const std::string children = "/proc/" + parent + "/task/" + parent + "/children";
    if (!fs::exists(children)) {
      WARN("skipped: the kernel does not list children in /proc");
      return;
    }
    const pid_t watcher = ::fork();
    if (watcher == 0) {
      for (;;) {
        std::ifstream list(children);
        for (pid_t child = 0; list >> child;) {
          if (child != ::getpid() && !catches_crashes(child)) ::kill(child, SIGSEGV);
        }
        ::usleep(1000);
      }
    }
    const auto opinion = second_opinion(fifo, pair.after, {});
    ::kill(watcher, SIGKILL);
    ::waitpid(watcher, nullptr, 0);
    CHECK(opinion.state == State::unavailable);
    CHECK(opinion.detail.find("LIEF crashed (signal 11)") == 0);
  }
}

TEST_CASE("an unnamed file is read through its descriptor", "[second-opinion]") {
  const Pair pair;
  const int fd = ::open(pair.after.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  fs::remove(pair.after);
  const auto opinion = second_opinion(pair.before, "/proc/self/fd/" + std::to_string(fd), {});
  ::close(fd);
  INFO(joined(opinion));
  CHECK(opinion.state == State::agrees);
}

TEST_CASE("it works where nobody may wait for children and signals are blocked",
          "[second-opinion]") {
  const Pair pair;
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  sigset_t all;
  sigset_t mask;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &mask);
  const auto opinion = pair.opinion();
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::signal(SIGCHLD, before);
  INFO(joined(opinion));
  CHECK(opinion.state == State::agrees);
}
