#include "libprobe/verify/second_opinion.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "libprobe/verify/second_opinion_lief.hpp"

namespace reprobe {

#ifndef REPROBE_LIEF  // -DREPROBE_LIEF=OFF

SecondOpinion second_opinion(const std::filesystem::path&, const std::filesystem::path&,
                             const ExpectedChanges&, const SecondOpinionLimits&) {
  return {.state = SecondOpinion::State::unavailable,
          .detail = "reprobe was built without LIEF",
          .differences = {}};
}

#else

namespace {

using Clock = std::chrono::steady_clock;

// The sanitizers reserve terabytes of addresses: RLIMIT_AS cannot be used with them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;
#elif defined(__has_feature)
constexpr bool kLimitsMemory = !__has_feature(address_sanitizer) &&
                               !__has_feature(thread_sanitizer) && !__has_feature(memory_sanitizer);
#else
constexpr bool kLimitsMemory = true;
#endif

// The child's report: lines that begin with one of these.
constexpr char kReading = 'R';      // what LIEF reads from now on
constexpr char kDifference = 'D';   // one difference
constexpr char kUnavailable = 'U';  // why there is no opinion
constexpr char kEnd = 'E';          // the report is whole
constexpr std::size_t kMaxReport = std::size_t{1} << 18;

struct Paths {
  std::string before;
  std::string after;
};

// ---- in the child ----

void send(int pipe, char kind, std::string_view text) {
  std::string line(1, kind);
  constexpr std::size_t kMaxLine = 1024;
  for (const char c : text.substr(0, kMaxLine)) line += c < ' ' || c > '~' ? '?' : c;
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t size = ::write(pipe, rest.data(), rest.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) ::_exit(1);
    rest.remove_prefix(static_cast<std::size_t>(size));
  }
}

void limit(decltype(RLIMIT_AS) resource, std::uint64_t value) {
  struct rlimit now {};
  if (::getrlimit(resource, &now) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(value, now.rlim_max);
  const struct rlimit lower { .rlim_cur = wanted, .rlim_max = wanted };
  ::setrlimit(resource, &lower);
}

// RLIMIT_AS counts what is mapped already, the input file among it.
std::uint64_t mapped_now() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void set_limits(const SecondOpinionLimits& limits) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<std::uint64_t>(limits.time.count()) + 1);
  if (kLimitsMemory) {
    const auto memory = checked_add(mapped_now(), limits.memory.value);
    limit(RLIMIT_AS, memory.value_or(RLIM_INFINITY));
  }
}

// LIEF logs to both streams; the handlers and the blocked signals are those of the caller's
// program.
void detach_from_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGXCPU, SIGPIPE,
                           SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null < 0 || ::dup2(null, stream) < 0) ::close(stream);
  }
}

void report(int pipe, const Paths& paths, const ExpectedChanges& expected) {
  std::string_view which;
  const auto reading = [&](const char* now) { send(pipe, kReading, which = now); };
  std::string problem;
  try {
    for (const std::string& line : lief_differences(paths.before, paths.after, expected, reading)) {
      send(pipe, kDifference, line);
    }
    return send(pipe, kEnd, "");
  } catch (const std::bad_alloc&) {
    return send(pipe, kUnavailable, "LIEF ran out of memory");
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "an unknown exception";
  }
  if (which != "after") {
    return send(pipe, kUnavailable, "LIEF cannot read the file before: " + problem);
  }
  send(pipe, kDifference, "LIEF reads the file before, but not the file after: " + problem);
  send(pipe, kEnd, "");
}

