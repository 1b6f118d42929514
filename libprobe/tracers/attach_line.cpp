#include "libprobe/tracers/attach_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <utility>

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

bool goes_by_name(AttachForm form) {
  return form == AttachForm::bpftrace || form == AttachForm::gdb;
}

class Lines {
 public:
  Lines(const std::string& path, const ElfFile& file, AttachForm form)
      : path_(path), file_(file), form_(form) {}

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
      result.text =
          fmt::format("gdb -ex {} {}", shell_word("break -probe-stap " + full), shell_word(path_));
      return;
    }
    std::string format = full, values;
    for (std::size_t i = 0; i < std::min(probe.arguments.size(), kBpftraceArguments); ++i) {
      result.arguments.push_back(fmt::format("arg{}", i));
      format += " %ld";
      values += fmt::format(", arg{}", i);
    }
    result.text = fmt::format("bpftrace -e {}",
                              shell_word(fmt::format("usdt:{}:{} {{ printf(\"{}\\n\"{}); }}", path_,
                                                     full, format, values)));
  }

  void place(const Probe& probe, AttachLine& result) {
    for (std::size_t i = 0; i < probe.arguments.size(); ++i) {
      const Argument& argument = probe.arguments[i];
      const auto fetched = fetch_argument(argument, file_.header().machine);
      if (fetched) {
        result.arguments.push_back(fmt::format("arg{}={}", i + 1, *fetched));
      } else {
        result.left_out.push_back(fmt::format("arg{}: {}", i + 1, argument.operand));
      }
    }
    const std::string group = identifier(probe.note.provider);
    // Each site is an event of its own: its arguments may stand elsewhere.
    const std::size_t number = ++sites_[{group, identifier(probe.note.name)}];
    std::string event = identifier(probe.note.name);
    if (number > 1) event += fmt::format("_{}", number);
    result.event = group + ":" + event;
    if (form_ == AttachForm::perf) return perf(probe, group, event, result);
    const std::string counter =
        result.counter ? fmt::format("({:#x})", result.counter->value) : std::string();
    const std::string definition =
        fmt::format("p:{}/{} {}:{:#x}{}{}{}", group, event, path_, result.site->value, counter,
                    result.arguments.empty() ? "" : " ", fmt::join(result.arguments, " "));
    // Not echo: that of some shells reads the backslash of a constant.
    result.text = fmt::format("printf '%s\\n' {} >> {}", shell_word(definition), kEvents);
    if (form_ == AttachForm::trace_cmd) {
      result.text += fmt::format(" && trace-cmd record -e {}", result.event);
    }
  }

  // perf probe takes a number for an offset in the file, and names a counter only for what it found
  // as an SDT event in its own cache.
  void perf(const Probe& probe, const std::string& group, const std::string& event,
            AttachLine& result) const {
    if (result.counter) {
      const std::string sdt = fmt::format("sdt_{}:{}", probe.note.provider, probe.note.name);
      result.event = sdt;
      drop_constants(probe, result);
      result.text = fmt::format("perf buildid-cache --add {} && perf probe {}", shell_word(path_),
                                shell_word("%" + sdt));
      return;
    }
    const std::string definition =
        fmt::format("{}:{}={:#x}{}{}", group, event, result.site->value,
                    result.arguments.empty() ? "" : " ", fmt::join(result.arguments, " "));
    result.text = fmt::format("perf probe -x {} {}", shell_word(path_), shell_word(definition));
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
  std::map<std::pair<std::string, std::string>, std::size_t> sites_;
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
                                     const std::vector<const Probe*>& probes, AttachForm form) {
  Lines lines(path, file, form);
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
