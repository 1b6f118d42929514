#include "libprobe/verify/code_walker.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "libprobe/verify/slot_reading.hpp"

namespace reprobe {
namespace {

constexpr std::int64_t kGuard = 128;
// What a guarded sled has around it. The two have no effect together.
constexpr std::array<std::uint8_t, 5> kLower{0x48, 0x8d, 0x64, 0x24, 0x80};  // lea -128(%rsp),%rsp
constexpr std::array<std::uint8_t, 8> kRaise{0x48, 0x8d, 0xa4, 0x24,
                                             0x80, 0x00, 0x00, 0x00};  // lea 128(%rsp),%rsp

bool equals(ByteView bytes, std::span<const std::uint8_t> codes) {
  return std::ranges::equal(bytes, codes, {},
                            [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
}

}  // namespace

bool CodeWalker::settle(bool guards, const std::function<bool(VirtAddr)>& arrived) {
  std::map<VirtAddr, std::size_t> passed;  // since the call: sites before each address
  while (steps_ < kMostWalkSteps) {
    if (arrived && arrived(at_)) return !lowered_;
    const auto [first, fresh] = passed.emplace(at_, sites_.size());
    if (!fresh) {
      spins_from_ = first->second;
      return false;
    }
    if (const auto site = site_at_(at_)) {
      sites_.push_back(*site);
      lowers_.emplace_back(*site, lower_ + (lowered_ ? kGuard : 0));
      sled_of_ = *site;
    }
    if (guards && passes_slot()) continue;
    code_ = read_x86(file_, at_);
    lost_ = !code_;
    if (lost_) return false;
    visited_.push_back(at_);
    const bool nop = code_->operation == Operation::nop;
    executed_.push_back({at_, code_->end(), lower_ + (lowered_ ? kGuard : 0), nop});
    const bool jumps = code_->flow == ReadFlow::jump && code_->target;
    if (!jumps && !nop && !(guards && is_guard())) return !lowered_;
    if (nops_ == 0) return false;
    --nops_;
    at_ = jumps ? *code_->target : code_->end();
    if (jumps) sled_of_.reset();
  }
  return false;
}

std::vector<VirtAddr> CodeWalker::passed_for_ever(std::size_t count) const {
  std::vector<VirtAddr> sites = sites_;
  const std::size_t period = sites_.size() - *spins_from_;
  while (period != 0 && sites.size() < count) sites.push_back(sites[sites.size() - period]);
  if (sites.size() > count) sites.resize(count);
  return sites;
}

bool CodeWalker::is_guard_like() const {
  return equals(bytes(), kLower) || equals(bytes(), kRaise);
}

// Behind the nops of a sled: what it tests, and what it calls, has no effect on the program.
bool CodeWalker::passes_slot() {
  if (!sled_of_ || lowered_ || nops_ == 0) return false;
  const auto test = read_slot_test(file_, at_);
  if (!test) return false;
  --nops_;
  for (const SlotStep& step : test->steps) {
    visited_.push_back(step.begin);
    executed_.push_back({step.begin, step.end, lower_ + step.lower});
  }
  slots_.push_back({*sled_of_, test->slot, test->keeps_flags});
  at_ = test->next;
  sled_of_.reset();
  return true;
}

// Lower, nops, raise: in this order.
bool CodeWalker::is_guard() {
  const ByteView bytes = file_.bytes_at(at_, code_->size);
  if (!equals(bytes, lowered_ ? std::span<const std::uint8_t>(kRaise)
                              : std::span<const std::uint8_t>(kLower))) {
    return false;
  }
  lowered_ = !lowered_;
  return true;
}

}  // namespace reprobe
