#include "libprobe/audit/note_order.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace reprobe {
namespace {

// GCC (varasm.c, default_function_section) puts main and constructors into .text.startup,
// destructors into .text.exit and what is never hot into .text.unlikely; gold and ld.bfd place all
// of these before .text.
bool is_placed_apart(const Probe& probe) {
  if (!probe.facts.function) return false;
  const std::string_view name = probe.facts.function->name;
  return name == "main" || name.starts_with("_GLOBAL__") || name.ends_with(".cold") ||
         name.find(".cold.") != std::string_view::npos;
}

bool is_comparable(const Probe& probe) {
  const SiteFacts& facts = probe.facts;
  return facts.place == Place::executable && facts.has_bytes && !is_placed_apart(probe);
}

// One that may stand for the others: on a nop, and in no run of dead notes.
bool is_witness(const Probe& probe, DeadRun run) {
  return probe.facts.nop.kind != NopKind::none && probe.facts.boundary.result != Boundary::no &&
         run != DeadRun::inside;
}

// The longest sequence of `of` (indices in note order) whose locations never fall. Of several the
// one of the higher locations: what a linker writes for a dropped section is too low.
std::vector<std::size_t> longest_rising(const std::vector<Probe>& probes,
                                        const std::vector<std::size_t>& of) {
  const auto location = [&](std::size_t i) { return probes[i].note.location.value; };
  // From the last to the first, so that a sequence of each length begins as high as it can.
  // heads[n] begins the best sequence of n + 1 notes, next[k] follows of[k] in it.
  std::vector<std::size_t> heads;
  std::vector<std::optional<std::size_t>> next(of.size());
  for (std::size_t k = of.size(); k-- > 0;) {
    const auto shorter = std::ranges::partition_point(
        heads, [&](std::size_t head) { return location(of[head]) >= location(of[k]); });
    if (shorter != heads.begin()) next[k] = *std::prev(shorter);
    if (shorter == heads.end()) {
      heads.push_back(k);
    } else {
      *shorter = k;
    }
  }
  std::vector<std::size_t> rising;
  if (heads.empty()) return rising;
  for (std::optional<std::size_t> k = heads.back(); k; k = next[*k]) rising.push_back(of[*k]);
  return rising;
}

bool is_near(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kNear = 0x1000;
  return (a < b ? b - a : a - b) < kNear;
}

// Orders the notes [begin, end), all of one section.
class SectionOrder {
 public:
  SectionOrder(const std::vector<Probe>& probes, const std::vector<bool>& dead,
               const std::vector<DeadRun>& runs, std::size_t begin, std::size_t end)
      : probes_(probes), dead_(dead), begin_(begin), end_(end) {
    std::vector<std::size_t> witnesses;
    for (std::size_t i = begin; i < end; ++i) {
      if (!dead[i] && is_comparable(probes[i]) && is_witness(probes[i], runs[i])) {
        witnesses.push_back(i);
      }
    }
    rising_ = longest_rising(probes, witnesses);
    // A linker that sorts functions by a profile, or a compiler that writes two sections in turn,
    // leaves an order that says nothing of one note.
    if (rising_.size() * 2 < witnesses.size()) rising_.clear();
  }

  void write(std::vector<NoteOrder>& orders) const {
    if (rising_.empty()) return;
    auto behind = rising_.begin();  // the first of them that is not before note i
    for (std::size_t i = begin_; i < end_; ++i) {
      while (behind != rising_.end() && *behind < i) ++behind;
      if (dead_[i] || !is_comparable(probes_[i])) continue;
      const std::uint64_t own = location(i);
      const bool first = behind == rising_.begin(), last = behind == rising_.end();
      const bool above = first || location(*std::prev(behind)) <= own;
      const bool below = last || own <= location(*behind);
      const bool near = (!first && is_near(location(*std::prev(behind)), own)) ||
                        (!last && is_near(location(*behind), own));
      orders[i] = above && below ? NoteOrder::in_order
                  : near         ? NoteOrder::out_of_order
                                 : NoteOrder::far_away;
    }
  }

 private:
  [[nodiscard]] std::uint64_t location(std::size_t i) const {
    return probes_[i].note.location.value;
  }

  const std::vector<Probe>& probes_;
  const std::vector<bool>& dead_;
  std::size_t begin_;
  std::size_t end_;
  std::vector<std::size_t> rising_;
};

}  // namespace

std::vector<NoteOrder> find_note_order(const std::vector<Probe>& probes,
                                       const std::vector<bool>& dead,
                                       const std::vector<DeadRun>& runs) {
  std::vector<NoteOrder> orders(probes.size(), NoteOrder::unknown);
  for (std::size_t begin = 0; begin < probes.size();) {
    std::size_t end = begin + 1;
    while (end < probes.size() && probes[end].note.section == probes[begin].note.section) ++end;
    SectionOrder(probes, dead, runs, begin, end).write(orders);
    begin = end;
  }
  return orders;
}

}  // namespace reprobe
