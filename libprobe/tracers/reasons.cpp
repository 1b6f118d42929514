#include "libprobe/tracers/reasons.hpp"

#include <algorithm>
#include <array>

#include "libprobe/tracers/consumers.hpp"

namespace reprobe {
namespace {

struct Reason {
  std::string_view word;
  std::string_view text;
  bool limit{};  // of the consumer, whatever the file is like
};

constexpr std::array kReasons{
    Reason{reason::file_class, "it does not read files of this class", true},
    Reason{reason::machine, "it does not know this machine", true},
    Reason{reason::section_type, "the section is not SHT_NOTE"},
    Reason{reason::section_alloc, "it skips a note section with SHF_ALLOC"},
    Reason{reason::section_order,
           "it looks for the notes behind .probes, and for .probes behind the code, in the order "
           "of the section headers"},
    Reason{reason::second_section, "it reads the first .note.stapsdt section only"},
    Reason{reason::section_unreadable, "it cannot read the section"},
    Reason{reason::scan_stopped, "its scan of the section ends before this note"},
    Reason{reason::base_missing, "it needs the section .stapsdt.base and finds no probe without"},
    Reason{reason::base_position, "it crashes on a .stapsdt.base at the start of the code"},
    Reason{reason::build_id, "it lists probes of files with a build-id of at least 16 bytes only"},
    Reason{reason::last_repeats,
           "the last note says the same as an earlier one, which makes it drop all probes of the "
           "file"},
    Reason{reason::name_not_c,
           "a name that is no identifier of C makes it list no probe of the file"},
    Reason{reason::note_layout, "with the padding it assumes it does not meet this note"},
    Reason{reason::note_end, "it wants the arguments' NUL to be the last byte of the descriptor"},
    Reason{reason::note_type, "it skips notes of another type than 3"},
    Reason{reason::note_owner, "it skips notes whose owner is not exactly \"stapsdt\""},
    Reason{reason::malformed_note, "one foreign or malformed note makes it refuse the whole file"},
    Reason{reason::below_code, "it drops a location below the first executable section"},
    Reason{reason::wrong_address, "it computes another address than the probe's"},
    Reason{reason::no_segment, "it finds no executable segment at the address that it computes"},
    Reason{reason::file_segment,
           "one note in no executable segment makes it refuse the whole file"},
    Reason{reason::outside_text, "it knows no code outside the section .text"},
    Reason{reason::sibling, "another note of this probe makes it refuse all of them"},
    Reason{reason::sibling_dangling,
           "a dangling note of the same probe makes it refuse the live ones too"},
    Reason{reason::one_per_address, "it keeps one note per address; the last one wins"},
    Reason{reason::not_a_nop,
           "a note in a function that points at no nop is an error that ends it"},
    Reason{reason::prefixed_nop, "the kernel refuses uprobes on a nop with a segment prefix"},
    Reason{reason::thumb, "the kernel has no uprobes in Thumb code", true},
    Reason{reason::misaligned, "the kernel refuses uprobes at an address that is not aligned"},
    Reason{reason::semaphore_unsupported, "it refuses probes with a semaphore", true},
    Reason{reason::semaphore_segment, "it wants the counter in a segment without code"},
    Reason{reason::semaphore_sibling,
           "it takes the first note's counter for all notes of the probe"},
    Reason{reason::semaphore_field,
           "the note does not name the counter that the program's code reads"},
    Reason{reason::semaphore_copied,
           "the counter is another module's: the one that the note names is only its copy"},
    Reason{reason::arguments_differ,
           "the kernel takes no event whose sites differ in number or type of arguments"},
    Reason{reason::semaphore_conflict, "the kernel refuses a second counter at one instruction"},
    Reason{reason::semaphore_odd, "the kernel refuses a counter at an odd offset"},
    Reason{reason::semaphore_not_in_file, "the kernel cannot raise a counter without file bytes"},
    Reason{reason::semaphore_read_only, "the kernel cannot raise a counter that is not writable"},
    Reason{reason::semaphore_page,
           "the page of the file is mapped twice: the kernel raises the other copy"},
    Reason{reason::semaphore_no_probes, "it finds counters in the section .probes only"},
    Reason{reason::semaphore_address, "it computes another address than the counter's"},
    Reason{reason::argument_size, "it does not read a size written like this"},
    Reason{reason::argument_operand, "it does not read an operand written like this"},
    Reason{reason::argument_constant, "it reads no constants", true},
    Reason{reason::argument_index, "it reads no indexed operands", true},
    Reason{reason::argument_symbol, "it reads no operands relative to a symbol", true},
    Reason{reason::argument_register, "it does not read this register", true},
    Reason{reason::argument_order,
           "its scanner runs from a plain dereference into an indexed operand behind it"},
    Reason{reason::argument_machine, "it reads no arguments on this machine", true},
    Reason{reason::argument_stops_scan,
           "an argument's size beyond 8 bytes makes it drop all probes of the file"},
    Reason{reason::argument_aborts, "a size that is not 1, 2, 4 or 8 bytes makes it abort"},
    Reason{reason::argument_count, "it has no name for so many arguments on this machine", true},
    Reason{reason::too_many_arguments, "it takes at most 12 arguments", true},
    Reason{reason::too_many_specs, "it takes at most 256 different argument strings for one probe",
           true},
    Reason{reason::dangling_listed, "it lists a probe whose code is not in the file"},
    Reason{reason::dangling_attached, "it attaches a note whose code is not in the file"},
};

const Reason* find(std::string_view word) {
  const auto* found = std::ranges::find(kReasons, word, &Reason::word);
  return found == kReasons.end() ? nullptr : found;
}

}  // namespace

std::string_view reason_text(std::string_view word) {
  const Reason* found = find(word);
  return found == nullptr ? std::string_view{} : found->text;
}

bool reason_is_limit(std::string_view word) {
  const Reason* found = find(word);
  return found != nullptr && found->limit;
}

}  // namespace reprobe
