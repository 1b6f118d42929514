// oracle FILE...: reads each ELF file with our reader and with LIEF, and prints every segment,
// section and symbol on which they disagree. Exit status: 0 they agree, 1 they do not, 2 usage.
// Files on which LIEF has no opinion (it crashes, gives up, takes too long, or does not know the
// form) are counted and are no disagreement; but where it has none on any file, that is a failure.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <variant>

#include "facts.hpp"
#include "libprobe/elf/file.hpp"
#include "lief_facts.hpp"

namespace reprobe::oracle {
namespace {

constexpr rlim_t kCpuSeconds = 60;
constexpr rlim_t kMemory = rlim_t{6} << 30;
// The sanitizers reserve terabytes of addresses: RLIMIT_AS cannot be used with them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;
#elif defined(__has_feature)
constexpr bool kLimitsMemory =
    !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool kLimitsMemory = true;
#endif
constexpr int kRefused = 3;  // the child's status where LIEF gives no binary
constexpr std::size_t kShownPerFile = 10;

void add_symbols(Lines& lines, const ElfFile& file, std::uint32_t type, std::string_view name) {
  const auto table = std::ranges::find(file.sections(), type, &Section::type);
  if (table == file.sections().end()) return;
  const auto symbols = file.symbols(*table);
  if (!symbols) return;
  for (const Symbol& s : *symbols)
    lines.push_back(SymbolFact{name, s.index, std::string(s.name), s.value.value, s.size.value,
                               s.type, s.binding, s.shndx}
                        .line());
}

Lines our_facts(const ElfFile& file) {
  Lines lines;
  for (const Segment& s : file.segments())
    lines.push_back(SegmentFact{s.index, s.type, s.flags, s.offset.value, s.vaddr.value,
                                s.paddr.value, s.filesz.value, s.memsz.value, s.align.value}
                        .line());
  for (const Section& s : file.sections())
    lines.push_back(SectionFact{s.index, s.name, s.type, s.flags, s.addr.value, s.offset.value,
                                s.size.value, s.link, s.info, s.addralign.value, s.entsize.value}
                        .line());
  add_symbols(lines, file, SHT_SYMTAB, ".symtab");
  add_symbols(lines, file, SHT_DYNSYM, ".dynsym");
  return lines;
}

// In the child: never returns.
[[noreturn]] void write_lief_facts(const std::string& path, int out) {
  const rlimit cpu{kCpuSeconds, kCpuSeconds}, memory{kMemory, kMemory}, no_core{0, 0};
  setrlimit(RLIMIT_CPU, &cpu);
  if (kLimitsMemory) setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &no_core);
  alarm(2 * static_cast<unsigned>(kCpuSeconds));
  if (freopen("/dev/null", "w", stdout) == nullptr || freopen("/dev/null", "w", stderr) == nullptr)
    _exit(kRefused);
  const auto lines = lief_facts(path);
  if (!lines) _exit(kRefused);
  FILE* stream = fdopen(out, "w");
  if (stream == nullptr) _exit(kRefused);
  for (const std::string& line : *lines) std::fprintf(stream, "%s\n", line.c_str());
  std::fclose(stream);
  _exit(0);
}

std::string read_all(int in) {
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got = 0; (got = read(in, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

// LIEF's lines, or why there are none.
std::variant<Lines, std::string> lief_in_child(const std::string& path) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  std::fflush(stdout);  // or the child prints it again
  const pid_t child = fork();
  if (child < 0) return "no process";
  if (child == 0) {
    close(ends[0]);
    write_lief_facts(path, ends[1]);
  }
  close(ends[1]);
  const std::string text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("LIEF ended with signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "LIEF refuses the file";
  Lines lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Prints what stands in one list and not in the other; gives their number.
std::size_t print_differences(const std::string& path, Lines ours, Lines liefs) {
  Lines only_ours, only_liefs;
  std::ranges::sort(ours);
  std::ranges::sort(liefs);
  std::ranges::set_difference(ours, liefs, std::back_inserter(only_ours));
  std::ranges::set_difference(liefs, ours, std::back_inserter(only_liefs));
  const auto show = [&](const char* who, const Lines& lines) {
    for (std::size_t i = 0; i < std::min(lines.size(), kShownPerFile); ++i)
      fmt::print("{}: {}: {}\n", path, who, lines[i]);
    if (lines.size() > kShownPerFile)
      fmt::print("{}: {}: and {} more\n", path, who, lines.size() - kShownPerFile);
  };
  show("reprobe", only_ours);
  show("LIEF   ", only_liefs);
  return std::max(only_ours.size(), only_liefs.size());
}

// Forms that LIEF 0.9 reads wrongly without a word; readelf -hSs shows what stands there.
std::string beyond_lief(const ElfFile& file) {
  const ElfHeader& h = file.header();
  // Its Parser::NB_MAX_SECTION: later sections and all symbol names are dropped.
  constexpr std::uint64_t kMaxSections = 10'000;
  if (h.shnum > kMaxSections) return "LIEF reads at most 10,000 sections";
  // e_shnum 0, PN_XNUM: it takes the 16-bit fields at their word.
  const std::size_t fields = h.is64 ? 56 : 44;
  const auto bytes = file.source().slice({fields}, {8}, "counts");
  if (!bytes || load_uint(*bytes, 0, 2, h.order) != h.phnum ||
      load_uint(*bytes, 4, 2, h.order) != h.shnum)
    return "LIEF does not know extended numbering";
  // It takes the structures' own sizes for e_phentsize and e_shentsize.
  if ((h.phnum != 0 && h.phentsize != (h.is64 ? 56 : 32)) ||
      (h.shnum != 0 && h.shentsize != (h.is64 ? 64 : 40)))
    return "LIEF does not look at e_phentsize and e_shentsize";
  return "";
}

// LIEF looks for the dynamic symbols where DT_SYMTAB says, we where .dynsym says. In a file whose
// headers were moved and its dynamic section not (objcopy --adjust-vma) LIEF finds none, while
// `readelf --dyn-syms` shows them all.
bool dynsym_is_elsewhere(const ElfFile& file) {
  constexpr std::uint64_t DT_NULL = 0, DT_SYMTAB = 6;
  const auto dynsym = std::ranges::find(file.sections(), SHT_DYNSYM, &Section::type);
  const auto dynamic = std::ranges::find(file.sections(), SHT_DYNAMIC, &Section::type);
  if (dynsym == file.sections().end() || dynamic == file.sections().end()) return false;
  const ByteView entries = file.contents(*dynamic).value_or(ByteView{});
  const unsigned word = file.header().word();
  for (std::size_t at = 0; entries.size() - at >= 2 * word; at += 2 * word) {
    const std::uint64_t tag = load_uint(entries, at, word, file.header().order);
    const std::uint64_t value = load_uint(entries, at + word, word, file.header().order);
    if (tag == DT_NULL) break;
    if (tag == DT_SYMTAB) return value != dynsym->addr.value;
  }
  return false;
}

struct Count {
  std::size_t agree{}, disagree{}, differences{}, not_elf{}, no_opinion{}, items{};
};

void compare(const std::string& path, Count& count) {
  const auto source = map_file(path);
  const auto file = source ? ElfFile::open(*source) : tl::unexpected(source.error());
  if (!file && file.error().code != ErrorCode::malformed) {
    ++count.not_elf;
    return;
  }
  const std::string beyond = file ? beyond_lief(*file) : "";
  const auto second = beyond.empty() ? lief_in_child(path) : beyond;
  if (const auto* why = std::get_if<std::string>(&second)) {
    fmt::print("{}: no opinion: {}\n", path, *why);
    ++count.no_opinion;
    return;
  }
  if (!file) {
    fmt::print("{}: reprobe refuses the file: {}\n", path, file.error().message);
    ++count.disagree;
    return;
  }
  Lines ours = our_facts(*file), liefs = std::get<Lines>(second);
  if (dynsym_is_elsewhere(*file))
    for (Lines* lines : {&ours, &liefs})
      std::erase_if(*lines, [](const std::string& line) { return line.starts_with(".dynsym "); });
  count.items += ours.size();
  const std::size_t differences = print_differences(path, ours, liefs);
  count.differences += differences;
  ++(differences == 0 ? count.agree : count.disagree);
}

}  // namespace
}  // namespace reprobe::oracle

int main(int argc, char** argv) {
  using namespace reprobe::oracle;
  if (argc < 2) {
    fmt::print(stderr, "usage: oracle FILE...\n");
    return 2;
  }
  Count count;
  for (int i = 1; i < argc; ++i) compare(argv[i], count);
  fmt::print(
      "{} items in {} files agree, {} files disagree ({} differences), {} without LIEF's opinion, "
      "{} not ELF\n",
      count.items, count.agree, count.disagree, count.differences, count.no_opinion, count.not_elf);
  return count.disagree == 0 && count.agree != 0 ? 0 : 1;
}
