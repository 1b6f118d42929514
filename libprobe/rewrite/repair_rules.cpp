#include "libprobe/rewrite/repair_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libprobe/notes/rules.hpp"

namespace reprobe {
namespace {

constexpr std::array kRules = {
    RepairRule{repair::dangling, "removes notes whose code is not in the file"},
    RepairRule{repair::ambiguous, "removes doubtful notes, with --remove-ambiguous"},
    RepairRule{repair::notes_stripped, "writes notes that are gone anew, from the index"},
    RepairRule{repair::other_section, "writes notes that stand in a section of another name"},
    RepairRule{repair::base_missing, "puts .stapsdt.base back"},
    RepairRule{repair::base_delta, "moves .stapsdt.base to where perf computes the right offset"},
    RepairRule{repair::base_shift, "writes location, base and semaphore as the file's addresses"},
    RepairRule{repair::section_order, "moves .note.stapsdt behind .probes in the header table"},
    RepairRule{rule::note_sections, "joins several .note.stapsdt sections"},
    RepairRule{rule::note_alloc, "puts the notes into a section that is not loaded"},
    RepairRule{rule::note_foreign, "moves notes of other owners to a section of their own"},
    RepairRule{rule::note_section_type, "gives the section of the notes the type SHT_NOTE"},
    RepairRule{rule::note_align, "pads the notes to 4 and says so in sh_addralign"},
    RepairRule{rule::note_namesz, "writes the owner's name with its size of 8"},
    RepairRule{rule::note_type, "writes the type 3"},
    RepairRule{rule::note_args_nul, "adds the NUL behind the arguments"},
    RepairRule{rule::note_descsz, "ends the descriptor at the arguments' NUL"},
    RepairRule{rule::note_padding, "pads every note, the last one too, inside the section"},
    RepairRule{rule::note_gap, "closes gaps between notes"},
    RepairRule{repair::semaphore_section, "adds the .probes header that bcc and perf look for"},
    RepairRule{repair::semaphore_dangling, "corrects a counter's address that points nowhere"},
    RepairRule{repair::semaphore_undefined, "fills in a counter that the symbols name"},
    RepairRule{repair::semaphore_conflict, "gives the notes of one probe one counter"},
    RepairRule{repair::semaphore_relro_page,
               "gives the counters' segment pages of the file that nothing else maps"},
    RepairRule{repair::arguments, "respells arguments, with --respell"},
    RepairRule{repair::legacy_record, "writes notes for the records of SystemTap up to 1.3"},
};

Result<std::set<std::string, std::less<>>> names_of(std::span<const std::string> names) {
  std::set<std::string, std::less<>> result;
  for (const std::string& name : names) {
    if (std::ranges::find(kRules, name, &RepairRule::name) == kRules.end()) {
      std::string known;
      for (const RepairRule& rule : kRules) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", rule.name);
      }
      return fail(ErrorCode::usage, "", "there is no repair " + name, "repairs: " + known);
    }
    result.insert(name);
  }
  return result;
}

}  // namespace

std::span<const RepairRule> repair_rules() { return kRules; }

Result<RepairChoice> RepairChoice::of(std::span<const std::string> only,
                                      std::span<const std::string> skip) {
  auto only_names = names_of(only);
  auto skip_names = names_of(skip);
  if (!only_names) return tl::unexpected(only_names.error());
  if (!skip_names) return tl::unexpected(skip_names.error());
  RepairChoice choice;
  choice.only_ = std::move(*only_names);
  choice.skip_ = std::move(*skip_names);
  return choice;
}

bool RepairChoice::wants(std::string_view rule) const {
  return (only_.empty() || only_.contains(rule)) && !skip_.contains(rule);
}

}  // namespace reprobe
