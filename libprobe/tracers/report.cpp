#include "libprobe/tracers/report.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace reprobe::consumers {
namespace {

constexpr unsigned char bit(Step step) {
  return static_cast<unsigned char>(1U << static_cast<unsigned>(step));
}

}  // namespace

Report::Report(const Facts& facts, std::string_view consumer, const std::vector<bool>& selected)
    : facts_(facts), selected_(selected), steps_(facts.probes.size()) {
  verdict_.consumer = consumer;
}

void Report::add(ConsumerFailure failure) {
  if (!selected_.empty() && !selected_[failure.probe]) return;
  if (++kept_[failure.reason] > kFailuresKept) {
    ++verdict_.left_out;
    return;
  }
  verdict_.failures.push_back(std::move(failure));
}

void Report::lists(std::size_t probe) {
  if (selected_.empty() || selected_[probe]) ++verdict_.listed;
}

void Report::fails(std::size_t probe, Step what, std::string_view reason, std::string detail,
                   std::size_t argument) {
  if (!facts_.wanted(probe) || (steps_[probe] & bit(what)) != 0) return;
  steps_[probe] |= bit(what);
  add({.probe = probe,
       .what = what,
       .reason = reason,
       .detail = std::move(detail),
       .argument = argument});
}

void Report::dangles(std::size_t probe, std::string_view reason, std::string detail) {
  if (!facts_.dangling(probe) || steps_[probe] != 0) return;
  steps_[probe] |= bit(Step::dangling);
  add({.probe = probe, .what = Step::dangling, .reason = reason, .detail = std::move(detail)});
}

bool Report::failed_before(std::size_t probe, Step what) const {
  return (steps_[probe] & (bit(what) - 1U)) != 0;
}

ConsumerVerdict Report::take() && {
  for (std::size_t i = 0; i < facts_.probes.size(); ++i) {
    if (!selected_.empty() && !selected_[i]) continue;
    if (steps_[i] != 0) {
      ++verdict_.fail;
    } else if (facts_.wanted(i)) {
      ++verdict_.ok;
    }
    if ((steps_[i] & bit(Step::dangling)) != 0) ++verdict_.dangling;
  }
  std::ranges::stable_sort(verdict_.failures, {}, [](const ConsumerFailure& failure) {
    return std::tuple(failure.probe, failure.what);
  });
  return std::move(verdict_);
}

}  // namespace reprobe::consumers
