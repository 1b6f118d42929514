#include "libprobe/notes/intel_operand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "libprobe/notes/operand.hpp"

namespace reprobe {
namespace {

// A displacement is signed, of 32 bits (Intel SDM volume 1, 3.7.5).
constexpr std::int64_t kMostDisplacement = 0x7fffffff;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Takes "qword ptr " off the front; false where it states another size.
bool take_size(std::string_view& text, int size) {
  constexpr std::array<std::pair<std::string_view, int>, 4> kSizes{
      {{"byte ptr ", 1}, {"word ptr ", 2}, {"dword ptr ", 4}, {"qword ptr ", 8}}};
  for (const auto& [word, bytes] : kSizes) {
    const std::string_view begin = text.substr(0, word.size());
    if (!std::ranges::equal(begin, word, {}, lower)) continue;
    text.remove_prefix(word.size());
    return bytes == std::abs(size);
  }
  return true;
}

std::optional<std::int64_t> decimal(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// base + index * scale + displacement
class Address {
 public:
  explicit Address(std::uint16_t machine) : machine_(machine) {}

  // "rdi+8", "rax + 4*rcx - 16"
  bool add_terms(std::string_view text) {
    bool minus = false;
    for (bool more = true; more;) {
      const auto end = text.find_first_of("+-", text.starts_with('-') ? 1 : 0);
      more = end != std::string_view::npos;
      if (!add_term(without_blanks(text.substr(0, end)), minus)) return false;
      if (!more) break;
      minus = text[end] == '-';
      text.remove_prefix(end + 1);
    }
    return true;
  }

  [[nodiscard]] std::optional<std::string> text() {
    constexpr std::array<std::string_view, 2> kStack{"rsp", "esp"};
    const auto is_stack = [&](std::string_view name) {
      return std::ranges::find(kStack, name) != kStack.end();
    };
    // The two of a sum may change places; the stack pointer is never the index.
    if (is_stack(index_) && scale_ == 1) std::swap(base_, index_);
    if (base_.empty() || is_stack(index_)) return std::nullopt;
    if (displacement_ > kMostDisplacement || displacement_ < -kMostDisplacement - 1) {
      return std::nullopt;
    }
    if (index_.empty()) return fmt::format("{}(%{})", displacement_, base_);
    return fmt::format("{}(%{},%{},{})", displacement_, base_, index_, scale_);
  }

  bool add_number(std::string_view text, bool minus) {
    const auto number = decimal(text);
    if (!number || *number > kMostDisplacement || *number < -kMostDisplacement - 1) return false;
    displacement_ += minus ? -*number : *number;
    return true;
  }

 private:
  [[nodiscard]] bool is_address_register(std::string_view name) const {
    return is_register(name, machine_) && name != "rip" && name != "eip" &&
           (name.starts_with('r') || name.starts_with('e'));
  }

  bool add_term(std::string_view term, bool minus) {
    if (const auto times = term.find('*'); times != std::string_view::npos) {
      std::string_view name = without_blanks(term.substr(0, times)),
                       factor = without_blanks(term.substr(times + 1));
      if (!is_address_register(name)) std::swap(name, factor);
      const auto scale = decimal(factor);
      const bool known = scale && (*scale == 1 || *scale == 2 || *scale == 4 || *scale == 8);
      if (minus || !known || !index_.empty() || !is_address_register(name)) return false;
      index_ = name;
      scale_ = *scale;
      return true;
    }
    if (!is_address_register(term)) return add_number(term, minus);
    if (minus) return false;
    std::string& free = base_.empty() ? base_ : index_;
    if (!free.empty()) return false;
    free = term;
    return true;
  }

  std::uint16_t machine_;
  std::string base_, index_;
  std::int64_t scale_{1};
  std::int64_t displacement_{};
};

}  // namespace

std::optional<std::string> intel_to_att(std::string_view operand, int size, std::uint16_t machine) {
  if (operand.find_first_of("%$(:") != std::string_view::npos) return std::nullopt;
  if (is_register(operand, machine)) return fmt::format("%{}", operand);
  if (!take_size(operand, size)) return std::nullopt;
  operand = without_blanks(operand);
  // "[rsp + 16]", and "16[rsp]" of gcc.
  const auto open = operand.find('[');
  if (open == std::string_view::npos || !operand.ends_with(']')) return std::nullopt;
  Address address(machine);
  if (open != 0 && !address.add_number(operand.substr(0, open), false)) return std::nullopt;
  if (!address.add_terms(operand.substr(open + 1, operand.size() - open - 2))) return std::nullopt;
  return address.text();
}

}  // namespace reprobe
