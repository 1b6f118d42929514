#include "libprobe/rewrite/counter_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/probes/semaphore.hpp"
#include "libprobe/rewrite/layout_headers.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

// The smallest page of every machine with uprobes.
constexpr std::uint64_t kLeastPage = 0x1000;
// More than any machine's pages, and as far as Plan::append aligns.
constexpr std::uint64_t kMostPage = std::uint64_t{1} << 24;
// Segments of data; a hostile file can state very many.
constexpr std::size_t kMostMoved = 16;

bool is_writable_data(const Segment& segment) {
  return segment.type == PT_LOAD && segment.filesz.value != 0 && (segment.flags & PF_W) != 0;
}

// Can any counter be on a page that is mapped twice? (What the probes say costs more to read.)
bool has_several_data_segments(const ElfFile& file) {
  return std::ranges::count_if(file.segments(), is_writable_data) > 1;
}

// The segments whose counters are raised in an earlier mapping of their page. Where RELRO makes the
// counter itself read-only, or the kernel refuses it for another reason, a page of its own is no
// help.
std::set<std::uint32_t> segments_to_move(const ElfFile& file) {
  const ProbeFile probes = read_probes(file);
  const auto counters = read_semaphores(file, probes);
  std::set<std::uint32_t> segments;
  for (std::size_t i = 0; i < counters.size(); ++i) {
    const SemaphoreFacts& facts = counters[i];
    const bool dead = probes.probes[i].verdict == Verdict::dangling;
    const bool hopeless =
        facts.in_relro || !facts.writable || facts.copied || !facts.even || facts.executable;
    if (facts.mapped_before != nullptr && !dead && !hopeless) segments.insert(facts.segment->index);
  }
  return segments;
}

// Does what stands there in the file belong to the segment, at its distance?
bool moves_along(const Segment& segment, FileOffset offset, VirtAddr address) {
  const std::uint64_t within = offset.value - segment.offset.value;
  return offset >= segment.offset && within <= segment.memsz.value &&
         address.value - segment.vaddr.value == within;
}

// .bss has no bytes; linkers write the segment's end for its offset, rounded in ways of their own.
bool moves_along(const Segment& segment, const Section& section) {
  if (!section.allocated()) return false;
  if (moves_along(segment, section.offset, section.addr)) return true;
  const auto within = [&](std::uint64_t at, std::uint64_t start) {
    return at >= start && at - start <= segment.memsz.value;
  };
  return section.nobits() && (section.flags & SHF_TLS) == 0 &&
         within(section.offset.value, segment.offset.value) &&
         within(section.addr.value, segment.vaddr.value);
}

// Why the segment has to stay, or "".
std::string why_not_move(const ElfFile& file, const Segment& segment) {
  const ElfHeader& header = file.header();
  const std::uint64_t page = std::max(segment.align.value, kLeastPage);
  if (!std::has_single_bit(page) || page > kMostPage ||
      segment.offset.value % page != segment.vaddr.value % page) {
    return "the segment's alignment is none of pages";
  }
  if (segment.offset.value == 0 ||
      in_range(header.phoff.value, segment.offset.value, segment.filesz.value)) {
    return "the segment maps the file's headers";
  }
  if (!file.source().slice(segment.offset, segment.filesz, "a segment")) {
    return "the segment's bytes are not all in the file";
  }
  for (const Segment& other : file.segments()) {
    if (other.index == segment.index || other.filesz.value == 0) continue;
    const bool overlaps = in_range(other.vaddr.value, segment.vaddr.value, segment.memsz.value);
    if (!overlaps) continue;
    if (other.type == PT_LOAD) return "another segment is mapped over it";
    if (!moves_along(segment, other.offset, other.vaddr)) {
      return fmt::format("program header {} takes bytes of it from elsewhere", other.index);
    }
  }
  return "";
}

class SegmentMover {
 public:
  SegmentMover(const ElfFile& file, SectionTable headers)
      : file_(file),
        headers_(std::move(headers)),
        segments_(file.segments().begin(), file.segments().end()) {}

  Result<void> move(const Segment& segment) {
    const std::uint64_t page = std::max(segment.align.value, kLeastPage);
    const std::uint64_t first = segment.vaddr.value % page;
    const auto contents = file_.source().slice(segment.offset, segment.filesz, "a segment");
    if (!contents) return tl::unexpected(contents.error());
    Bytes bytes(static_cast<std::size_t>(first));
    bytes.insert(bytes.end(), contents->begin(), contents->end());
    const auto place = plan_.append(file_.source(), std::move(bytes), Size{page},
                                    "the counters' segment on pages of its own");
    if (!place) return tl::unexpected(place.error());
    const std::uint64_t by = place->value + first - segment.offset.value;
    for (Segment& header : segments_) {
      const bool inner = header.type != PT_LOAD && header.filesz.value != 0 &&
                         moves_along(segment, header.offset, header.vaddr);
      if (inner || header.index == segment.index) header.offset.value += by;
    }
    for (const Section& section : file_.sections()) {
      if (!moves_along(segment, section)) continue;
      auto done = headers_.set(section, SectionField::offset, section.offset.value + by,
                               "the section's segment stands on pages of its own");
      if (!done) return done;
      changed_.push_back(section.name);
    }
    return {};
  }

  Result<Plan> finish() {
    auto table = encode_headers(file_, segments_);
    if (!table) return tl::unexpected(table.error());
    auto done = plan_.replace(file_.source(), file_.header().phoff, std::move(*table),
                              "the counters' segment stands on pages of its own");
    if (done) done = headers_.write(plan_);
    if (!done) return tl::unexpected(done.error());
    return std::move(plan_);
  }

  [[nodiscard]] const std::vector<std::string>& changed() const { return changed_; }

 private:
  const ElfFile& file_;
  SectionTable headers_;
  std::vector<Segment> segments_;
  Plan plan_;
  std::vector<std::string> changed_;
};

}  // namespace

Result<void> give_counters_pages(FixPlan& fix, const ElfFile& file) {
  if (!has_several_data_segments(file)) return {};
  const auto after = ElfFile::open(planned_source(file.source(), fix.plan));
  if (!after) return tl::unexpected(after.error());
  const std::set<std::uint32_t> segments = segments_to_move(*after);
  if (segments.empty() || segments.size() > kMostMoved) return {};
  auto headers = SectionTable::of(*after);
  if (!headers) return {};  // without section headers no repair is made
  SegmentMover mover(*after, std::move(*headers));
  std::uint64_t bytes = 0;
  for (const std::uint32_t index : segments) {
    const Segment& segment = after->segments()[index];
    if (const std::string why = why_not_move(*after, segment); !why.empty()) {
      fix.refused.push_back({"", "", std::nullopt, std::string(kProbesSection),
                             fmt::format("{}: {}", repair::semaphore_relro_page, why)});
      continue;
    }
    if (auto done = mover.move(segment); !done) return done;
    bytes += segment.filesz.value;
  }
  if (bytes == 0) return {};
  auto moved = mover.finish();
  if (!moved) return tl::unexpected(moved.error());
  auto both = compose(file.source(), fix.plan, *moved);
  if (!both) return tl::unexpected(both.error());
  fix.plan = std::move(*both);
  fix.repairs.push_back(
      {std::string(repair::semaphore_relro_page),
       fmt::format("the counters' segment, {} bytes, has pages of the file of its own", bytes),
       std::nullopt});
  fix.changed_sections.insert(fix.changed_sections.end(), mover.changed().begin(),
                              mover.changed().end());
  return {};
}

}  // namespace reprobe
