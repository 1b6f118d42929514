#include "libprobe/verify/code_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr std::array<std::string_view, 4> kLoadedStubs{
    kSledSection, kSlotSection, ".eh_frame.reprobe", ".eh_frame_hdr.reprobe"};
constexpr std::array<std::string_view, 5> kNotLoaded{kDebugFrame, kUndoSection, kUndoIndexSection,
                                                     kGuardsAtSite, kGuardsOn};

template <typename Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::ranges::find(names, name) != names.end();
}

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
    std::set<std::string_view> names;
    for (const Section& now :
         after_.sections().subspan(std::min(before_.sections().size(), after_.sections().size()))) {
      if (!names.insert(now.name).second || !may_be_new(now)) {
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
                      (old.info == now.info || symbols) &&
                      (old.flags == now.flags || (base && now.flags == (old.flags | SHF_ALLOC)));
    if (!same) return report(old, "another type, name, link or flags");
    if (old.addr == now.addr && old.offset == now.offset && old.size == now.size) return;
    if (base) {
      if (now.size.value != 0 || !is_loaded_where_it_says(now))
        report(old, "the base is misplaced");
    } else if (old.allocated()) {
      if (!has_moved(old, now)) report(old, "a loaded section has another place");
    } else if (old.addr != now.addr || !may_grow(old) || !behind_old_file(now)) {
      report(old, "has another place or size");
    } else if (old.name == kDebugFrame) {
      compare_records(old, now);
    } else if (old.index == before_.header().shstrndx && !begins_with(old, now)) {
      report(old, "the old section names are not kept");
    }
  }

  // Symbols and their names are compared by compare_stub_symbols(), the notes by the comparison of
  // the probes.
  [[nodiscard]] bool may_grow(const Section& old) const {
    return old.index == before_.header().shstrndx || strings_.contains(old.index) ||
           old.type == SHT_SYMTAB || holds_notes(old) || old.name == kDebugFrame;
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
    if (now.link != 0 || now.info != 0 || now.entsize.value != 0 || now.type != SHT_PROGBITS ||
        !behind_or_in_padding(now)) {
      return false;
    }
    if (is_one_of(now.name, kNotLoaded)) {
      if (now.flags != 0 || now.addr.value != 0 || before_.section(now.name) != nullptr) {
        return false;
      }
      if (now.name == kDebugFrame) {
        compare_debug_frame(before_, after_, now, Size{0}, out_);
      }
      return true;
    }
    const std::uint64_t flags = now.name == kSledSection ? SHF_ALLOC | SHF_EXECINSTR : SHF_ALLOC;
    return is_one_of(now.name, kLoadedStubs) && now.flags == flags &&
           before_.section(now.name) == nullptr && is_loaded_where_it_says(now) &&
           before_.load_segment(now.addr) == nullptr;
  }

  // Of a loaded section compare_process() and grown_ranges() know that its memory is new.
  [[nodiscard]] bool behind_or_in_padding(const Section& now) const {
    return now.allocated() || behind_old_file(now);
  }

  const ElfFile& before_;
  const ElfFile& after_;
  std::vector<Finding>& out_;
  std::set<std::uint32_t> strings_;  // of symbol tables
  std::size_t moved_{};
};

}  // namespace

void compare_code_sections(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  if (!before.sections().empty()) SectionComparer(before, after, out).run();
}

}  // namespace reprobe
