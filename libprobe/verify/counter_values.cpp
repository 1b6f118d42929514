#include "libprobe/verify/counter_values.hpp"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "libprobe/probes/semaphore.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kRaisedBytes = 2;

// Two bytes of the file in data that may be written, where the kernel takes the offset.
bool can_be_raised(const ElfFile& file, VirtAddr address) {
  const Segment* segment = file.load_segment(address);
  const Section* section = file.section_containing(address);
  const auto offset = file.offset_of(address);
  return segment != nullptr && (segment->flags & PF_W) != 0 && (segment->flags & PF_X) == 0 &&
         (section == nullptr || !section->nobits()) && offset &&
         offset->value % kRaisedBytes == 0 &&
         file.bytes_at(address, Size{kRaisedBytes}).size() == kRaisedBytes;
}

// No program has a counter there: nothing is loaded, or it is code or what no section describes,
// and nobody may write there.
bool is_no_data(const ElfFile& file, VirtAddr address) {
  const Segment* segment = file.load_segment(address);
  if (segment == nullptr) return true;
  const Section* section = file.section_containing(address);
  return (segment->flags & PF_W) == 0 && (section == nullptr || section->executable());
}

class CounterProof {
 public:
  CounterProof(const ElfFile& file, const ProbeFile& probes) : file_(file), probes_(probes) {
    for (const SemaphoreFacts& facts : read_semaphores(file, probes)) {
      const bool works = facts.symbol && can_be_raised(file, *facts.symbol);
      symbols_.push_back(works ? facts.symbol : std::nullopt);
    }
  }

  std::vector<VirtAddr> run() {
    std::vector<VirtAddr> values;
    for (std::size_t i = 0; i < probes_.probes.size(); ++i) values.push_back(by_itself(i));
    // The notes of one probe name one counter.
    std::map<Name, std::set<VirtAddr>> named;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].value != 0 && probes_.probes[i].verdict != Verdict::dangling)
        named[name_of(i)].insert(values[i]);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].value == 0 || !symbols_[i]) continue;
      const auto all = named.find(name_of(i));
      if (all != named.end() && all->second.size() > 1) values[i] = *symbols_[i];
    }
    return values;
  }

 private:
  using Name = std::pair<std::string_view, std::string_view>;

  [[nodiscard]] Name name_of(std::size_t i) const {
    return {probes_.probes[i].note.provider, probes_.probes[i].note.name};
  }

  [[nodiscard]] VirtAddr by_itself(std::size_t i) const {
    const VirtAddr now = probes_.probes[i].semaphore;
    if (now.value != 0 && is_no_data(file_, now)) return symbols_[i].value_or(VirtAddr{0});
    if (now.value != 0 || !symbols_[i]) return now;
    // sys/sdt.h puts counters into .probes; elsewhere the name may be another thing's.
    const Section* section = file_.section_containing(*symbols_[i]);
    return section != nullptr && section->name == kProbesSection ? *symbols_[i] : now;
  }

  const ElfFile& file_;
  const ProbeFile& probes_;
  std::vector<std::optional<VirtAddr>> symbols_;  // of each probe, where a counter can be
};

}  // namespace

std::vector<VirtAddr> proven_counters(const ElfFile& file, const ProbeFile& probes) {
  // In a debug file the segments are those of the program, and their bytes are elsewhere.
  if (file.header().type == ET_REL || probes.debug_file) {
    std::vector<VirtAddr> values;
    for (const Probe& probe : probes.probes) values.push_back(probe.semaphore);
    return values;
  }
  return CounterProof(file, probes).run();
}

}  // namespace reprobe
