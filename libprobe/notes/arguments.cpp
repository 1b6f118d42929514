#include "libprobe/notes/arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/operand.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kBlanks = " \t\n";

struct SizePrefix {
  int size{};
  bool floating{};
  std::size_t length{};  // of "N@" with its sign and suffix
};

// [-] digits [f] '@'. Six digits are more than any operand has bytes.
std::optional<SizePrefix> size_prefix(std::string_view text) {
  SizePrefix prefix;
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  auto end = std::min(text.find_first_not_of("0123456789", sign), text.size());
  if (end == sign || end - sign > 6) return std::nullopt;
  std::from_chars(text.data(), text.data() + end, prefix.size);
  prefix.floating = end < text.size() && text[end] == 'f';
  if (prefix.floating) ++end;
  if (end >= text.size() || text[end] != '@') return std::nullopt;
  prefix.length = end + 1;
  return prefix;
}

// gcc -masm=intel prints "DWORD PTR 16[rsp]", LLVM (and so Rust's asm!) "qword ptr [rsp + 16]":
// blanks outside of brackets.
bool ends_with_intel_word(std::string_view piece) {
  constexpr std::array<std::string_view, 11> kWords{"BYTE",    "WORD",  "DWORD",   "QWORD",
                                                    "TBYTE",   "OWORD", "XMMWORD", "YMMWORD",
                                                    "ZMMWORD", "PTR",   "OFFSET"};
  const auto start = piece.find_last_of(" @");
  const auto word = start == std::string_view::npos ? piece : piece.substr(start + 1);
  const auto same = [](char a, char b) { return a == b || a == b - 'A' + 'a'; };
  return std::ranges::any_of(
      kWords, [&](std::string_view known) { return std::ranges::equal(word, known, same); });
}

// The length of the first argument in `text`, which starts with no blank: up to a blank that is
// outside of brackets, or that another "N@" follows (so that an unclosed bracket takes no more
// than its own argument).
std::size_t argument_length(std::string_view text, bool x86) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '[' || c == '(') ++depth;
    if ((c == ']' || c == ')') && depth > 0) --depth;
    if (kBlanks.find(c) == std::string_view::npos) {
      ++at;
      continue;
    }
    const auto next = text.find_first_not_of(kBlanks, at);
    if (next == std::string_view::npos || size_prefix(text.substr(next))) return at;
    const bool inside = depth > 0 || (x86 && ends_with_intel_word(text.substr(0, at)));
    if (!inside) return at;
    at = next;
  }
  return text.size();
}

Argument read_argument(std::string_view piece, std::uint16_t machine) {
  Argument argument;
  if (const auto prefix = size_prefix(piece)) {
    argument.size = prefix->size;
    const char sign = prefix->floating ? 'f' : prefix->size < 0 ? 's' : 'u';
    argument.type = fmt::format("{}{}", sign, std::abs(prefix->size) * 8);
    piece.remove_prefix(prefix->length);
  }
  argument.operand = piece;
  Operand operand = read_operand(piece, machine);
  argument.kind = operand.kind;
  argument.registers = std::move(operand.registers);
  return argument;
}

}  // namespace

std::string_view first_argument(std::string_view text, std::uint16_t machine) {
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin);
  return text.substr(0, argument_length(text, machine == EM_386 || machine == EM_X86_64));
}

std::vector<Argument> parse_arguments(std::string_view text, std::uint16_t machine) {
  const bool x86 = machine == EM_386 || machine == EM_X86_64;
  std::vector<Argument> arguments;
  for (auto at = text.find_first_not_of(kBlanks); at != std::string_view::npos;
       at = text.find_first_not_of(kBlanks, at)) {
    text.remove_prefix(at);
    at = argument_length(text, x86);
    arguments.push_back(read_argument(text.substr(0, at), machine));
  }
  return arguments;
}

}  // namespace reprobe
