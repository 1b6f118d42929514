// reprobe list --pid: the probes of running processes, armed or not.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/probes/select.hpp"
#include "libprobe/process/loaded.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"
#include "tool/process_inputs.hpp"
#include "tool/table.hpp"

namespace reprobe {
namespace {

// A probe that -p chooses, with its state.
struct Shown {
  const Probe* probe{};
  LoadedProbe now;
};
struct ShownFile {
  LoadedElf loaded;
  std::vector<Shown> probes;
};

std::string armed_text(const SiteState& state) {
  if (state.armed == Armed::yes) return state.how;
  if (state.armed == Armed::unknown) return state.how == "dangling" ? "dangling" : "unknown";
  return "no";
}

std::string counter_text(const Probe& probe, const LoadedProbe& now) {
  if (probe.semaphore.value == 0) return "-";
  if (now.counter_address == 0) return now.address == 0 ? "-" : "unmapped";
  return now.counter ? std::to_string(*now.counter) : "unreadable";
}

std::string file_text(const LoadedElf& loaded) {
  std::string text = printable(loaded.path);
  if (loaded.elf_offset != 0) text += fmt::format("!{:#x}", loaded.elf_offset);
  return text + (loaded.deleted ? " (deleted)" : "");
}

Json probe_json(const Shown& shown, const ElfFile& file) {
  Json j = probe_json(*shown.probe, file.header());
  if (shown.now.address != 0) j["address"] = hex(shown.now.address);
  j["armed"] = to_string(shown.now.state.armed);
  if (!shown.now.state.how.empty()) j["how"] = shown.now.state.how;
  if (shown.now.counter_address != 0) j["counter_address"] = hex(shown.now.counter_address);
  if (shown.now.counter) j["counter"] = *shown.now.counter;
  return j;
}

Json file_json(const ShownFile& shown) {
  Json j = file_json(shown.loaded.path, shown.loaded.elf->file, {});
  j["load_address"] = hex(shown.loaded.bias);
  if (shown.loaded.deleted) j["deleted"] = true;
  if (shown.loaded.elf_offset != 0) j["elf_offset"] = hex(shown.loaded.elf_offset);
  for (const Shown& probe : shown.probes) {
    j["probes"].push_back(probe_json(probe, shown.loaded.elf->file));
  }
  return j;
}

class ProcessLister {
 public:
  ProcessLister(const ListOptions& options, const Terminal& terminal)
      : options_(options), terminal_(terminal) {}

  int run() {
    const bool all = options_.pid == kAllProcesses;
    const auto pids = asked_processes(options_.pid);
    if (!pids) return fail("", pids.error());
    for (const int pid : *pids) list(pid, all);
    // One line for all of them: of other users' processes a user may not look at any.
    if (denied_count_ != 0) {
      denied_.message = denied_text(denied_count_, denied_.message);
      fail("", denied_);
    }
    if (options_.common.json) {
      Json j = {{"schema", "reprobe.process/1"}, {"processes", std::move(processes_)}};
      if (all) j["denied"] = denied_count_;
      print_json(j);
    } else if (!rows_.empty()) {
      print_table({"PID", "NAME", "ARMED", "PROBE", "ADDRESS", "COUNTER", "FILE"}, rows_,
                  [&](std::size_t r, std::size_t c) { return cell(rows_, r, c, 2); });
    }
    return exit_;
  }

 private:
  int fail(const std::string& about, const Error& error) {
    terminal_.error(about, error);
    exit_ = std::max(exit_, exit_code(error.code));
    return exit_;
  }

  [[nodiscard]] std::string cell(const std::vector<TableRow>& rows, std::size_t row,
                                 std::size_t column, std::size_t armed_column) const {
    const std::string& text = rows[row][column];
    const bool shout = column == armed_column && text != "no";
    return shout ? terminal_.out(Style::yellow, text) : text;
  }

  // One that executes another program meanwhile is looked at again.
  void list(int pid, bool all) {
    for (int left = kMostLooks; !look(pid, all, left == 1); --left) {
    }
  }

  // False: what was read is of no one program, and `last` is not set.
  bool look(int pid, bool all, bool last) {
    const std::string about = fmt::format("pid {}", pid);
    const auto process = Process::open(pid);
    if (!process) {
      // Of all processes some end while they are looked at.
      if (all) {
        terminal_.detail(about + ": " + process.error().message);
      } else {
        fail(about, process.error());
      }
      return true;
    }
    const auto loaded = files_.of(*process);
    if (!loaded) {
      if (says_ended(loaded.error()) && !last) return false;
      refuse(*process, loaded.error(), all);
      return true;
    }
    const bool runs = process->kind() == ProcessKind::ordinary;
    if (runs && !loaded->mapped && !last) return false;
    const std::vector<ShownFile> shown = chosen(*process, *loaded);
    if (process->is_gone()) {
      if (!last) return false;
      refuse(*process, {ErrorCode::unreadable, "", "it executes one program after the other", ""},
             all);
      return true;
    }
    for (const UnreadFile& unread : loaded->unread) {
      terminal_.warning(
          fmt::format("{} ({}): {}: {}", about, process->name(), unread.path, unread.reason));
      exit_ = kUnreadable;
    }
    warn_of_memory(*process, shown);
    if (options_.common.json) {
      if (!all || !shown.empty()) add_json(*process, *loaded, shown);
    } else if (all) {
      add_rows(*process, shown);
    } else {
      print_process(*process, shown);
    }
    return true;
  }

