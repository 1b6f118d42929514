#include "libprobe/verify/compare_sleds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "libprobe/audit/probe.hpp"
#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/rewrite/sled/stack_arguments.hpp"
#include "libprobe/rewrite/sled/undo.hpp"
#include "libprobe/rewrite/unwind_index.hpp"
#include "libprobe/verify/check_index.hpp"
#include "libprobe/verify/compare_code.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

struct FileRange {
  std::uint64_t begin{};
  std::uint64_t end{};
};

class SledComparer {
 public:
  SledComparer(const ElfFile& before, const ElfFile& after)
      : before_(before),
        after_(after),
        old_probes_(read_probes(before)),
        new_probes_(read_probes(after)) {}

  std::vector<Finding> run() {
    compare_undo();
    check_index(before_, after_, new_probes_, out_);
    if (pair_probes()) {
      compare_functions();
      compare_arguments();
    }
    compare_segments();
    compare_unwind();
    compare_bytes();
    return std::move(out_);
  }

 private:
  void compare_undo() {
    const auto plan = plan_undo(after_);
    const auto original = plan ? apply(*plan, after_.source()) : tl::unexpected(plan.error());
    const auto bytes =
        before_.source().slice(FileOffset{0}, Size{before_.source().size()}, "the original");
    if (!original || !bytes || !std::ranges::equal(*original, *bytes)) {
      out_.push_back(verify_finding("verify-undo", "the record does not give the original back"));
    }
  }

