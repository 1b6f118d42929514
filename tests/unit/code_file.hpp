// A file with functions and FDEs for tests, and what find_functions() says about it, as text.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "frame_builder.hpp"
#include "libprobe/code/functions.hpp"

namespace reprobe::test {

inline constexpr std::uint64_t kText = 0x1000, kFrame = 0x3000;

struct CodeFile {
  explicit CodeFile(const ElfBuilder::Kind& kind = {}) : builder(kind) {
    text = builder.section({.name = ".text",
                            .flags = SHF_ALLOC | SHF_EXECINSTR,
                            .addr = kind.type == ET_REL ? 0 : kText,
                            .bytes = Bytes(0x1000)});
    if (kind.type != ET_REL) builder.load(PF_R | PF_X, text);
  }

  void function(const std::string& name, std::uint64_t value, std::uint64_t size,
                std::uint8_t binding = STB_GLOBAL) {
    builder.symbol({name, value, size, STT_FUNC, binding, text});
  }
  void label(const std::string& name, std::uint64_t value, std::uint64_t size = 0) {
    builder.symbol({name, value, size, STT_NOTYPE, STB_LOCAL, text});
  }
  void frames(const std::vector<FrameBuilder::Range>& ranges) {
    FrameBuilder frame(kFrame, builder.word(), builder.kind().order);
    const auto cie = frame.cie("zR", hex("00"));
    for (const auto& range : ranges) frame.fde(cie, range, 0x00);
    const auto section = builder.section(
        {.name = ".eh_frame", .flags = SHF_ALLOC, .addr = kFrame, .bytes = frame.bytes()});
    builder.load(PF_R, section);
  }

  ElfBuilder builder;
  std::uint32_t text{};
};

// What is found, as text: "name start+size", then "xN" for N names where not 1, and S, F, T, L.
inline std::string describe(const std::optional<Function>& f) {
  if (!f) return "none";
  std::ostringstream out;
  out << (f->name.empty() ? "?" : f->name) << ' ' << std::hex << f->start.value << '+'
      << f->size.value << ' ' << std::dec;
  if (f->names_here != 1) out << 'x' << f->names_here << ' ';
  out << (f->from_symbol ? "S" : "") << (f->from_fde ? "F" : "") << (f->thumb ? "T" : "")
      << (f->may_have_landing_pads ? "L" : "");
  return out.str();
}

struct FoundFunctions {
  explicit FoundFunctions(CodeFile& elf, std::vector<CodeAddress> asked)
      : addresses(std::move(asked)) {
    const auto file = ElfFile::open(memory_source(elf.builder.build()));
    REQUIRE(file);
    lookup = find_functions(*file, addresses);
    REQUIRE(lookup.functions.size() == addresses.size());
  }
  explicit FoundFunctions(CodeFile& elf, std::initializer_list<std::uint64_t> asked)
      : FoundFunctions(elf, code_addresses(asked)) {}

  std::string at(std::uint64_t address, std::uint32_t section = 0) const {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i] == CodeAddress{VirtAddr{address}, section})
        return describe(lookup.functions[i]);
    }
    return "not asked";
  }

  static std::vector<CodeAddress> code_addresses(std::initializer_list<std::uint64_t> asked) {
    std::vector<CodeAddress> addresses;
    for (const std::uint64_t a : asked) addresses.push_back({VirtAddr{a}, 0});
    return addresses;
  }

  std::vector<CodeAddress> addresses;
  FunctionLookup lookup;
};

}  // namespace reprobe::test
