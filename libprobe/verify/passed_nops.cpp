#include "libprobe/verify/passed_nops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "libprobe/verify/verify_finding.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {
namespace {

using namespace std::string_view_literals;

// nop; nopw %cs:0x0(%rax,%rax,1), and nopl 0x0(%rax,%rax,1).
constexpr std::array<std::string_view, 2> kSleds{"\x90\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00"sv,
                                                 "\x0f\x1f\x44\x00\x00"sv};
// Intel SDM volume 2, NOP: the recommended forms of 1 to 9 bytes.
constexpr std::array<std::string_view, 9> kFillers{
    "\x90"sv,
    "\x66\x90"sv,
    "\x0f\x1f\x00"sv,
    "\x0f\x1f\x40\x00"sv,
    "\x0f\x1f\x44\x00\x00"sv,
    "\x66\x0f\x1f\x44\x00\x00"sv,
    "\x0f\x1f\x80\x00\x00\x00\x00"sv,
    "\x0f\x1f\x84\x00\x00\x00\x00\x00"sv,
    "\x66\x0f\x1f\x84\x00\x00\x00\x00\x00"sv,
};

class NopComparer {
 public:
  NopComparer(const ElfFile& before, const ElfFile& after, const std::set<VirtAddr>& sleds,
              std::span<const StandsFor> stands)
      : before_(before), after_(after), sleds_(sleds) {
    for (const StandsFor& step : stands) old_.insert(step.old.begin(), step.old.end());
  }

  // The first nop that is none of these.
  std::optional<VirtAddr> first_unknown(const StandsFor& step) {
    auto old = step.old_nops.begin();
    for (const Executed& code : step.now) {
      if (!code.nop) continue;
      const Size size{code.end.value - code.begin.value};
      const std::string_view nop = as_text(after_.bytes_at(code.begin, size));
      const auto is_same = [&](VirtAddr at) { return as_text(before_.bytes_at(at, size)) == nop; };
      if (is_same(code.begin) || is_in_sled(code.begin) || fills(code.begin, nop)) {
        continue;
      }
      // Those of the original are passed in its order.
      old = std::find_if(old, step.old_nops.end(), is_same);
      if (old == step.old_nops.end()) return code.begin;
      ++old;
    }
    return std::nullopt;
  }

 private:
  bool is_in_sled(VirtAddr at) {
    const auto behind = sleds_.upper_bound(at);
    if (behind == sleds_.begin()) return false;
    const VirtAddr sled = *std::prev(behind);
    const std::uint64_t end = sled.value + sled_at(after_, sled).value;
    if (at.value >= end) return false;
    filled_to_ = VirtAddr{end};
    return true;
  }

  // Behind a sled, where the nops of the original had more bytes, and in place of an instruction of
  // the original that is executed in a stub, further on.
  bool fills(VirtAddr at, std::string_view nop) {
    const bool known = nop.size() <= kFillers.size() && kFillers[nop.size() - 1] == nop;
    if (!known || !has_room(at, nop.size())) return false;
    filled_to_ = VirtAddr{at.value + nop.size()};
    return true;
  }

  [[nodiscard]] bool has_room(VirtAddr at, std::size_t size) const {
    const auto code = old_.contains(at) ? read_x86(before_, at) : std::nullopt;
    if (code && size == std::min<std::uint64_t>(code->size.value, kFillers.size())) return true;
    return at == filled_to_ && (!code || code->operation == Operation::nop);
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const std::set<VirtAddr>& sleds_;
  std::set<VirtAddr> old_;             // where the original is on the proven ways
  std::optional<VirtAddr> filled_to_;  // the end of the last sled, or filler
};

}  // namespace

Size sled_at(const ElfFile& file, VirtAddr at) {
  for (const std::string_view sled : kSleds) {
    if (as_text(file.bytes_at(at, Size{sled.size()})) == sled) return Size{sled.size()};
  }
  return Size{0};
}

void compare_passed_nops(const ElfFile& before, const ElfFile& after,
                         const std::set<VirtAddr>& sleds, std::span<const StandsFor> stands,
                         std::vector<Finding>& out) {
  NopComparer comparer(before, after, sleds, stands);
  for (const StandsFor& step : stands) {
    const auto at = comparer.first_unknown(step);
    if (!at) continue;
    Finding finding = verify_finding(
        "verify-code",
        fmt::format("{:#x} is a nop that is neither a sled nor the original's", at->value));
    finding.site = at->value;
    out.push_back(std::move(finding));
    return;
  }
}

}  // namespace reprobe
