#include "libprobe/process/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

namespace reprobe {
namespace {

constexpr std::uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD, include/linux/sched.h

std::filesystem::path proc(int pid) { return std::filesystem::path("/proc") / std::to_string(pid); }

constexpr const char* kOwnersOnly = "run it as the process's owner, or as root";
constexpr const char* kEnded = "there is no such process, or it has ended";

tl::unexpected<Error> no_such_process() { return fail(ErrorCode::unreadable, "", kEnded); }

// Files of /proc have no size: they are read to their end.
Result<std::string> read_entry(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int failure = fd < 0 ? errno : 0;
  std::string text;
  std::array<char, 16384> buffer{};
  while (failure == 0) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count == 0) break;
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) failure = errno;
  }
  if (fd >= 0) ::close(fd);
  if (failure == 0) return text;
  if (failure == ENOENT || failure == ESRCH) return no_such_process();
  const bool denied = failure == EACCES || failure == EPERM;
  return fail(ErrorCode::unreadable, path.filename().string(),
              fmt::format("cannot be read: {}", std::generic_category().message(failure)),
              denied ? kOwnersOnly : "");
}

std::uint64_t number_in(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  std::uint64_t value = 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

// "pid (comm) state ppid pgrp session tty tpgid flags ...": a comm may hold blanks and ')'.
struct Stat {
  std::string name;
  char state{};
  std::uint64_t flags{};
};
std::optional<Stat> parse_stat(std::string_view text) {
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open ||
      close + 3 > text.size()) {
    return std::nullopt;
  }
  Stat stat{std::string(text.substr(open + 1, close - open - 1)), text[close + 2], 0};
  std::string_view rest = text.substr(close + 2);
  constexpr int kFieldsBeforeFlags = 6;  // state .. tpgid
  for (int i = 0; i < kFieldsBeforeFlags; ++i) {
    const std::size_t blank = rest.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(blank + 1);
  }
  stat.flags = number_in(rest);
  return stat;
}

bool has_ended(const Stat& stat) { return stat.state == 'Z' || stat.state == 'X'; }

// Of a line of "status"; the name, its first, is written without line feeds.
int status_number(std::string_view status, std::string_view field) {
  const std::size_t at = status.find(fmt::format("\n{}:", field));
  if (at == std::string_view::npos) return 0;
  return static_cast<int>(number_in(status.substr(at + field.size() + 2)));
}

}  // namespace

bool says_ended(const Error& error) { return error.message == kEnded; }
bool says_denied(const Error& error) { return error.hint == kOwnersOnly; }

Result<void> Process::look(int folder) {
  if (folder_ >= 0) ::close(folder_);
  if (mem_ >= 0) ::close(mem_);
  folder_ = folder;
  // First of all: a descriptor of the memory stays with the program that runs now.
  mem_ = ::open(entry("mem").c_str(), O_RDONLY | O_CLOEXEC);
  mem_error_ = mem_ < 0 ? errno : 0;
  const auto text = read_entry(entry("stat"));
  if (!text) return tl::unexpected(text.error());
  const auto stat = parse_stat(*text);
  if (!stat) return fail(ErrorCode::malformed, "stat", "is not of the known format");
  name_ = stat->name;
  kind_ = ProcessKind::ordinary;
  if (has_ended(*stat)) kind_ = ProcessKind::zombie;
  if ((stat->flags & kKernelThread) != 0) kind_ = ProcessKind::kernel_thread;
  if (const auto status = read_entry(entry("status")))
    tracer_ = status_number(*status, "TracerPid");
  return {};
}