[[noreturn]] void run_child(int pipe, pid_t parent, const Paths& paths,
                            const ExpectedChanges& expected, const SecondOpinionLimits& limits) {
  // Above the standard streams, which the parent may have closed.
  const int answers = ::fcntl(pipe, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::close(pipe);
  detach_from_parent(parent);
  set_limits(limits);
  try {
    report(answers, paths, expected);
  } catch (...) {  // out of memory in the report itself: the parent sees that it is not whole
  }
  ::_exit(0);
}

// ---- in the parent ----

enum class Ending { closed, timed_out, too_long };

Ending read_report(int pipe, Clock::time_point deadline, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Ending::timed_out;
    struct pollfd waiting {
      .fd = pipe, .events = POLLIN, .revents = 0
    };
    const auto wait = std::min<std::int64_t>(left.count(), std::numeric_limits<int>::max());
    if (::poll(&waiting, 1, static_cast<int>(wait)) <= 0) continue;
    const ssize_t size = ::read(pipe, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return Ending::closed;
    text.append(buffer.data(), static_cast<std::size_t>(size));
    if (text.size() > kMaxReport) return Ending::too_long;
  }
}

// Nothing where somebody else has reaped the child.
std::optional<int> wait_for(pid_t child) {
  int status = 0;
  pid_t waited;
  do waited = ::waitpid(child, &status, 0);
  while (waited < 0 && errno == EINTR);
  if (waited != child) return std::nullopt;
  return status;
}

std::string describe_end(Ending ending, std::optional<int> status,
                         const SecondOpinionLimits& limits) {
  if (ending == Ending::timed_out) {
    return fmt::format("LIEF took longer than {} s", limits.time.count());
  }
  if (ending == Ending::too_long) return "LIEF's answer is too long";
  if (!status) return "LIEF's process ended without an answer";
  if (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGXCPU) {
    return fmt::format("LIEF took longer than {} s of CPU time", limits.time.count());
  }
  if (WIFSIGNALED(*status)) return fmt::format("LIEF crashed (signal {})", WTERMSIG(*status));
  return fmt::format("LIEF's process ended without an answer (status {})", WEXITSTATUS(*status));
}

struct Report {
  std::string reading;
  std::string unavailable;
  std::vector<std::string> differences;
  bool whole{};
};

Report parse_report(std::string_view text) {
  Report report;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const std::string line(text.substr(1, end - 1));
    switch (text.front()) {
      case kReading:
        report.reading = line;
        break;
      case kUnavailable:
        report.unavailable = line;
        break;
      case kDifference:
        report.differences.push_back(line);
        break;
      case kEnd:
        report.whole = true;
        break;
      default:
        break;
    }
    text.remove_prefix(end + 1);
  }
  return report;
}

SecondOpinion unavailable(std::string detail) {
  return {
      .state = SecondOpinion::State::unavailable, .detail = std::move(detail), .differences = {}};
}

SecondOpinion opinion_of(Report report, const std::string& end) {
  if (!report.unavailable.empty()) return unavailable(std::move(report.unavailable));
  if (!report.whole) {
    const bool began = !report.reading.empty();
    return unavailable(began ? fmt::format("{} at the file {}", end, report.reading) : end);
  }
  const bool agrees = report.differences.empty();
  return {.state = agrees ? SecondOpinion::State::agrees : SecondOpinion::State::differs,
          .detail = {},
          .differences = std::move(report.differences)};
}

SecondOpinion not_started(int number) {
  return unavailable(fmt::format("no process for LIEF could be started: {}",
                                 std::generic_category().message(number)));
}

}  // namespace

SecondOpinion second_opinion(const std::filesystem::path& before,
                             const std::filesystem::path& after, const ExpectedChanges& expected,
                             const SecondOpinionLimits& limits) {
  SecondOpinionLimits bounded = limits;
  bounded.time = std::clamp(limits.time, std::chrono::seconds(0), std::chrono::seconds(86400));
  const Paths paths{.before = before.native(), .after = after.native()};

  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return not_started(errno);
  const auto deadline = Clock::now() + bounded.time;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) run_child(pipe[1], parent, paths, expected, bounded);
  const int number = errno;
  ::close(pipe[1]);
  if (child < 0) {
    ::close(pipe[0]);
    return not_started(number);
  }

  std::string text;
  const Ending ending = read_report(pipe[0], deadline, text);
  ::close(pipe[0]);
  if (ending != Ending::closed) ::kill(child, SIGKILL);
  const auto status = wait_for(child);
  return opinion_of(parse_report(text), describe_end(ending, status, bounded));
}

#endif  // REPROBE_LIEF

}  // namespace reprobe
