// Collects what one consumer makes of the probes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libprobe/tracers/consumers.hpp"
#include "libprobe/tracers/facts.hpp"

namespace reprobe::consumers {

class Report {
 public:
  // `selected`: as in consumer_verdicts().
  Report(const Facts& facts, std::string_view consumer, const std::vector<bool>& selected);

  // The consumer finds the note.
  void lists(std::size_t probe);
  // It fails a probe that it should trace. Ignored for other probes, and where the same step of
  // the probe has failed already.
  void fails(std::size_t probe, Step what, std::string_view reason, std::string detail = {},
             std::size_t argument = 0);
  // It lists or attaches a dangling note. Ignored for other probes, and the second time.
  void dangles(std::size_t probe, std::string_view reason, std::string detail = {});

  // Has the probe failed a step before `what`? Then what would come later does not matter.
  [[nodiscard]] bool failed_before(std::size_t probe, Step what) const;

  [[nodiscard]] std::uint16_t machine() const { return facts_.file.header().machine; }

  [[nodiscard]] ConsumerVerdict take() &&;

 private:
  void add(ConsumerFailure failure);

  const Facts& facts_;
  const std::vector<bool>& selected_;
  std::vector<unsigned char> steps_;  // by probe: a bit per failed Step
  std::unordered_map<std::string_view, std::size_t> kept_;
  ConsumerVerdict verdict_;
};

}  // namespace reprobe::consumers
