#include "libprobe/verify/code_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/compare_debug_frame.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// A table of very many headers that are wrong.
constexpr std::size_t kManySectionFindings = 100;
// What stands behind the program headers: the interpreter's name and notes.
constexpr std::size_t kMostMoved = 8;

constexpr std::string_view kDebugFrame = ".debug_frame";

// The sections that stubs and records need, and all that their headers say but for the place.
struct NewSection {
  std::string_view name;
  std::uint64_t flags;
  std::uint64_t align;
};
constexpr std::array<NewSection, 9> kNewSections{{
    {kSlotSection, SHF_ALLOC, 4096},
    {kSledSection, SHF_ALLOC | SHF_EXECINSTR, 16},
    {".eh_frame.reprobe", SHF_ALLOC, 4},
    {".eh_frame_hdr.reprobe", SHF_ALLOC, 4},
    {kDebugFrame, 0, 8},
    {kUndoIndexSection, 0, 1},
    {kUndoSection, 0, 1},
    {kGuardsAtSite, 0, 1},
    {kGuardsOn, 0, 1},
}};

class SectionComparer {
 public:
  SectionComparer(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out)
      : before_(before), after_(after), out_(out) {
    for (const Section& section : before.sections()) {
      if (section.type == SHT_SYMTAB && !section.allocated()) strings_.insert(section.link);
    }
  }

  void run() {
    if (before_.header().shstrndx != after_.header().shstrndx) {
      return report(Section{}, "the section names are another section");
    }
    compare_first();
    for (const Section& old : before_.sections()) {
      const Section* now = after_.section_at(old.index);
      if (now == nullptr) {
        report(old, "is not in the result");
      } else {
        compare(old, *now);
      }
      if (out_.size() > kManySectionFindings) return;
    }
    for (const Section& now :
         after_.sections().subspan(std::min(before_.sections().size(), after_.sections().size()))) {
      if (!may_be_new(now)) {
        report(now, "is new, and none that stubs need");
      }
      if (out_.size() > kManySectionFindings) return;
    }
  }

 private:
  void report(const Section& section, std::string_view what) {
    out_.push_back(
        verify_finding("verify-section", fmt::format("section {} {} at {:#x}: {}", section.index,
                                                     section.name, section.addr.value, what)));
  }

  // The header 0 belongs to no section: it is not read further than its size, link and info.
  void compare_first() {
    const Size size{before_.header().shentsize};
    const auto a = before_.source().slice(before_.header().shoff, size, "section header 0");
    const auto b = after_.source().slice(after_.header().shoff, size, "section header 0");
    if (!a || !b || !std::ranges::equal(*a, *b)) report(Section{}, "is not what it was");
  }

  void compare(const Section& old, const Section& now) {
    const bool symbols = old.type == SHT_SYMTAB && !old.allocated();
    const bool base = old.name == kBaseSection;
    const bool same = old.name == now.name && old.type == now.type && old.link == now.link &&
                      old.entsize == now.entsize && old.addralign == now.addralign &&
                      (old.info == now.info || (symbols && old.offset != now.offset)) &&
                      (old.flags == now.flags || (base && now.flags == (old.flags | SHF_ALLOC)));
    if (!same) return report(old, "another type, name, link or flags");
    if (old.addr == now.addr && old.offset == now.offset && old.size == now.size) return;
    const bool same_place = old.addr == now.addr && old.offset == now.offset;
    if (base && !same_place) {
      if (now.size.value != 0 || !is_loaded_where_it_says(now))
        report(old, "the base is misplaced");
    } else if (old.allocated()) {
      if (!has_moved(old, now)) report(old, "a loaded section has another place");
    } else if (have_shrunk(old, now)) {
      return;
    } else if (old.addr != now.addr || !may_grow(old) || now.size <= old.size ||
               !behind_old_file(now)) {
      report(old, "has another place or size");
    } else if (old.name == kDebugFrame) {
      compare_records(old, now);
    } else if (old.index == before_.header().shstrndx && !begins_with(old, now)) {
      report(old, "the old section names are not kept");
    } else if (old.index == before_.header().shstrndx && !strings_.contains(old.index) &&
               now.size.value != old.size.value + size_of_new_names()) {
      report(old, "has other bytes behind the names than the new ones");
    }
  }

