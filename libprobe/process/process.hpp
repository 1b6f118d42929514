// A running process as /proc shows it, read only and without stopping it: who it is, what it maps,
// what stands in its memory. Source: proc(5), and fs/proc/base.c for what each file asks of the
// reader (PTRACE_MODE_READ of maps, PTRACE_MODE_ATTACH of mem, CAP_CHECKPOINT_RESTORE of
// map_files).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/process/maps.hpp"

namespace reprobe {

enum class ProcessKind {
  ordinary,
  zombie,         // it has ended; its memory is gone
  kernel_thread,  // it never had any
};

// Does the error say that there is no such process, or that it ended meanwhile?
[[nodiscard]] bool says_ended(const Error& error);
// Does it say that the process is another user's?
[[nodiscard]] bool says_denied(const Error& error);

class Process {
 public:
  // Of a process whose first thread has ended another one is looked at: it has the same memory.
  // Whatever becomes of the process, its number is not taken for another's. Errors: unreadable
  // (there is no such process; it ended meanwhile).
  [[nodiscard]] static Result<Process> open(int pid);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  [[nodiscard]] int pid() const { return pid_; }
  [[nodiscard]] const std::string& name() const { return name_; }  // comm
  [[nodiscard]] ProcessKind kind() const { return kind_; }
  // Who traces it with ptrace, a debugger; 0: nobody.
  [[nodiscard]] int tracer() const { return tracer_; }

  // Errors: unreadable (not permitted; ended meanwhile), malformed. Of a zombie or a kernel thread
  // there are none.
  [[nodiscard]] Result<std::vector<Mapping>> mappings() const;

  // Bytes of its memory. Error unreadable: not permitted, or not mapped.
  [[nodiscard]] Result<Bytes> memory(std::uint64_t address, Size size) const;

  // Has it ended, or does it run another program than when it was opened? What was read of it then
  // may be of both. Told from its memory: false where that may not be read.
  [[nodiscard]] bool is_gone() const;

  // Why its memory cannot be read, whatever the address; nothing where it can.
  [[nodiscard]] std::optional<Error> memory_refused() const;

  // /proc/PID/NAME.
  [[nodiscard]] std::filesystem::path entry(const std::string& name) const;

 private:
  explicit Process(int pid) : pid_(pid) {}
  // Looks at the process, or the thread, whose folder of /proc this is.
  [[nodiscard]] Result<void> look(int folder);
  // Descriptor of the thread's folder of /proc; -1.
  [[nodiscard]] int own_folder(const std::filesystem::path& thread) const;
  // The first thread has ended: another that has not.
  [[nodiscard]] int living_thread() const;

  int pid_;
  int folder_{-1};   // descriptor of /proc/PID: nobody else's, even when the number is used again
  int mem_{-1};      // descriptor of /proc/PID/mem, of the program that ran when it was opened; -1
  int mem_error_{};  // why not: errno
  std::string name_;
  ProcessKind kind_{ProcessKind::ordinary};
  int tracer_{};
};

// The processes that there are, ascending.
[[nodiscard]] Result<std::vector<int>> all_processes();

// "comm" of a process, or "" where it cannot be read: for messages.
[[nodiscard]] std::string process_name(int pid);

}  // namespace reprobe
