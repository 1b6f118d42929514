// Rules about the file as a whole: what a tracer does not find in it.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules_parts.hpp"
#include "libprobe/elf/payload.hpp"
#include "libprobe/notes/legacy.hpp"
#include "libprobe/probes/semaphore.hpp"

namespace reprobe::rules {
namespace {

// bcc (bcc_elf.c, listprobes) goes through the sections once: to the first executable one, on to
// .probes, on to the notes. Where it finds no .probes behind the code, it starts over for the
// notes, and knows no counter.
void section_order(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  const auto sections = file.sections();
  const auto code = std::ranges::find_if(
      sections, [](const Section& s) { return (s.flags & SHF_EXECINSTR) != 0; });
  if (code == sections.end()) return;
  const auto counters = std::find_if(std::next(code), sections.end(),
                                     [](const Section& s) { return s.name == kProbesSection; });
  if (counters == sections.end()) return;
  const auto lost = std::ranges::count_if(probes.probes, [&](const Probe& probe) {
    return wanted(probe) && probe.note.section < counters->index;
  });
  if (lost == 0) return;
  Finding finding = about_file(
      "section-order", Severity::error,
      fmt::format("bcc, and bpftrace before 0.25, do not list {}: the notes stand before "
                  ".probes in the section header table",
                  plural(static_cast<std::size_t>(lost), "probe")));
  const auto first = std::ranges::find_if(probes.probes, wanted);
  finding.evidence.push_back(fmt::format("{} is section {}, {} is section {}", kStapsdtSection,
                                         first->note.section, kProbesSection, counters->index));
  finding.hint = "reprobe fix moves the section header";
  out.push_back(std::move(finding));
}

// perf names its cache's folders by the build-id and takes those of 16 bytes or more
// (build-id.c, lsdir_bid_tail_filter); without one it adds nothing. Tried with perf 6.1.
void build_id(const ElfFile& file, std::vector<Finding>& out) {
  constexpr std::size_t kShortest = 16;
  const std::string id = file.build_id();
  const std::size_t bytes = id.size() / 2;
  if (bytes >= kShortest) return;
  Finding finding = about_file(
      "build-id-short", Severity::warning,
      bytes == 0
          ? "the file has no build-id: perf's cache does not take it, and perf lists none of "
            "its probes"
          : "the build-id is too short: perf buildid-cache takes it, and perf lists none of "
            "the file's probes");
  if (bytes != 0) {
    finding.evidence.push_back(
        fmt::format("{}, perf wants 16 or more: {}", plural(bytes, "byte"), id));
  }
  finding.hint = bytes == 0 ? "link with -Wl,--build-id=sha1, or give it one: fix --build-id=new"
                            : "link with -Wl,--build-id=sha1";
  out.push_back(std::move(finding));
}

// Such a program finds its data from the end of its file, or at an offset that it knows.
void payload(const ElfFile& file, std::vector<Finding>& out) {
  const auto found = payload_behind(file);
  if (!found) return;
  Finding finding = about_file(
      "payload", Severity::note,
      fmt::format("{} bytes stand behind the ELF file, {}: the program may look for them "
                  "from the end of its file",
                  found->size.value, to_string(found->kind)));
  finding.evidence.push_back(
      fmt::format("all that the headers name ends at {:#x}", found->offset.value));
  finding.hint = found->kind == PayloadKind::signature ? "sign the file after the last rewrite"
                 : is_found_from_end(found->kind)
                     ? "reprobe keeps them the last bytes of the file"
                     : "reprobe rewrites the file where it need not grow, or with --payload=keep "
                       "or --payload=ignore";
  out.push_back(std::move(finding));
}

void debug_file(const ProbeFile& probes, std::vector<Finding>& out) {
  if (!probes.debug_file) return;
  Finding finding = about_file("debug-file", Severity::note,
                               "the code is not in this file: whether its probes are live cannot "
                               "be told here");
  finding.evidence.push_back(plural(probes.probes.size(), "probe"));
  finding.hint = "audit the program or library that this debug file belongs to";
  out.push_back(std::move(finding));
}

// Does the file still have a section that `llvm-strip` without options would have deleted with the
// notes? Linkers and debuggers add .gnu_debuglink later.
bool has_unloaded_sections(const ElfFile& file) {
  return std::ranges::any_of(file.sections(), [&](const Section& s) {
    return s.index != 0 && !s.allocated() && s.index != file.header().shstrndx &&
           s.name != ".gnu_debuglink" && s.size.value != 0;
  });
}

void notes_stripped(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  if (!probes.scan.foreign.empty() || !probes.scan.findings.empty()) return;
  // Notes may hide in a section whose name cannot be read.
  const bool may_hide = std::ranges::any_of(file.sections(), [](const Section& s) {
    return s.name == kStapsdtSection || (s.type == SHT_NOTE && s.name.empty());
  });
  if (may_hide) return;
  const Section* counters = file.section(kProbesSection);
  if (counters != nullptr) {
    const auto bytes = file.contents(*counters);
    if (counters->nobits() || !bytes || bytes->empty()) return;
    if (scan_legacy(file).section != nullptr) return;  // such a file never had notes
  } else if (!has_semaphore_symbol(file)) {
    return;
  }
  // An object with the counters alone can be linked into programs that have none of the probes; but
  // mostly a strip took the notes, and then nothing of the file can be traced.
  Finding finding = about_file(
      "notes-stripped", Severity::warning,
      has_unloaded_sections(file)
          ? "the file has counters of probes and no notes: they were deleted, or the probes were "
            "never in it"
          : "the file has counters of probes and no notes: its sections that are not loaded were "
            "deleted");
  finding.evidence.push_back(
      counters != nullptr ? fmt::format(".probes has {}", plural(counters->size.value, "byte"))
                          : std::string("a symbol NAME_semaphore is defined"));
  finding.hint =
      "reprobe fix --from-debug FILE.debug brings them back; llvm-strip deletes them, "
      "--strip-unneeded and GNU strip do not";
  out.push_back(std::move(finding));
}

// Gives whether it is so.
bool other_section(const ElfFile& file, std::vector<Finding>& out) {
  const auto probes = read_other_sections(file);
  if (!probes) return false;
  const std::uint32_t index = probes->probes.front().note.section;
  Finding finding =
      about_file("other-section", Severity::error,
                 fmt::format("the notes of {} do not stand in a section {}: no tracer finds them",
                             plural(probes->probes.size(), "probe"), kStapsdtSection));
  finding.evidence.push_back(
      fmt::format("they are in section {}, {}", index, file.section_at(index)->name));
  finding.hint =
      "reprobe fix writes them to one; or leave .note.stapsdt out of the linker script's section";
  out.push_back(std::move(finding));
  return true;
}

}  // namespace

void add_file_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  const std::uint16_t type = file.header().type;
  if (type != ET_EXEC && type != ET_DYN) return;
  if (probes.probes.empty()) {
    if (!other_section(file, out) && !add_lost_notes(file, out)) {
      notes_stripped(file, probes, out);
    }
    return;
  }
  payload(file, out);
  debug_file(probes, out);
  if (probes.debug_file || std::ranges::none_of(probes.probes, wanted)) return;
  section_order(file, probes, out);
  build_id(file, out);
}

}  // namespace reprobe::rules
