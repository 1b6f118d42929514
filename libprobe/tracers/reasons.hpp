// The stable words for why a consumer fails a probe, and each in a sentence.
#pragma once

#include <string_view>

namespace reprobe::reason {

// The file or its note section, as the consumer reads it.
inline constexpr std::string_view file_class = "class";
inline constexpr std::string_view machine = "machine";
inline constexpr std::string_view section_type = "section-type";
inline constexpr std::string_view section_alloc = "section-alloc";
inline constexpr std::string_view section_order = "section-order";
inline constexpr std::string_view second_section = "second-section";
inline constexpr std::string_view section_unreadable = "section-unreadable";
inline constexpr std::string_view scan_stopped = "scan-stopped";
inline constexpr std::string_view base_missing = "base-missing";
inline constexpr std::string_view base_position = "base-position";
inline constexpr std::string_view build_id = "build-id";
inline constexpr std::string_view last_repeats = "last-note-repeats";
inline constexpr std::string_view name_not_c = "name-not-c";
// A note.
inline constexpr std::string_view note_layout = "note-layout";
inline constexpr std::string_view note_end = "note-end";
inline constexpr std::string_view note_type = "note-type";
inline constexpr std::string_view note_owner = "note-owner";
inline constexpr std::string_view malformed_note = "malformed-note";
inline constexpr std::string_view below_code = "below-code";
// The site.
inline constexpr std::string_view wrong_address = "wrong-address";
inline constexpr std::string_view no_segment = "no-segment";
inline constexpr std::string_view file_segment = "file-segment";
inline constexpr std::string_view outside_text = "outside-text";
inline constexpr std::string_view sibling = "sibling";
inline constexpr std::string_view sibling_dangling = "sibling-dangling";
inline constexpr std::string_view one_per_address = "one-per-address";
inline constexpr std::string_view not_a_nop = "not-a-nop";
inline constexpr std::string_view prefixed_nop = "prefixed-nop";
inline constexpr std::string_view thumb = "thumb";
inline constexpr std::string_view misaligned = "misaligned";
// The counter.
inline constexpr std::string_view semaphore_unsupported = "semaphore-unsupported";
inline constexpr std::string_view semaphore_segment = "semaphore-segment";
inline constexpr std::string_view semaphore_sibling = "semaphore-sibling";
inline constexpr std::string_view semaphore_field = "semaphore-field";
inline constexpr std::string_view arguments_differ = "arguments-differ";
inline constexpr std::string_view semaphore_copied = "semaphore-copied";
inline constexpr std::string_view semaphore_conflict = "semaphore-conflict";
inline constexpr std::string_view semaphore_odd = "semaphore-odd";
inline constexpr std::string_view semaphore_not_in_file = "semaphore-not-in-file";
inline constexpr std::string_view semaphore_read_only = "semaphore-read-only";
inline constexpr std::string_view semaphore_page = "semaphore-relro-page";
inline constexpr std::string_view semaphore_no_probes = "semaphore-no-probes-section";
inline constexpr std::string_view semaphore_address = "semaphore-address";
// Arguments.
inline constexpr std::string_view argument_size = "argument-size";
inline constexpr std::string_view argument_operand = "argument-operand";
inline constexpr std::string_view argument_constant = "argument-constant";
inline constexpr std::string_view argument_index = "argument-index";
inline constexpr std::string_view argument_symbol = "argument-symbol";
inline constexpr std::string_view argument_register = "argument-register";
inline constexpr std::string_view argument_order = "argument-order";
inline constexpr std::string_view argument_machine = "argument-machine";
inline constexpr std::string_view argument_stops_scan = "argument-stops-scan";
inline constexpr std::string_view argument_aborts = "argument-aborts";
inline constexpr std::string_view argument_count = "argument-count";
inline constexpr std::string_view too_many_arguments = "too-many-arguments";
inline constexpr std::string_view too_many_specs = "too-many-specs";
// Dangling notes.
inline constexpr std::string_view dangling_listed = "dangling-listed";
inline constexpr std::string_view dangling_attached = "dangling-attached";

}  // namespace reprobe::reason
