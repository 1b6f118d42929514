// The families of rules that audit() puts together, and how they make findings. Each family adds
// to `out`; where the cause is the file, one finding stands for all probes that it hits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/audit/kernels.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe::rules {

// A finding about one probe, with its site and note.
[[nodiscard]] Finding about(const Probe& probe, std::string_view rule, Severity severity,
                            std::string message);
// A finding about the file.
[[nodiscard]] Finding about_file(std::string_view rule, Severity severity, std::string message);

// A probe that a tracer should trace: live, or one that may be.
[[nodiscard]] bool wanted(const Probe& probe);

// "provider:name", cut where it is longer than any name that a tracer takes.
[[nodiscard]] std::string shown_name(const Probe& probe);

// "p:a, p:b, p:c and 4 more".
[[nodiscard]] std::string shown_names(const std::vector<const Probe*>& probes);

// "1 probe", "3 probes".
[[nodiscard]] std::string plural(std::size_t count, std::string_view noun);

// The wanted probes of one provider:name, in note order; in the order of their first notes.
using Name = std::vector<const Probe*>;
[[nodiscard]] std::vector<Name> names_of(const ProbeFile& probes);

void add_base_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out);
void add_semaphore_findings(const ElfFile& file, const ProbeFile& probes,
                            std::vector<Finding>& out);
void add_lonely_counter_findings(const ElfFile& file, const ProbeFile& probes,
                                 std::vector<Finding>& out);
void add_conflict_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out);
void add_site_findings(const ElfFile& file, const ProbeFile& probes, const Kernels& kernels,
                       std::vector<Finding>& out);
void add_argument_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out);
void add_count_findings(const ProbeFile& probes, const Kernels& kernels, std::vector<Finding>& out);
void add_index_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out);
// Notes that are gone, where an index has their probes; gives whether it is so.
bool add_lost_notes(const ElfFile& file, std::vector<Finding>& out);
void add_file_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out);

}  // namespace reprobe::rules
