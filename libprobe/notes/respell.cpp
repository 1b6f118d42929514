#include "libprobe/notes/respell.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/notes/intel_operand.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kDecimals = "0123456789";

struct Piece {
  std::string blanks;  // before it
  std::string text;
};

std::vector<Piece> split(std::string_view text) {
  std::vector<Piece> pieces;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    pieces.push_back(
        {std::string(text.substr(0, begin)), std::string(text.substr(begin, end - begin))});
    text.remove_prefix(end);
  }
  return pieces;
}

bool is_register_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

// Bytes of a general register whose whole value an argument without a size means; 0 for others.
// ah, bh, ch and dh are left out: no size tells that they are the second byte.
unsigned register_size(std::string_view name) {
  constexpr std::array<std::string_view, 8> kClassic = {"ax", "bx", "cx", "dx",
                                                        "si", "di", "bp", "sp"};
  const auto classic = [&](std::string_view rest) {
    return std::ranges::find(kClassic, rest) != kClassic.end();
  };
  if (classic(name)) return 2;
  if (name.size() == 3 && name[0] == 'e' && classic(name.substr(1))) return 4;
  if (name.size() == 3 && name[0] == 'r' && classic(name.substr(1))) return 8;
  if (name.size() == 2 && name[1] == 'l' && std::string_view("abcd").find(name[0]) != name.npos) {
    return 1;
  }
  if (name.size() == 3 && name[2] == 'l' && classic(name.substr(0, 2)) && name[1] != 'x') return 1;
  if (name.size() < 2 || name[0] != 'r') return 0;
  const std::size_t digits = name.find_first_not_of(kDecimals, 1);
  const std::string_view number = name.substr(1, std::min(digits, name.size()) - 1);
  unsigned value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc{} || value < 8 || value > 15 || number[0] == '0') return 0;
  const std::string_view suffix = digits == name.npos ? "" : name.substr(digits);
  if (suffix.empty()) return 8;
  if (suffix == "d") return 4;
  if (suffix == "w") return 2;
  return suffix == "b" ? 1 : 0;
}

// One number of a sum, decimal or hexadecimal, without its sign. A leading zero is octal to some
// readers and decimal to others: not understood.
std::optional<std::int64_t> take_number(std::string_view& text) {
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  if (!hex && text.size() > 1 && text[0] == '0' && kDecimals.find(text[1]) != kDecimals.npos) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  constexpr std::uint64_t kMax = std::uint64_t{1} << 62;
  if (error != std::errc{} || (!hex && value > kMax)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return static_cast<std::int64_t>(value);
}

// The value of "16", "-0x10", "8+16", "-8+16-4"; nothing where anything else stands there.
std::optional<std::int64_t> sum_of(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::int64_t sum = 0;
  bool first = true;
  while (!text.empty()) {
    const bool negative = text[0] == '-';
    if (negative || text[0] == '+') {
      text.remove_prefix(1);
    } else if (!first) {
      return std::nullopt;
    }
    const auto number = take_number(text);
    if (!number || (negative && *number == std::numeric_limits<std::int64_t>::min()) ||
        __builtin_add_overflow(sum, negative ? -*number : *number, &sum)) {
      return std::nullopt;
    }
    first = false;
  }
  return sum;
}

bool is_plain(std::string_view number) {
  if (number.starts_with('-')) number.remove_prefix(1);
  return number.find_first_not_of(kDecimals) == number.npos;
}

// "(%base)", "(%base,%index)" or "(%base,%index,scale)".
bool is_address(std::string_view text) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return false;
  text = text.substr(1, text.size() - 2);
  for (int part = 0; part < 3; ++part) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const bool is_scale = part == 2;
    if (is_scale && item != "1" && item != "2" && item != "4" && item != "8") return false;
    if (!is_scale && (!item.starts_with('%') || !is_register_name(item.substr(1)))) return false;
    if (comma == text.npos) return true;
    text.remove_prefix(comma + 1);
  }
  return false;
}