  // Symbols and their names are compared by compare_stub_symbols(), the notes by the comparison of
  // the probes.
  [[nodiscard]] bool may_grow(const Section& old) const {
    return old.index == before_.header().shstrndx || strings_.contains(old.index) ||
           old.type == SHT_SYMTAB || holds_notes(old) || old.name == kDebugFrame;
  }

  // Notes whose arguments became shorter stay where they were, with nothing behind them.
  [[nodiscard]] bool have_shrunk(const Section& old, const Section& now) const {
    if (!holds_notes(old) || old.addr != now.addr || old.offset != now.offset) return false;
    if (now.size > old.size) return false;
    const FileOffset rest{old.offset.value + now.size.value};
    const auto bytes =
        after_.source().slice(rest, Size{old.size.value - now.size.value}, "room of the notes");
    return bytes && std::ranges::all_of(*bytes, [](std::byte b) { return b == std::byte{0}; });
  }

  [[nodiscard]] bool behind_old_file(const Section& now) const {
    const auto end = checked_add(now.offset.value, now.size.value);
    return now.offset.value >= before_.source().size() && end && *end <= after_.source().size();
  }

  [[nodiscard]] bool is_loaded_where_it_says(const Section& now) const {
    return std::ranges::any_of(after_.segments(), [&](const Segment& s) {
      const std::uint64_t from = now.addr.value - s.vaddr.value;
      return s.type == PT_LOAD && now.addr >= s.vaddr && from <= s.filesz.value &&
             now.size.value <= s.filesz.value - from && s.offset.value + from == now.offset.value;
    });
  }

  // Each with its NUL.
  [[nodiscard]] std::uint64_t size_of_new_names() const {
    std::uint64_t size = 0;
    for (const Section& now : after_.sections()) {
      if (now.index >= before_.sections().size()) size += now.name.size() + 1;
    }
    return size;
  }

  // It made place for program headers, with its contents.
  bool has_moved(const Section& old, const Section& now) {
    return old.flags == SHF_ALLOC && !old.nobits() && old.size == now.size &&
           behind_old_file(now) && is_loaded_where_it_says(now) && begins_with(old, now) &&
           ++moved_ <= kMostMoved;
  }

  [[nodiscard]] bool begins_with(const Section& old, const Section& now) const {
    const auto a = before_.contents(old);
    const auto b = after_.contents(now);
    return a && b && b->size() >= a->size() && std::ranges::equal(*a, b->first(a->size()));
  }

  void compare_records(const Section& old, const Section& now) {
    if (!begins_with(old, now)) return report(old, "the old records are not kept");
    compare_debug_frame(before_, after_, now, old.size, out_);
  }

  bool may_be_new(const Section& now) {
    // Each once, and in this order.
    const auto known = std::find_if(next_new_, kNewSections.end(),
                                    [&](const NewSection& s) { return s.name == now.name; });
    if (known == kNewSections.end() || now.type != SHT_PROGBITS || now.flags != known->flags ||
        now.addralign.value != known->align || now.link != 0 || now.info != 0 ||
        now.entsize.value != 0 || before_.section(now.name) != nullptr) {
      return false;
    }
    next_new_ = std::next(known);
    // Of a loaded section compare_process() and grown_ranges() know that its memory is new.
    if (now.allocated()) {
      return now.addr.value % known->align == 0 && is_loaded_where_it_says(now) &&
             before_.load_segment(now.addr) == nullptr;
    }
    if (now.addr.value != 0 || !behind_old_file(now)) return false;
    if (now.name == kDebugFrame) compare_debug_frame(before_, after_, now, Size{0}, out_);
    return true;
  }

  const ElfFile& before_;
  const ElfFile& after_;
  std::vector<Finding>& out_;
  std::set<std::uint32_t> strings_;  // of symbol tables
  decltype(kNewSections)::const_iterator next_new_{kNewSections.begin()};
  std::size_t moved_{};
};

}  // namespace

void compare_code_sections(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  if (!before.sections().empty()) SectionComparer(before, after, out).run();
}

}  // namespace reprobe