// Each thread has a folder in /proc, too, though none that is listed: that in "task" has no
// map_files.
int Process::own_folder(const std::filesystem::path& thread) const {
  const int folder =
      ::open((std::filesystem::path("/proc") / thread).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  const auto status = read_entry(fmt::format("/proc/self/fd/{}/status", folder));
  if (status && status_number(*status, "Tgid") == pid_) return folder;
  ::close(folder);
  return -1;
}

int Process::living_thread() const {
  std::error_code failure;
  for (std::filesystem::directory_iterator it(entry("task"), failure), end; !failure && it != end;
       it.increment(failure)) {
    const auto text = read_entry(it->path() / "stat");
    const auto stat = text ? parse_stat(*text) : std::nullopt;
    if (!stat || has_ended(*stat)) continue;
    const int own = own_folder(it->path().filename());
    return own >= 0 ? own : ::open(it->path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  return -1;
}

Result<Process> Process::open(int pid) {
  Process process(pid);
  const int folder = ::open(fmt::format("/proc/{}", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return no_such_process();
  if (auto done = process.look(folder); !done) return tl::unexpected(done.error());
  if (process.kind_ == ProcessKind::zombie) {
    const int thread = process.living_thread();
    if (thread >= 0) {
      if (auto done = process.look(thread); !done) return tl::unexpected(done.error());
    }
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(other.pid_),
      folder_(std::exchange(other.folder_, -1)),
      mem_(std::exchange(other.mem_, -1)),
      mem_error_(other.mem_error_),
      name_(std::move(other.name_)),
      kind_(other.kind_),
      tracer_(other.tracer_) {}

Process::~Process() {
  if (folder_ >= 0) ::close(folder_);
  if (mem_ >= 0) ::close(mem_);
}

Result<std::vector<Mapping>> Process::mappings() const {
  if (kind_ != ProcessKind::ordinary) return std::vector<Mapping>{};
  const auto text = read_entry(entry("maps"));
  if (!text) return tl::unexpected(text.error());
  // Whoever runs has mappings: the kernel gives none, or not all, of a process that ended meanwhile
  // or executed another program.
  if (text->empty() || is_gone()) return no_such_process();
  return parse_maps(*text);
}

// mem_rw() of fs/proc/base.c: of memory that nobody has any more it gives no bytes, of an address
// that is not mapped an error.
bool Process::is_gone() const {
  if (kind_ != ProcessKind::ordinary || mem_ < 0) return false;
  std::byte byte{};
  return ::pread(mem_, &byte, 1, 0) == 0;
}

std::optional<Error> Process::memory_refused() const {
  if (mem_ >= 0) return std::nullopt;
  const bool denied = mem_error_ == EACCES || mem_error_ == EPERM;
  return Error{ErrorCode::unreadable, "mem",
               fmt::format("cannot be read: {}", std::generic_category().message(mem_error_)),
               denied ? "needs the rights of ptrace: root, or the owner where "
                        "kernel.yama.ptrace_scope allows it"
                      : ""};
}

Result<Bytes> Process::memory(std::uint64_t address, Size size) const {
  if (auto refused = memory_refused()) return tl::unexpected(std::move(*refused));
  Bytes bytes(static_cast<std::size_t>(size.value));
  ssize_t count = 0;
  do {
    count = ::pread(mem_, bytes.data(), bytes.size(), static_cast<off_t>(address));
  } while (count < 0 && errno == EINTR);
  if (count < 0 || static_cast<std::size_t>(count) != bytes.size()) {
    return fail(ErrorCode::unreadable, "mem", fmt::format("{:#x} cannot be read", address));
  }
  return bytes;
}

std::filesystem::path Process::entry(const std::string& name) const {
  return fmt::format("/proc/self/fd/{}/{}", folder_, name);
}

Result<std::vector<int>> all_processes() {
  std::vector<int> result;
  std::error_code failure;
  for (std::filesystem::directory_iterator it("/proc", failure), end; !failure && it != end;
       it.increment(failure)) {
    const std::string name = it->path().filename().string();
    int pid = 0;
    const auto [next, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc{} && next == name.data() + name.size() && pid > 0) result.push_back(pid);
  }
  if (failure) {
    return fail(ErrorCode::unreadable, "/proc", "cannot be read: " + failure.message());
  }
  std::ranges::sort(result);
  return result;
}

std::string process_name(int pid) {
  const auto text = read_entry(proc(pid) / "comm");
  return text ? text->substr(0, text->find('\n')) : "";
}

}  // namespace reprobe