std::string respell_operand(const std::string& operand) {
  if (operand.starts_with('$')) {
    const std::string_view number = std::string_view(operand).substr(1);
    const auto value = sum_of(number);
    return value && !is_plain(number) ? fmt::format("${}", *value) : operand;
  }
  const std::size_t open = operand.find('(');
  if (open == operand.npos || !is_address(std::string_view(operand).substr(open))) return operand;
  const std::string_view number = std::string_view(operand).substr(0, open);
  if (number.empty()) return fmt::format("0{}", operand);
  const auto value = sum_of(number);
  if (!value || is_plain(number)) return operand;
  return std::to_string(*value) + operand.substr(open);
}

bool is_size(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text == "1" || text == "2" || text == "4" || text == "8";
}

std::string respell(const std::string& piece) {
  const std::size_t at = piece.find('@');
  if (at == piece.npos) {
    const unsigned size =
        piece.starts_with('%') ? register_size(std::string_view(piece).substr(1)) : 0;
    return size == 0 ? piece : std::to_string(size) + "@" + piece;
  }
  // What a size that is none may mean, nobody knows: the operand stays too.
  if (!is_size(std::string_view(piece).substr(0, at))) return piece;
  return piece.substr(0, at + 1) + respell_operand(piece.substr(at + 1));
}

// libbpf tries "%d @ %ld ( %%%15[^,] , %%%15[^)] )" first: of a plain dereference it takes up to 15
// characters as the base register, and if a comma and a register follow, it believes them.
constexpr std::size_t kScanned = 15;

// Where the name of a plain dereference's register starts in the piece; nothing for others.
std::optional<std::size_t> dereferenced(const std::string& piece) {
  const std::size_t open = piece.find("(%");
  if (open == piece.npos || !piece.ends_with(')') || piece.find(',') != piece.npos) {
    return std::nullopt;
  }
  return open + 2;
}

void widen(std::vector<Piece>& pieces) {
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
    const auto name = dereferenced(pieces[i].text);
    if (!name) continue;
    std::size_t distance = pieces[i].text.size() - *name;
    for (std::size_t j = i + 1; j < pieces.size() && distance <= kScanned; ++j) {
      const std::size_t comma = pieces[j].text.find(",%");
      distance += pieces[j].blanks.size() + std::min(comma, pieces[j].text.size());
      if (comma == pieces[j].text.npos) continue;
      if (distance <= kScanned) pieces[i + 1].blanks.append(kScanned + 1 - distance, ' ');
      break;
    }
  }
}

// Operands of Intel syntax have blanks in them, which end an argument elsewhere. The text stays as
// it is where none can be written otherwise.
std::string in_att_syntax(std::string_view text, std::uint16_t machine) {
  std::string result;
  bool changed = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view piece = first_argument(rest, machine);
    const auto begin = static_cast<std::size_t>(
        piece.empty() ? rest.size() : static_cast<std::size_t>(piece.data() - rest.data()));
    result += rest.substr(0, begin);
    rest.remove_prefix(begin + piece.size());
    const std::size_t at = piece.find('@');
    const std::string_view size = piece.substr(0, at == piece.npos ? 0 : at);
    const auto att = is_size(size) ? intel_to_att(piece.substr(at + 1), size.back() - '0', machine)
                                   : std::nullopt;
    changed = changed || att.has_value();
    result += att ? fmt::format("{}@{}", size, *att) : std::string(piece);
  }
  return changed ? result : std::string(text);
}

}  // namespace

std::string respell_arguments(std::string_view text, std::uint16_t machine) {
  if (machine != EM_X86_64 && machine != EM_386) return std::string(text);
  const std::string att = in_att_syntax(text, machine);
  std::vector<Piece> pieces = split(att);
  for (Piece& piece : pieces) piece.text = respell(piece.text);
  widen(pieces);
  std::string result;
  for (const Piece& piece : pieces) result += piece.blanks + piece.text;
  return result;
}

}  // namespace reprobe
