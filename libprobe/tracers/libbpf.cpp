// libbpf: collect_usdt_targets() of usdt.c. It attaches all notes of one provider:name together,
// so that one of them can refuse the others.
#include <fmt/format.h>

#include <unordered_set>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_libbpf {
namespace {

constexpr std::size_t kMaxSpecs = 256;  // BPF_USDT_MAX_SPEC_CNT

// Would parse_usdt_note() return -EINVAL?
std::optional<Descriptor> parse_usdt_note(const Facts& facts, const Section& section,
                                          const RawNote& raw) {
  const ElfHeader& header = facts.file.header();
  const auto contents = facts.file.contents(section);
  if (!contents || raw.type != NT_STAPSDT) return std::nullopt;
  // strncmp(.., "stapsdt", n_namesz): a shorter name that starts like it is as good.
  std::string_view owner = as_text(contents->subspan(raw.name));
  owner = owner.substr(0, raw.namesz);
  const std::string_view wanted("stapsdt", 8);
  const std::size_t compared = std::min<std::size_t>(raw.namesz, wanted.size());
  if (owner.substr(0, compared) != wanted.substr(0, compared)) return std::nullopt;
  const ByteView bytes = descriptor_bytes(facts, section, raw);
  auto read = decode_descriptor(bytes, header.word(), header.order);
  if (!read || read->fields.name.empty()) return std::nullopt;
  const std::size_t strings = read->fields.provider.size() + read->fields.name.size() + 2;
  if (3 * std::size_t{header.word()} + strings >= bytes.size()) return std::nullopt;
  return read;
}

// One attach: the notes of a provider:name.
class Attach {
 public:
  Attach(const Facts& facts, const Reading& reading, bool current, Report& report)
      : facts_(facts), reading_(reading), current_(current), report_(report) {}

  void group(const std::vector<std::size_t>& members) {
    refused_by_.reset();
    targets_.clear();
    specs_.clear();
    for (const std::size_t probe : members) {
      if (const Seen* seen = reading_.seen(probe)) one(probe, *seen);
    }
    if (specs_.size() > kMaxSpecs) {
      for (const std::size_t probe : members) {
        report_.fails(probe, Step::attach, reason::too_many_specs);
      }
      return;
    }
    if (!refused_by_) refuse_conflicts();
    if (refused_by_) return refuse(members);
    for (const Target& target : targets_) attached(target);
  }

 private:
  struct Target {
    std::size_t probe{};
    std::uint64_t offset{};
    bool has_counter{};
    std::uint64_t counter{};
  };

  void refuses(std::size_t probe, std::string_view reason, std::string detail = {}) {
    report_.fails(probe, Step::attach, reason, std::move(detail));
    if (!refused_by_) refused_by_ = probe;
  }

  void one(std::size_t probe, const Seen& seen) {
    const Section* base = facts_.base;
    std::uint64_t address = seen.location;
    if (base != nullptr && base->addr.value != 0 && (!current_ || seen.base != 0)) {
      address += base->addr.value - seen.base;
    }
    const Segment* segment = facts_.file.load_segment(VirtAddr{address});
    if (segment == nullptr || (segment->flags & PF_X) == 0) {
      return refuses(probe, reason::no_segment, fmt::format("{:#x}", address));
    }
    Target target{.probe = probe, .offset = address - segment->vaddr.value + segment->offset.value};
    if (seen.semaphore != 0) {
      const Segment* data = facts_.file.load_segment(VirtAddr{seen.semaphore});
      if (data == nullptr || (data->flags & PF_X) != 0) {
        return refuses(probe, reason::semaphore_segment, fmt::format("{:#x}", seen.semaphore));
      }
      target.has_counter = true;
      target.counter = seen.semaphore - data->vaddr.value + data->offset.value;
      if (refuses_counter(target.counter)) return refuses(probe, reason::semaphore_odd);
    }
    const std::string& arguments = facts_.probes[probe].note.arguments;
    const std::uint16_t machine = facts_.file.header().machine;
    const auto fault =
        current_ ? libbpf_arguments(arguments, machine) : libbpf_1_1_arguments(arguments, machine);
    if (fault) {
      report_argument(probe, *fault, report_);
      if (!refused_by_) refused_by_ = probe;
      return;
    }
    specs_.insert(arguments);
    targets_.push_back(target);
  }

  void refuse_conflicts() {
    for (const Target& target : targets_) {
      if (counters_.conflict(target.offset, target.has_counter ? target.counter : 0)) {
        refuses(target.probe, reason::semaphore_conflict);
      }
    }
  }

  void refuse(const std::vector<std::size_t>& members) {
    const bool dangling = facts_.dangling(*refused_by_);
    for (const std::size_t probe : members) {
      if (reading_.seen(probe) == nullptr || report_.failed_before(probe, Step::dangling)) continue;
      report_.fails(
          probe, Step::attach, dangling ? reason::sibling_dangling : reason::sibling,
          fmt::format("the note at {:#x}", facts_.probes[*refused_by_].note.file_offset.value));
    }
  }

  void attached(const Target& target) {
    report_.dangles(target.probe, reason::dangling_attached);
    check_site(facts_, target.probe, target.offset, report_);
    std::string_view fault = field_fault(facts_, target.probe);
    if (fault.empty() && target.has_counter) {
      fault = counter_fault(facts_, target.probe, target.counter);
    }
    if (!fault.empty()) report_.fails(target.probe, Step::semaphore, fault);
  }

  const Facts& facts_;
  const Reading& reading_;
  bool current_;
  Report& report_;
  std::vector<Target> targets_;  // of the group at hand
  std::unordered_set<std::string_view> specs_;
  std::optional<std::size_t> refused_by_;
  Counters counters_;  // of all groups: they are traced together
};

}  // namespace
}  // namespace as_libbpf

Reading read_like_libbpf(const Facts& facts) {
  Reading reading(facts);
  if (!native_class(facts.file.header())) {
    reading.refuse(reason::file_class);
    return reading;
  }
  bool malformed = false;
  const SectionsRead sections{.first_only = true, .notes_only = true};
  read_sections(facts, reading, sections, [&](const Section& section) {
    walk_like_libelf(facts, section, [&](const RawNote& raw) {
      const auto read = as_libbpf::parse_usdt_note(facts, section, raw);
      if (read) reading.take(section, raw, *read);
      malformed = malformed || !read;
      return !malformed;
    });
  });
  if (malformed) reading.refuse(reason::malformed_note);
  return reading;
}

void attach_with_libbpf(const Facts& facts, const Reading& reading, bool current, Report& report) {
  as_libbpf::Attach attach(facts, reading, current, report);
  for (const auto& members : facts.groups) attach.group(members);
}

void libbpf(const Facts& facts, Report& report) {
  const Reading reading = read_like_libbpf(facts);
  reading.tell(report);
  attach_with_libbpf(facts, reading, true, report);
}

void libbpf_1_1(const Facts& facts, Report& report) {
  const Reading reading = read_like_libbpf(facts);
  reading.tell(report);
  attach_with_libbpf(facts, reading, false, report);
}

}  // namespace reprobe::consumers
