// reprobe list --as: the line that makes a tracer attach, for each probe.
#pragma once

#include <string>
#include <vector>

#include "libprobe/probes/probe.hpp"
#include "libprobe/tracers/attach_line.hpp"
#include "tool/json.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

// On stdout; what has no line, and arguments that it leaves out, as warnings.
void print_attach_lines(const std::string& path, const ElfFile& file,
                        const std::vector<const Probe*>& probes, AttachForm form,
                        EventNames& events, const Terminal& terminal);

// The `attach` of a file's JSON.
[[nodiscard]] Json attach_json(const std::string& path, const ElfFile& file,
                               const std::vector<const Probe*>& probes, AttachForm form,
                               EventNames& events);

}  // namespace reprobe
