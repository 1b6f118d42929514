// effect LINES PRELOAD PROGRAM [ARG..]: prints what the kernel and the dynamic linker make of a
// program, apart from anything that reprobe reads: where it starts, what is mapped where when its
// first instruction runs (each page's content as a number), what it prints and how it ends.
//
// The program runs without address randomisation, as nobody, with the file LINES as its input.
// PRELOAD is a library that the dynamic linker loads as well, or "-"; what it writes to descriptor
// 9 is printed too. A program that never comes to its entry point is told by how it ended.
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr unsigned kSeconds = 10;
constexpr int kFindings = 9;  // the preloaded library's descriptor
pid_t child = 0;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  if (child > 0) kill(child, SIGKILL);
  std::exit(3);
}

void limit(__rlimit_resource what, rlim_t value) {
  const rlimit limits{value, value};
  setrlimit(what, &limits);
}

[[noreturn]] void become(const char* lines, const char* preload, char** arguments, int out,
                         int findings) {
  const int in = open(lines, O_RDONLY | O_CLOEXEC);
  if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
      dup2(findings, kFindings) < 0)
    _exit(126);
  limit(RLIMIT_CPU, 5);
  limit(RLIMIT_FSIZE, 1 << 20);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_NPROC, 64);
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(126);
  personality(ADDR_NO_RANDOMIZE);
  std::string variable = std::string("LD_PRELOAD=") + preload;
  char path[] = "PATH=/usr/bin:/bin";
  char* environment[] = {path, std::strcmp(preload, "-") == 0 ? nullptr : variable.data(), nullptr};
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  execve(arguments[0], arguments, environment);
  std::printf("not started: %s\n", std::strerror(errno));
  std::fflush(stdout);
  _exit(127);
}

std::uint64_t auxiliary(std::uint64_t type) {
  std::ifstream file("/proc/" + std::to_string(child) + "/auxv", std::ios::binary);
  Elf64_auxv_t entry{};
  while (file.read(reinterpret_cast<char*>(&entry), sizeof entry)) {
    if (entry.a_type == type) return entry.a_un.a_val;
  }
  return 0;
}

// FNV-1a.
std::uint64_t digest(const std::vector<unsigned char>& bytes) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const unsigned char byte : bytes) value = (value ^ byte) * 0x100000001b3;
  return value;
}

// One line of /proc/PID/maps.
struct Mapping {
  std::uint64_t begin{}, end{};
  std::string protection, offset, path;
};

std::vector<Mapping> read_mappings() {
  std::ifstream file("/proc/" + std::to_string(child) + "/maps");
  std::vector<Mapping> found;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    Mapping mapping;
    std::string range, device, inode;
    fields >> range >> mapping.protection >> mapping.offset >> device >> inode;
    std::getline(fields >> std::ws, mapping.path);
    mapping.begin = std::strtoull(range.c_str(), nullptr, 16);
    mapping.end = std::strtoull(range.c_str() + range.find('-') + 1, nullptr, 16);
    found.push_back(mapping);
  }
  return found;
}

// The program's own pages and the anonymous ones that follow them. What others hold is theirs, and
// where they are is said by the mappings.
void print_memory(const std::vector<std::string>& files) {
  const int memory =
      open(("/proc/" + std::to_string(child) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  if (memory < 0) fail("/proc/PID/mem");
  bool own = false;
  std::uint64_t end = 0;
  for (const Mapping& mapping : read_mappings()) {
    const bool named = std::ranges::find(files, mapping.path) != files.end();
    own = named || (own && mapping.path.empty() && mapping.begin == end);
    end = mapping.end;
    std::printf("%#lx-%#lx %s %s %s\n", mapping.begin, mapping.end, mapping.protection.c_str(),
                mapping.offset.c_str(), mapping.path.c_str());
    if (!own) continue;
    for (std::uint64_t at = mapping.begin; at < mapping.end; at += kPage) {
      std::vector<unsigned char> bytes(kPage);
      const auto got = pread(memory, bytes.data(), kPage, static_cast<off_t>(at));
      if (got != static_cast<ssize_t>(kPage)) {
        std::printf("  %#lx cannot be read\n", at);
      } else if (const std::uint64_t value = digest(bytes); true) {
        std::printf("  %#lx %016lx\n", at, value);
      }
    }
  }
  close(memory);
}

// Until the program has stopped by a trap at its entry point; false: it ended before.
bool run_to(std::uint64_t entry, int& status) {
  const long old = ptrace(PTRACE_PEEKTEXT, child, entry, nullptr);
  const bool placed =
      errno == 0 && ptrace(PTRACE_POKETEXT, child, entry, (old & ~0xffL) | 0xcc) == 0;
  errno = 0;
  int signal = 0;
  while (ptrace(PTRACE_CONT, child, nullptr, signal) == 0) {
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return false;
    signal = WSTOPSIG(status);
    if (signal != SIGTRAP) continue;
    const auto at = static_cast<std::uint64_t>(
        ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rip), nullptr));
    if (!placed || at != entry + 1) continue;
    ptrace(PTRACE_POKETEXT, child, entry, old);
    ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rip), entry);
    return true;
  }
  return false;
}

void run_to_the_end(int& status) {
  int signal = 0;
  // A library that a helper loads stops with a trap of its own once it is relocated.
  while (WIFSTOPPED(status) && ptrace(PTRACE_CONT, child, nullptr, signal) == 0 &&
         waitpid(child, &status, 0) == child) {
    signal = WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0;
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) return;
  }
}

void print_file(const char* title, int file) {
  std::printf("%s:\n", title);
  std::fflush(stdout);
  lseek(file, 0, SEEK_SET);
  char text[4096];
  for (ssize_t got = 0; (got = read(file, text, sizeof text)) > 0;)
    std::fwrite(text, 1, static_cast<std::size_t>(got), stdout);
}

void on_alarm(int) {
  if (child > 0) kill(child, SIGKILL);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int out = memfd_create("out", 0), findings = memfd_create("findings", 0);
  if (out < 0 || findings < 0) fail("memfd_create");
  child = fork();
  if (child < 0) fail("fork");
  if (child == 0) become(argv[1], argv[2], argv + 3, out, findings);
  signal(SIGALRM, on_alarm);
  alarm(kSeconds);
  int status = 0;
  if (waitpid(child, &status, 0) != child) fail("waitpid");
  std::vector<std::string> files;
  for (int i = 3; i < argc; ++i) files.emplace_back(argv[i]);
  if (WIFSTOPPED(status)) {
    ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
    errno = 0;
    const std::uint64_t entry = auxiliary(AT_ENTRY);
    std::printf("entry %#lx headers %#lx %lu interpreter %#lx\n", entry, auxiliary(AT_PHDR),
                auxiliary(AT_PHNUM), auxiliary(AT_BASE));
    if (run_to(entry, status)) {
      print_memory(files);
      run_to_the_end(status);
      if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) {
        print_memory(files);
        run_to_the_end(status);
      }
    } else {
      std::printf("the entry point is not reached\n");
    }
  }
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  if (WIFEXITED(status)) std::printf("exit %d\n", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) std::printf("signal %d\n", WTERMSIG(status));
  print_file("findings", findings);
  print_file("output", out);
  return 0;
}