  // Notes keep their order: the n-th of the result is the n-th of the original.
  bool pair_probes() {
    const auto& old = old_probes_.probes;
    const auto& now = new_probes_.probes;
    if (old.size() != now.size()) {
      out_.push_back(
          verify_finding(old.size() > now.size() ? "verify-probe-lost" : "verify-probe-added",
                         fmt::format("{} probes; expected {}", now.size(), old.size())));
      return false;
    }
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (old[i].note.provider != now[i].note.provider || old[i].note.name != now[i].note.name ||
          old[i].semaphore != now[i].semaphore || old[i].verdict != now[i].verdict) {
        out_.push_back(verify_finding(
            "verify-probe-lost",
            fmt::format("{}:{} is not what it was", old[i].note.provider, old[i].note.name)));
        return false;
      }
      const auto [it, added] = sled_of_site_.emplace(old[i].site, now[i].site);
      if (!added && it->second != now[i].site) {
        out_.push_back(verify_finding("verify-probe-lost", "one site has two sleds"));
        return false;
      }
      site_of_sled_.emplace(now[i].site, old[i].site);
    }
    return true;
  }

  void compare_functions() {
    std::vector<VirtAddr> sites;
    for (const auto& [site, sled] : sled_of_site_) sites.push_back(site);
    const auto flows = FlowReader::open(before_, sites);
    if (!flows) {
      out_.push_back(verify_finding("verify-code", flows.error().message));
      return;
    }
    const auto lookup = [](const std::map<VirtAddr, VirtAddr>& map, VirtAddr at) {
      const auto it = map.find(at);
      return it == map.end() ? std::nullopt : std::optional(it->second);
    };
    const SledOf site_of = [&](VirtAddr at) {
      return lookup(sled_of_site_, at) ? std::optional(at) : std::nullopt;
    };
    const SledOf sled_of = [&](VirtAddr at) { return lookup(site_of_sled_, at); };
    std::set<VirtAddr> seen;
    for (const VirtAddr site : sites) {
      const auto flow = flows->function_of(site);
      if (!flow || !seen.insert(flow->function.start).second) continue;
      ComparedCode compared = compare_code(*flow, before_, after_, site_of, sled_of);
      std::ranges::move(compared.findings, std::back_inserter(out_));
      lower_.merge(compared.lower);
      for (const auto& [begin, end] : compared.proven)
        allow_address(begin, end.value - begin.value);
    }
  }

  // What the notes say of the stack follows the stack pointer.
  void compare_arguments() {
    for (std::size_t i = 0; i < old_probes_.probes.size(); ++i) {
      const Probe& old = old_probes_.probes[i];
      const auto lower = lower_.find(old.site.value);
      const auto expected =
          correct_stack_arguments(old.note.arguments, lower == lower_.end() ? 0 : lower->second);
      const bool moved = old.site != new_probes_.probes[i].site;
      if ((moved && lower == lower_.end()) || expected != new_probes_.probes[i].note.arguments) {
        out_.push_back(verify_finding("verify-probe-lost",
                                      fmt::format("{}:{} has other arguments than at its site",
                                                  old.note.provider, old.note.name)));
      }
    }
  }

  // The loaded image: every old segment with its old bytes, one may have grown; what is new lies
  // elsewhere.
  void compare_segments() {
    for (const Segment& old : before_.segments()) {
      if (old.type != PT_LOAD) continue;
      const auto same = [&](const Segment& now) {
        return now.type == PT_LOAD && now.vaddr == old.vaddr && now.offset == old.offset &&
               now.flags == old.flags && now.align == old.align && now.filesz >= old.filesz &&
               now.memsz >= old.memsz && (now.memsz == old.memsz || old.memsz == old.filesz);
      };
      if (std::ranges::none_of(after_.segments(), same)) {
        out_.push_back(verify_finding(
            "verify-segment", fmt::format("the segment at {:#x} changed", old.vaddr.value)));
      }
    }
    for (const std::uint32_t type :
         {PT_INTERP, PT_NOTE, PT_DYNAMIC, PT_TLS, PT_GNU_RELRO, PT_GNU_STACK, PT_GNU_PROPERTY}) {
      if (texts_of(before_, type) != texts_of(after_, type)) {
        out_.push_back(verify_finding(
            "verify-segment", fmt::format("a program header of type {:#x} means another", type)));
      }
    }
  }

  // What the segments of a type hold, put together: two that touch may have become one. The index
  // is compared with the notes.
  [[nodiscard]] static Bytes texts_of(const ElfFile& file, std::uint32_t type) {
    const auto index = type == PT_NOTE ? find_index(file) : std::nullopt;
    Bytes bytes;
    for (const Segment& segment : file.segments()) {
      if (segment.type != type) continue;
      const auto view = file.source().slice(segment.offset, segment.filesz, "a segment");
      if (!view) continue;
      bytes.insert(bytes.end(), view->begin(), view->end());
      if (!index || index->segment != segment.index) continue;
      const auto at = bytes.end() - static_cast<std::ptrdiff_t>(segment.filesz.value) +
                      static_cast<std::ptrdiff_t>(index->offset.value - segment.offset.value);
      std::fill_n(at, index->size.value, std::byte{0});
    }
    return bytes;
  }

  // Each function unwinds as it did, wherever its FDE stands now.
  void compare_unwind() {
    const auto old = read_unwind_index(before_);
    const auto now = read_unwind_index(after_);
    if (!old || !now) {
      if (old) out_.push_back(verify_finding("verify-unwind", "the unwind tables cannot be read"));
      return;
    }
    if (now->found == UnwindIndex::Found::by_registration ||
        old->found == UnwindIndex::Found::by_registration) {
      return;  // the functions' own records are not touched
    }
    std::optional<CfiCie> old_cie;
    std::optional<CfiCie> new_cie;
    for (const UnwindEntry& entry : old->entries) {
      const auto after =
          std::ranges::upper_bound(now->entries, entry.start, {}, &UnwindEntry::start);
      if (after == now->entries.begin()) return unwind_differs(entry.start);
      const UnwindEntry& found = *std::prev(after);
      if (found.start == entry.start && found.fde == entry.fde) continue;
      const auto a = read_fde(before_, entry.fde, old_cie);
      const auto b = read_fde(after_, found.fde, new_cie);
      if (!a || !b) return unwind_differs(entry.start);
      const auto rows_a = read_rows(before_, *old_cie, *a);
      const auto rows_b = read_rows(after_, *new_cie, *b);
      if (!rows_a || !rows_b || a->has_lsda || b->has_lsda) return unwind_differs(entry.start);
      for (const PlacedRow& row : rows_a->rows) {
        if (!in_range(row.start.value, b->start.value, b->size.value) ||
            !(rows_b->at(row.start) == row.row)) {
          return unwind_differs(row.start);
        }
      }
    }
    if (old->table) {
      allow_address(old->table->entries, old->entries.size() * kUnwindIndexEntry);
    }
  }
  void unwind_differs(VirtAddr at) {
    out_.push_back(
        verify_finding("verify-unwind", fmt::format("{:#x} unwinds in another way", at.value)));
  }

  void allow_address(VirtAddr at, std::uint64_t size) {
    if (const auto offset = before_.offset_of(at)) {
      allowed_.push_back({offset->value, offset->value + size});
    }
  }

  // What may differ otherwise: headers, whose meaning was compared, and the notes.
  void allow_headers() {
    const auto& header = before_.header();
    allowed_.push_back({0, header.is64 ? 64U : 52U});
    const auto& now = after_.header();
    const std::uint64_t table = now.phoff.value;
    allowed_.push_back({table, table + now.phnum * now.phentsize});
    allowed_.push_back({header.phoff.value, header.phoff.value + header.phnum * header.phentsize});
    allowed_.push_back({header.shoff.value, header.shoff.value + header.shnum * header.shentsize});
    // What the index says is compared with the notes.
    if (const auto index = find_index(before_)) {
      allowed_.push_back({index->offset.value, index->offset.value + index->size.value});
    }
    for (const Section& section : before_.sections()) {
      const Section* moved = after_.section_at(section.index);
      const bool gone = moved != nullptr && moved->offset != section.offset;
      const bool notes = section.type == SHT_NOTE && section.name == kStapsdtSection;
      // What stood behind the program headers may have made room for one more.
      const bool made_room = gone && section.allocated() && !section.executable() &&
                             section.type != SHT_NOBITS && same_contents(section, *moved);
      const bool symbols = section.type == SHT_SYMTAB && moved != nullptr &&
                           moved->offset == section.offset && same_symbols(section, *moved);
      if (notes || made_room || symbols) {
        allowed_.push_back({section.offset.value, section.offset.value + section.size.value});
      }
    }
  }
  // Each symbol is what it was, and follows its section where that has moved.
  [[nodiscard]] bool same_symbols(const Section& old, const Section& now) const {
    const auto a = before_.symbol_table(old);
    const auto b = after_.symbol_table(now);
    if (!a || !b || a->size() != b->size()) return false;
    for (std::uint32_t i = 0; i < a->size(); ++i) {
      const Symbol x = a->at(i);
      const Symbol y = b->at(i);
      if (x.name_offset != y.name_offset || x.type != y.type || x.binding != y.binding ||
          x.other != y.other || x.shndx != y.shndx || x.reserved_shndx != y.reserved_shndx) {
        return false;
      }
      const Section* from = x.in_section() ? before_.section_at(x.shndx) : nullptr;
      const Section* to = x.in_section() ? after_.section_at(x.shndx) : nullptr;
      // Linkers give symbols outside of any section, __ehdr_start, some section's number.
      const bool inside = from != nullptr && to != nullptr && x.value >= from->addr &&
                          x.value.value - from->addr.value <= from->size.value;
      const std::uint64_t moved_by = inside ? to->addr.value - from->addr.value : 0;
      // The base's becomes as empty as the base.
      const bool emptied = y.size.value == 0 && to != nullptr && to->size.value == 0;
      if (y.value.value - x.value.value != moved_by || (x.size != y.size && !emptied)) return false;
    }
    return true;
  }
  [[nodiscard]] bool same_contents(const Section& old, const Section& now) const {
    const auto a = before_.contents(old);
    const auto b = after_.contents(now);
    return a && b && std::ranges::equal(*a, *b);
  }

  void compare_bytes() {
    allow_headers();
    std::ranges::sort(allowed_, {}, &FileRange::begin);
    std::uint64_t at = 0;
    const std::uint64_t end = before_.source().size();
    for (const FileRange& range : allowed_) {
      if (range.begin > at && !same_bytes(at, std::min(range.begin, end))) return;
      at = std::max(at, range.end);
    }
    if (at < end) same_bytes(at, end);
  }

  bool same_bytes(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return true;
    const auto a = before_.source().slice(FileOffset{begin}, Size{end - begin}, "bytes");
    const auto b = after_.source().slice(FileOffset{begin}, Size{end - begin}, "bytes");
    if (!a || !b) {
      out_.push_back(verify_finding("verify-bytes", "the result is shorter than the original"));
      return false;
    }
    const auto [x, y] = std::ranges::mismatch(*a, *b);
    if (x == a->end()) return true;
    // The gap behind the code is zeros in the original, and its segment covers it now.
    const std::uint64_t where = begin + static_cast<std::uint64_t>(x - a->begin());
    if (is_new_room(where)) {
      const auto stop = std::min(end, room_end(where));
      return same_bytes(stop, end);
    }
    out_.push_back(verify_finding(
        "verify-bytes", fmt::format("the byte at {:#x} is none that sleds need; expected {:#04x}, "
                                    "found {:#04x}",
                                    where, static_cast<unsigned>(*x), static_cast<unsigned>(*y))));
    return false;
  }

  // In a segment of the result, and in none of the original.
  [[nodiscard]] bool is_new_room(std::uint64_t offset) const {
    const auto holds = [&](const Segment& s) {
      return s.type == PT_LOAD && in_range(offset, s.offset.value, s.filesz.value);
    };
    return std::ranges::none_of(before_.segments(), holds) &&
           std::ranges::any_of(after_.segments(), holds);
  }
  [[nodiscard]] std::uint64_t room_end(std::uint64_t offset) const {
    std::uint64_t end = offset + 1;
    for (const Segment& s : after_.segments()) {
      if (s.type == PT_LOAD && in_range(offset, s.offset.value, s.filesz.value)) {
        end = std::max(end, s.offset.value + s.filesz.value);
      }
    }
    return end;
  }

  const ElfFile& before_;
  const ElfFile& after_;
  ProbeFile old_probes_;
  ProbeFile new_probes_;
  std::map<VirtAddr, VirtAddr> sled_of_site_;
  std::map<VirtAddr, VirtAddr> site_of_sled_;
  std::map<std::uint64_t, std::int64_t> lower_;
  std::vector<FileRange> allowed_;
  std::vector<Finding> out_;
};

}  // namespace

bool has_sleds(const ElfFile& file) { return file.section(kUndoSection) != nullptr; }

std::vector<Finding> compare_sleds(const ElfFile& before, const ElfFile& after) {
  return SledComparer(before, after).run();
}

}  // namespace reprobe
