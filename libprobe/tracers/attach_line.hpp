// The ready line that makes a tracer attach to a probe, of a file on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

enum class AttachForm {
  bpftrace,   // bpftrace(8): by the probe's name, all of its sites
  perf,       // perf-probe(1): by address; by name where a counter has to be raised
  tracefs,    // what goes into uprobe_events: by file offset
  gdb,        // by the probe's name
  trace_cmd,  // trace-cmd(1), of an event that tracefs made
};

// "bpftrace", "perf", "tracefs", "gdb", "ftrace-trace-cmd"; nothing for another word.
[[nodiscard]] std::optional<AttachForm> attach_form(std::string_view word);
[[nodiscard]] std::vector<std::string> attach_form_names();

struct AttachLine {
  const Probe* probe{};
  std::string text;                    // a line for a shell
  std::string event;                   // GROUP:EVENT that it makes; "" where it makes none
  std::optional<FileOffset> site;      // in the file
  std::optional<FileOffset> counter;   // in the file; nothing: the probe has none
  std::vector<std::string> arguments;  // "arg1=%di:s32"
  std::vector<std::string> left_out;   // arguments that the form cannot fetch, as in the note
  std::string refused;                 // why there is no line, or ""
};

// The GROUP:EVENT that there are: those of several files share one kernel.
using EventNames = std::set<std::string>;

// One for each probe; of forms that go by name one for each name. `path` as it goes into the
// lines, absolute. Dangling probes get none. No line makes an event of `events`, to which it adds.
[[nodiscard]] std::vector<AttachLine> attach_lines(const std::string& path, const ElfFile& file,
                                                   const std::vector<const Probe*>& probes,
                                                   AttachForm form, EventNames& events);

}  // namespace reprobe
