#include "libprobe/tracers/attach_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/fetch_argument.hpp"

namespace reprobe {
namespace {

constexpr std::array<std::pair<std::string_view, AttachForm>, 5> kForms{{
    {"bpftrace", AttachForm::bpftrace},
    {"perf", AttachForm::perf},
    {"tracefs", AttachForm::tracefs},
    {"gdb", AttachForm::gdb},
    {"ftrace-trace-cmd", AttachForm::trace_cmd},
}};
constexpr std::string_view kEvents = "/sys/kernel/tracing/uprobe_events";
constexpr std::size_t kBpftraceArguments = 6;  // arg0 .. arg5 before 0.18; asking for more fails

// In single quotes for a shell.
std::string shell_word(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

// The kernel takes C identifiers alone (is_good_name of kernel/trace/trace_probe.c).
std::string identifier(std::string_view text) {
  std::string result;
  for (const char c : text) result += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  if (result.empty() || std::isdigit(static_cast<unsigned char>(result[0])) != 0) {
    result.insert(0, "_");
  }
  return result;
}

constexpr std::size_t kLongestEvent = 63;  // MAX_EVENT_NAME_LEN of kernel/trace/trace.h, less one
constexpr std::size_t kLongestDefinition = 4093;  // WRITE_BUFSIZE of kernel/trace/trace.c

bool has_any(std::string_view text, std::string_view characters) {
  return text.find_first_of(characters) != std::string_view::npos;
}

// In a script of bpftrace: in double quotes, in which a colon or a brace means nothing, where it
// is not made of what never needs them.
std::string bpftrace_word(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](unsigned char c) {
    return c < 0x80 &&
           (std::isalnum(c) != 0 ||
            std::string_view("_./-+").find(static_cast<char>(c)) != std::string_view::npos);
  });
  return plain ? text : '"' + text + '"';
}

// Measured with bpftrace 0.17: '*' stands for anything in quotes, too; a path ends at a colon.
std::string why_not_bpftrace(const std::string& path, const std::string& full) {
  constexpr std::string_view kSpecial = "\"\\*";
  if (has_any(path, kSpecial) || has_any(path, ":"))
    return "bpftrace does not take the file's path";
  return has_any(full, kSpecial) ? "bpftrace does not take the probe's name" : "";
}

// One that it cannot read fails the script, or gives its number to those behind it.
std::size_t bpftrace_readable(const Probe& probe, std::uint16_t machine) {
  const auto fault = consumers::bpftrace_0_17_arguments(probe.note.arguments, machine);
  return std::min(fault ? fault->number - 1 : kBpftraceArguments, kBpftraceArguments);
}

// Measured with gdb 13: it splits the name there.
std::string why_not_gdb(const Probe& probe) {
  const bool split = has_any(probe.note.provider, ": \t") || has_any(probe.note.name, ": \t");
  return split ? "gdb does not take the probe's name" : "";
}

// trace_parse_run_command() of kernel/trace/trace.c splits lines at blanks and ends them at '#'.
std::string why_not_event(const std::string& path) {
  return has_any(path, " \t\n\v\f\r#") ? "the kernel does not take the file's path" : "";
}

bool goes_by_name(AttachForm form) {
  return form == AttachForm::bpftrace || form == AttachForm::gdb;
}

class Lines {
 public:
  Lines(const std::string& path, const ElfFile& file, AttachForm form, EventNames& events)
      : path_(path), file_(file), form_(form), events_(events) {}

  AttachLine line(const Probe& probe) {
    AttachLine result;
    result.probe = &probe;
    result.site = probe.site_offset;
    if (probe.semaphore.value != 0) result.counter = file_.offset_of(probe.semaphore);
    if (!probe.site_offset) {
      result.refused = "the file has no bytes at its site";
      return result;
    }
    if (probe.semaphore.value != 0 && !result.counter) {
      result.refused = "its counter is not in the file's bytes: no tracer can raise it";
      return result;
    }
    if (goes_by_name(form_)) {
      name(probe, result);
    } else {
      place(probe, result);
    }
    return result;
  }

 private:
  void name(const Probe& probe, AttachLine& result) const {
    const std::string full = probe.note.provider + ":" + probe.note.name;
    if (form_ == AttachForm::gdb) {
      result.refused = why_not_gdb(probe);
      if (!result.refused.empty()) return;
      result.text =
          fmt::format("gdb -ex {} {}", shell_word("break -probe-stap " + full), shell_word(path_));
      return;
    }
    result.refused = why_not_bpftrace(path_, full);
    if (!result.refused.empty()) return;
    // What it prints first: of a format without arguments it prints "%%" as it stands.
    std::string format = full, values;
    std::ranges::replace(format, '%', '_');
    const std::size_t readable = bpftrace_readable(probe, file_.header().machine);
    for (std::size_t i = 0; i < probe.arguments.size(); ++i) {
      if (i >= readable) {
        result.left_out.push_back(fmt::format("arg{}: {}", i, probe.arguments[i].operand));
        continue;
      }
      result.arguments.push_back(fmt::format("arg{}", i));
      format += " %ld";
      values += fmt::format(", arg{}", i);
    }
    result.text =
        fmt::format("bpftrace -e {}",
                    shell_word(fmt::format("usdt:{}:{}:{} {{ printf(\"{}\\n\"{}); }}",
                                           bpftrace_word(path_), bpftrace_word(probe.note.provider),
                                           bpftrace_word(probe.note.name), format, values)));
  }