  // What may not be looked at, or is not there.
  void refuse(const Process& process, const Error& error, bool all) {
    const std::string about = fmt::format("pid {} ({})", process.pid(), process.name());
    if (all && says_ended(error)) return;
    if (all && says_denied(error)) {
      denied_ = error;
      ++denied_count_;
      terminal_.detail(fmt::format("{}: {}", about, denied_.message));
      return;
    }
    fail(about, error);
  }

  [[nodiscard]] std::vector<ShownFile> chosen(const Process& process,
                                              const LoadedFiles& loaded) const {
    std::vector<ShownFile> shown;
    for (const LoadedElf& file : loaded.files) {
      ShownFile item{file, {}};
      for (LoadedProbe& now : read_loaded(process, file)) {
        const Probe& probe = file.elf->probes.probes[now.probe];
        if (selected(options_.common.patterns, probe.note)) {
          item.probes.push_back({&probe, std::move(now)});
        }
      }
      if (!item.probes.empty()) shown.push_back(std::move(item));
    }
    return shown;
  }

  void warn_of_memory(const Process& process, const std::vector<ShownFile>& shown) {
    const auto refused = process.memory_refused();
    if (shown.empty() || !refused) return;
    terminal_.warning(fmt::format(
        "pid {} ({}): its memory cannot be read: which sites are armed is not known: {}{}",
        process.pid(), process.name(), refused->message,
        refused->hint.empty() ? "" : "; " + refused->hint));
    exit_ = kUnreadable;
  }

  void add_json(const Process& process, const LoadedFiles& loaded,
                const std::vector<ShownFile>& shown) {
    Json j = {{"pid", process.pid()}, {"name", process.name()}};
    if (process.tracer() != 0) {
      j["tracer"] = {{"pid", process.tracer()}, {"name", process_name(process.tracer())}};
    }
    j["kind"] = kind_text(process.kind());
    j["files"] = Json::array();
    for (const ShownFile& file : shown) j["files"].push_back(file_json(file));
    j["unread"] = Json::array();
    for (const UnreadFile& unread : loaded.unread) {
      j["unread"].push_back({{"path", unread.path}, {"reason", unread.reason}});
    }
    processes_.push_back(std::move(j));
  }

  static const char* kind_text(ProcessKind kind) {
    switch (kind) {
      case ProcessKind::zombie:
        return "zombie";
      case ProcessKind::kernel_thread:
        return "kernel-thread";
      case ProcessKind::ordinary:
        break;
    }
    return "process";
  }

  void add_rows(const Process& process, const std::vector<ShownFile>& shown) {
    for (const ShownFile& file : shown) {
      for (const Shown& item : file.probes) {
        rows_.push_back({std::to_string(process.pid()), printable(process.name()),
                         armed_text(item.now.state), name_text(*item.probe), hex(item.now.address),
                         counter_text(*item.probe, item.now), file_text(file.loaded)});
      }
    }
  }

  void print_process(const Process& process, const std::vector<ShownFile>& shown) const {
    std::string head = fmt::format("pid {} ({})", process.pid(), printable(process.name()));
    if (process.kind() == ProcessKind::zombie) head += ": a zombie, its memory is gone";
    if (process.kind() == ProcessKind::kernel_thread) head += ": a kernel thread, without files";
    if (process.tracer() != 0) {
      head += fmt::format(", traced by {} (pid {})", printable(process_name(process.tracer())),
                          process.tracer());
    }
    fmt::print("{}{}\n", head,
               shown.empty() && process.kind() == ProcessKind::ordinary ? ": no probes" : "");
    for (const ShownFile& file : shown) {
      const auto armed = std::ranges::count_if(
          file.probes, [](const Shown& item) { return item.now.state.armed == Armed::yes; });
      fmt::print("{} at {:#x}, {} probe{}, {} armed\n",
                 terminal_.out(Style::bold, file_text(file.loaded)), file.loaded.bias,
                 file.probes.size(), file.probes.size() == 1 ? "" : "s", armed);
      std::vector<TableRow> rows;
      for (const Shown& item : file.probes) {
        rows.push_back(
            {hex(item.now.address), armed_text(item.now.state), name_text(*item.probe),
             counter_text(*item.probe, item.now),
             item.probe->note.arguments.empty() ? "-" : printable(item.probe->note.arguments)});
        if (item.now.state.armed == Armed::unknown) {
          terminal_.detail(fmt::format("{:#x} {}: {}", item.now.address, name_text(*item.probe),
                                       item.now.state.how));
        }
      }
      print_table({"ADDRESS", "ARMED", "PROBE", "COUNTER", "ARGUMENTS"}, rows,
                  [&](std::size_t r, std::size_t c) { return cell(rows, r, c, 1); });
    }
  }

  static std::string name_text(const Probe& probe) {
    return printable(fmt::format("{}:{}", probe.note.provider, probe.note.name));
  }

  const ListOptions& options_;
  const Terminal& terminal_;
  MappedFiles files_;
  std::vector<TableRow> rows_;
  Json processes_ = Json::array();
  Error denied_;  // the last of those of --pid all that may not be looked at
  std::size_t denied_count_{};
  int exit_{kDone};
};

}  // namespace

int run_list_process(const ListOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  return ProcessLister(options, terminal).run();
}

}  // namespace reprobe
