#include "tool/process_inputs.hpp"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "libprobe/process/loaded.hpp"

namespace reprobe {

Result<std::vector<int>> asked_processes(const std::string& pid) {
  if (pid == kAllProcesses) return all_processes();
  int number = 0;
  const auto [end, error] = std::from_chars(pid.data(), pid.data() + pid.size(), number);
  if (error != std::errc{} || end != pid.data() + pid.size()) {
    return fail(ErrorCode::usage, "", "not the number of a process: " + pid);
  }
  return std::vector{number};
}

namespace {

Result<LoadedFiles> loaded_files(MappedFiles& files, const Process& process) {
  auto loaded = files.of(process);
  for (int left = kMostLooks; left > 1 && !loaded && says_ended(loaded.error()); --left) {
    // It executes another program, if it is there yet.
    const auto again = Process::open(process.pid());
    if (!again) break;
    loaded = files.of(*again);
  }
  return loaded;
}

}  // namespace

std::string denied_text(std::size_t count, const std::string& what) {
  return fmt::format("of {} process{} {}", count, count == 1 ? "" : "es", what);
}

void for_each_process_elf(const std::string& pid, const InputHandlers& handlers) {
  const auto pids = asked_processes(pid);
  if (!pids) return handlers.on_error("", pids.error());
  MappedFiles files;
  std::set<const MappedElf*> seen;
  std::set<std::string> unread;
  Error denied;
  std::size_t denied_count = 0;
  for (const int number : *pids) {
    const auto process = Process::open(number);
    if (!process) {
      // Of all processes some end while they are looked at.
      if (pid != kAllProcesses) handlers.on_error(fmt::format("pid {}", number), process.error());
      continue;
    }
    const auto loaded = loaded_files(files, *process);
    if (!loaded) {
      if (pid == kAllProcesses && says_ended(loaded.error())) continue;
      if (pid == kAllProcesses && says_denied(loaded.error())) {
        denied = loaded.error();
        ++denied_count;
        continue;
      }
      handlers.on_error(fmt::format("pid {} ({})", number, process->name()), loaded.error());
      continue;
    }
    for (const UnreadFile& file : loaded->unread) {
      if (unread.insert(file.path).second) {
        handlers.on_error(file.path, Error{ErrorCode::unreadable, "", file.reason, ""});
      }
    }
    for (const LoadedElf& file : loaded->files) {
      if (!seen.insert(file.elf.get()).second) continue;
      handlers.on_visit(file.path);
      handlers.on_elf(file.path, file.elf->source);
    }
  }
  if (denied_count != 0) {
    denied.message = denied_text(denied_count, denied.message);
    handlers.on_error("", denied);
  }
}

}  // namespace reprobe