  void place(const Probe& probe, AttachLine& result) {
    result.refused = why_not_event(path_);
    if (!result.refused.empty()) return;
    for (std::size_t i = 0; i < probe.arguments.size(); ++i) {
      const Argument& argument = probe.arguments[i];
      const auto fetched = fetch_argument(argument, file_.header().machine);
      if (fetched) {
        result.arguments.push_back(fmt::format("arg{}={}", i + 1, *fetched));
      } else {
        result.left_out.push_back(fmt::format("arg{}: {}", i + 1, argument.operand));
      }
    }
    if (form_ == AttachForm::perf && result.counter) return perf_by_name(probe, result);
    const std::string group = identifier(probe.note.provider).substr(0, kLongestEvent);
    const std::string event = own_name(group, identifier(probe.note.name));
    result.event = group + ":" + event;
    if (form_ == AttachForm::perf) return perf(group, event, result);
    const std::string counter =
        result.counter ? fmt::format("({:#x})", result.counter->value) : std::string();
    const std::string definition =
        fmt::format("p:{}/{} {}:{:#x}{}{}{}", group, event, path_, result.site->value, counter,
                    result.arguments.empty() ? "" : " ", fmt::join(result.arguments, " "));
    if (definition.size() > kLongestDefinition) {
      result.refused = "the kernel takes no line of this length";
      result.event.clear();
      return;
    }
    // Not echo: that of some shells reads the backslash of a constant.
    result.text = fmt::format("printf '%s\\n' {} >> {}", shell_word(definition), kEvents);
    if (form_ == AttachForm::trace_cmd) {
      result.text += fmt::format(" && trace-cmd record -e {}", result.event);
    }
  }

  // Each site is an event of its own: its arguments may stand elsewhere. Another probe's name may
  // be the one that a number makes.
  std::string own_name(const std::string& group, const std::string& name) {
    std::string event = name.substr(0, kLongestEvent);
    for (std::size_t number = sites_[{group, name}]; !events_.insert(group + ":" + event).second;) {
      number = std::max<std::size_t>(number + 1, 2);
      const std::string suffix = fmt::format("_{}", number);
      event = name.substr(0, kLongestEvent - suffix.size()) + suffix;
      sites_[{group, name}] = number;
    }
    return event;
  }

  // perf probe takes a number for an offset in the file.
  void perf(const std::string& group, const std::string& event, AttachLine& result) const {
    const std::string definition =
        fmt::format("{}:{}={:#x}{}{}", group, event, result.site->value,
                    result.arguments.empty() ? "" : " ", fmt::join(result.arguments, " "));
    result.text = fmt::format("perf probe -x {} {}", shell_word(path_), shell_word(definition));
  }

  // It names a counter only for what it found as an SDT event in its own cache, which it keeps by
  // build-id, and takes C identifiers alone there.
  void perf_by_name(const Probe& probe, AttachLine& result) const {
    if (!file_.build_id_range()) {
      result.refused = "perf raises no counter of a file without a build-id";
      return;
    }
    const std::string& provider = probe.note.provider;
    if (identifier("sdt_" + provider) != "sdt_" + provider ||
        identifier(probe.note.name) != probe.note.name) {
      result.refused = "perf does not take the probe's name";
      return;
    }
    result.event = fmt::format("sdt_{}:{}", provider, probe.note.name);
    drop_constants(probe, result);
    result.text = fmt::format("perf buildid-cache --add {} && perf probe {}", shell_word(path_),
                              shell_word("%" + result.event));
  }

  // perf's own reader of SDT arguments knows registers and memory alone
  // (arch/x86/util/perf_regs.c, arch_sdt_arg_parse_op).
  static void drop_constants(const Probe& probe, AttachLine& result) {
    std::erase_if(result.arguments, [](const std::string& argument) {
      return argument.find("=\\") != std::string::npos;
    });
    result.left_out.clear();
    for (std::size_t i = 0; i < probe.arguments.size(); ++i) {
      const std::string name = fmt::format("arg{}=", i + 1);
      const bool kept = std::ranges::any_of(
          result.arguments, [&](const std::string& text) { return text.starts_with(name); });
      if (!kept)
        result.left_out.push_back(fmt::format("arg{}: {}", i + 1, probe.arguments[i].operand));
    }
  }

  const std::string& path_;
  const ElfFile& file_;
  AttachForm form_;
  EventNames& events_;
  std::map<std::pair<std::string, std::string>, std::size_t> sites_;  // the last number of a name
};

}  // namespace

std::optional<AttachForm> attach_form(std::string_view word) {
  const auto found = std::ranges::find(kForms, word, &decltype(kForms)::value_type::first);
  return found == kForms.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> attach_form_names() {
  std::vector<std::string> names;
  for (const auto& [name, form] : kForms) names.emplace_back(name);
  return names;
}

std::vector<AttachLine> attach_lines(const std::string& path, const ElfFile& file,
                                     const std::vector<const Probe*>& probes, AttachForm form,
                                     EventNames& events) {
  Lines lines(path, file, form, events);
  std::vector<AttachLine> result;
  std::set<std::pair<std::string_view, std::string_view>> named;
  for (const Probe* probe : probes) {
    if (probe->verdict == Verdict::dangling) continue;
    const bool by_name =
        goes_by_name(form) || (form == AttachForm::perf && probe->semaphore.value != 0);
    if (by_name && !named.emplace(probe->note.provider, probe->note.name).second) continue;
    result.push_back(lines.line(*probe));
  }
  return result;
}

}  // namespace reprobe
