#include "libprobe/deps/search_paths.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// A list that fills a hostile file names millions.
constexpr std::size_t kMaxFolders = 4096;

// Debian's multiarch tuples; "" where there is none.
std::string multiarch(const ElfHeader& header) {
  const bool little = header.order == std::endian::little;
  constexpr std::uint32_t EF_ARM_ABI_FLOAT_HARD = 0x400;
  switch (header.machine) {
    case EM_X86_64:
      return header.is64 ? "x86_64-linux-gnu" : "x86_64-linux-gnux32";
    case EM_386:
      return "i386-linux-gnu";
    case EM_AARCH64:
      return "aarch64-linux-gnu";
    case EM_ARM:
      return (header.flags & EF_ARM_ABI_FLOAT_HARD) != 0 ? "arm-linux-gnueabihf"
                                                         : "arm-linux-gnueabi";
    case EM_RISCV:
      return header.is64 ? "riscv64-linux-gnu" : "riscv32-linux-gnu";
    case EM_PPC64:
      return little ? "powerpc64le-linux-gnu" : "powerpc64-linux-gnu";
    case EM_S390:
      return header.is64 ? "s390x-linux-gnu" : "s390-linux-gnu";
    default:
      return "";
  }
}

bool is_folder(const fs::path& path) {
  std::error_code failure;
  return fs::is_directory(path, failure);
}

bool is_word_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// Bytes of `word` or `{word}` at the start of the text, which follows a '$'; 0: another word.
std::size_t word_length(std::string_view text, std::string_view word) {
  const bool curly = text.starts_with('{');
  if (!text.substr(curly ? 1 : 0).starts_with(word)) return 0;
  const std::size_t end = word.size() + (curly ? 1 : 0);
  const char next = end < text.size() ? text[end] : '/';
  if (curly) return next == '}' ? end + 1 : 0;
  return is_word_character(next) ? 0 : end;
}

}  // namespace

Folders default_folders(const ElfHeader& header) {
  Folders folders;
  for (const char* start : {"/lib", "/usr/lib"}) {
    if (const std::string tuple = multiarch(header); !tuple.empty()) {
      folders.push_back(fs::path(start) / tuple);
    }
  }
  if (header.machine == EM_RISCV && header.is64) {
    // glibc sysdeps/unix/sysv/linux/riscv/configure.ac: the ABI is a part of the folder.
    folders.insert(folders.end(), {"/lib64/lp64d", "/usr/lib64/lp64d"});
  }
  if (header.is64) folders.insert(folders.end(), {"/lib64", "/usr/lib64"});
  folders.insert(folders.end(), {"/lib", "/usr/lib"});
  return folders;
}

std::optional<Folders> musl_folders(std::string_view interpreter, const Root& root) {
  std::string name = fs::path(interpreter).filename().string();
  if (!name.starts_with("ld-musl-")) return std::nullopt;
  name = name.substr(0, name.find(".so"));
  const auto source = map_file(root.place("/etc/" + name + ".path"));
  const auto bytes =
      source ? (*source)->slice({}, Size{(*source)->size()}, "the list of folders") : ByteView{};
  if (!source || !bytes) return Folders{"/lib", "/usr/local/lib", "/usr/lib"};
  Folders folders;
  std::string_view text = as_text(*bytes);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n:"), text.size());
    if (end != 0) folders.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return folders;
}

std::string lib_word(const ElfHeader& header, const Root& root) {
  const std::string tuple = multiarch(header);
  if (!tuple.empty() && is_folder(root.place("/usr/lib/" + tuple))) return "lib/" + tuple;
  return header.is64 && is_folder(root.place("/usr/lib64")) ? "lib64" : "lib";
}

namespace {

// glibc up to 2.36 names Intel processors by what they can do (sysdeps/x86/cpu-features.c,
// init_cpu_features); xeon_phi, which has AVX-512 ER and PF, is out of production.
bool is_haswell() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kGenu = 0x756e6547, kIneI = 0x49656e69, kNtel = 0x6c65746e;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != kGenu || d != kIneI || c != kNtel) return false;
  constexpr unsigned kFma = 1U << 12, kMovbe = 1U << 22, kPopcnt = 1U << 23, kOsxsave = 1U << 27;
  constexpr unsigned kFirst = kFma | kMovbe | kPopcnt | kOsxsave;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kFirst) != kFirst) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kYmmState = 6;  // the system saves SSE and AVX registers
  if ((low & kYmmState) != kYmmState) return false;
  constexpr unsigned kSeventh = 1U << 3 | 1U << 5 | 1U << 8;  // BMI1, AVX2, BMI2
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & kSeventh) != kSeventh) return false;
  constexpr unsigned kLzcnt = 1U << 5;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & kLzcnt) != 0;
#else
  return false;
#endif
}

}  // namespace

std::optional<std::string> platform_word(const ElfHeader& header) {
  switch (header.machine) {
    case EM_X86_64:
      return is_haswell() ? "haswell" : "x86_64";
    case EM_386:
      return "i686";
    case EM_AARCH64:
      return header.order == std::endian::little ? "aarch64" : "aarch64_be";
    default:
      return std::nullopt;
  }
}

std::optional<fs::path> expand_path(std::string_view path, const PathWords& words,
                                    const Root& root) {
  const std::array<std::pair<std::string_view, std::optional<std::string>>, 3> values{
      {{"ORIGIN", words.origin.string()}, {"LIB", words.lib}, {"PLATFORM", words.platform}}};
  std::string text;
  bool real = false;  // a path of this system
  for (std::size_t at = 0; at < path.size(); ++at) {
    if (path[at] != '$') {
      text += path[at];
      continue;
    }
    std::size_t length = 0;
    for (const auto& [word, value] : values) {
      length = word_length(path.substr(at + 1), word);
      if (length == 0) continue;
      if (!value) return std::nullopt;
      real = real || (text.empty() && word == "ORIGIN");
      text += *value;
      break;
    }
    if (length == 0) text += '$';
    at += length;
  }
  if (text.empty()) text.push_back('.');
  const fs::path expanded(text);
  return expanded.is_absolute() && !real ? root.place(expanded) : root.place_real(expanded);
}

Folders expand_list(std::string_view list, const PathWords& words, const Root& root) {
  Folders folders;
  for (std::size_t start = 0; start <= list.size() && folders.size() < kMaxFolders;) {
    const std::size_t end = std::min(list.find(':', start), list.size());
    auto folder = expand_path(list.substr(start, end - start), words, root);
    if (folder) folders.push_back(std::move(*folder));
    start = end + 1;
  }
  return folders;
}

}  // namespace reprobe
