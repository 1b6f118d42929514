// reprobe bench: the loops of tool/measure in turn, on one processor, until the time is over; medians.

#include "tool/bench.hpp"

#include <fmt/format.h>

#include "tool/exit_code.hpp"
#include "tool/terminal.hpp"

#if defined(__x86_64__)
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tool/json.hpp"
#include "tool/measure/uprobe_count.hpp"
#include "tool/table.hpp"

extern "C" {  // loops.S
void reprobe_none_real(unsigned long passes);
void reprobe_none_bare(unsigned long passes);
void reprobe_plain_real(unsigned long passes);
void reprobe_plain_bare(unsigned long passes);
void reprobe_nop10_real(unsigned long passes);
void reprobe_nop10_bare(unsigned long passes);
void reprobe_nop5_real(unsigned long passes);
void reprobe_nop5_bare(unsigned long passes);
void reprobe_slot_real(unsigned long passes);
void reprobe_slot_bare(unsigned long passes);
void reprobe_check_real(unsigned long passes);
void reprobe_check_bare(unsigned long passes);
void reprobe_cycles(unsigned long passes);
extern const unsigned char reprobe_plain_site_real[], reprobe_nop10_site_real[],
    reprobe_nop5_site_real[];
}

namespace reprobe {
namespace {

using Clock = std::chrono::steady_clock;
using Loop = void (*)(unsigned long);

constexpr unsigned long kPasses = 4'000'000, kTracedPasses = 50'000, kCyclePasses = 100'000;
constexpr unsigned kCyclesAPass = 64;  // of reprobe_cycles()
constexpr unsigned kFewestRounds = 3;
constexpr double kPays = 0.9;  // of the plain nop's time: less is more than what a run differs by

struct Variant {
  const char* name;
  Loop real, bare;
  const unsigned char* site;  // that is traced; nullptr: none
};
constexpr std::array<Variant, 6> kVariants{{
    {"no site", reprobe_none_real, reprobe_none_bare, nullptr},
    {"plain nop", reprobe_plain_real, reprobe_plain_bare, reprobe_plain_site_real},
    {"nop10 sled", reprobe_nop10_real, reprobe_nop10_bare, reprobe_nop10_site_real},
    {"nop5 sled", reprobe_nop5_real, reprobe_nop5_bare, reprobe_nop5_site_real},
    {"slot sled", reprobe_slot_real, reprobe_slot_bare, nullptr},
    {"semaphore check", reprobe_check_real, reprobe_check_bare, nullptr},
}};
constexpr std::size_t kPlain = 1;

// Nanoseconds a pass, one a round.
struct Samples {
  std::vector<double> real, bare, traced;
  bool called{};  // the site was a call while it was traced, not a trap
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

double nanoseconds(Loop loop, unsigned long passes) {
  const auto start = Clock::now();
  loop(passes);
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
         static_cast<double>(passes);
}

// The calling thread on the processor that it is on, until this goes.
class OneProcessor {
 public:
  OneProcessor() {
    restore_ = sched_getaffinity(0, sizeof old_, &old_) == 0;
    cpu_set_t one;
    CPU_ZERO(&one);
    const int here = sched_getcpu();
    if (here >= 0) CPU_SET(static_cast<unsigned>(here), &one);
    if (here >= 0) sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() {
    if (restore_) sched_setaffinity(0, sizeof old_, &old_);
  }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t old_{};
  bool restore_{};
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        terminal_(options.common.color, options.common.quiet, options.common.verbose) {}

  int run() {
    {
      const OneProcessor one;
      measure();
    }
    if (options_.common.json) {
      print_json(document());
    } else {
      print();
    }
    return kDone;
  }

 private:
  void measure() {
    const auto start = Clock::now();
    const auto length = std::chrono::seconds(options_.seconds);
    for (rounds_ = 0; rounds_ < kFewestRounds || Clock::now() - start < length; ++rounds_) {
      terminal_.progress(fmt::format("round {}", rounds_ + 1));
      cycles_.push_back(nanoseconds(reprobe_cycles, kCyclePasses) / kCyclesAPass);
      for (std::size_t i = 0; i < kVariants.size(); ++i) {
        const Variant& variant = kVariants[i];
        samples_[i].real.push_back(nanoseconds(variant.real, kPasses));
        samples_[i].bare.push_back(nanoseconds(variant.bare, kPasses));
        if (variant.site != nullptr && untraced_.empty()) trace(variant, samples_[i]);
      }
    }
    terminal_.progress("");
    if (!untraced_.empty()) terminal_.warning("not traced: " + untraced_);
  }

  void trace(const Variant& variant, Samples& samples) {
    const auto probe = UprobeCount::attach(variant.site);
    if (!probe) {
      untraced_ = probe.error().where + ": " + probe.error().message + "; " + probe.error().hint;
      return;
    }
    samples.traced.push_back(nanoseconds(variant.real, kTracedPasses));
    constexpr unsigned char kCall = 0xe8;
    samples.called = *static_cast<const volatile unsigned char*>(variant.site) == kCall;
    const auto hits = probe->hits();
    if (!hits || *hits != kTracedPasses)
      untraced_ = fmt::format("{}: {} hits of {}", variant.name, hits.value_or(0), kTracedPasses);
  }

  [[nodiscard]] double cycle() const { return *std::ranges::min_element(cycles_); }

  // "" where nothing can be said.
  [[nodiscard]] std::string verdict(std::size_t i) const {
    if (samples_[i].traced.empty() || !untraced_.empty()) return "";
    if (!samples_[i].called) return "gains nothing: this kernel puts a trap there, as at a plain nop";
    const double ratio = median(samples_[i].traced) / median(samples_[kPlain].traced);
    if (ratio < kPays) return fmt::format("pays: {:.1f} times as fast, traced", 1 / ratio);
    return "gains nothing: the call that this kernel puts there costs as much here as a trap";
  }

  [[nodiscard]] Json document() const {
    Json j = {{"schema", "reprobe.bench/1"}, {"kernel", kernel()}, {"rounds", rounds_}};
    j["cycle_ns"] = cycle();
    Json rows = Json::array();
    for (std::size_t i = 0; i < kVariants.size(); ++i) {
      Json row = {{"what", kVariants[i].name},
                  {"ns", median(samples_[i].real)},
                  {"bare_ns", median(samples_[i].bare)}};
      if (!samples_[i].traced.empty() && untraced_.empty()) {
        row["traced_ns"] = median(samples_[i].traced);
        row["traced_by"] = samples_[i].called ? "call" : "trap";
      }
      rows.push_back(std::move(row));
    }
    j["measured"] = std::move(rows);
    if (!untraced_.empty()) j["not_traced"] = untraced_;
    return j;
  }

  void print() const {
    fmt::print("Linux {}, {} rounds, medians; a cycle is {:.3f} ns\n\n", kernel(), rounds_, cycle());
    const Samples& plain = samples_[kPlain];
    const auto table = [](const TableRow& columns, const std::vector<TableRow>& rows) {
      print_table(columns, rows, [&](std::size_t r, std::size_t c) { return rows[r][c]; });
    };
    std::vector<TableRow> rows;
    for (std::size_t i = 0; i < kVariants.size(); ++i) {
      const double real = median(samples_[i].real), bare = median(samples_[i].bare);
      rows.push_back({kVariants[i].name, fmt::format("{:.2f}", real),
                      fmt::format("{:.2f}", real / cycle()),
                      fmt::format("{:+.2f}", (real - median(plain.real)) / cycle()),
                      fmt::format("{:.2f}", bare / cycle()),
                      fmt::format("{:+.2f}", (bare - median(plain.bare)) / cycle())});
    }
    table({"UNTRACED", "NS", "CYCLES", "OVER THE NOP", "BARE LOOP", "OVER THE NOP"}, rows);
    if (!untraced_.empty()) return;
    rows.clear();
    for (std::size_t i = 0; i < kVariants.size(); ++i) {
      if (samples_[i].traced.empty()) continue;
      const double traced = median(samples_[i].traced);
      rows.push_back({kVariants[i].name, fmt::format("{:.0f}", traced),
                      fmt::format("{:.2f}", traced / median(plain.traced)),
                      samples_[i].called ? "call" : "trap"});
    }
    fmt::print("\n");
    table({"TRACED", "NS", "OF THE NOP", "BY"}, rows);
    fmt::print("\n");
    for (std::size_t i = kPlain + 1; i < kVariants.size(); ++i) {
      if (const std::string said = verdict(i); !said.empty())
        fmt::print("{} {}\n", kVariants[i].name, said);
    }
    fmt::print("slot sled needs no trap: handlers in the process (reprobe run, libreprobe-rt)\n");
  }

  static std::string kernel() {
    utsname name{};
    return uname(&name) == 0 ? printable(name.release) : "";
  }

  const BenchOptions& options_;
  Terminal terminal_;
  std::array<Samples, kVariants.size()> samples_;
  std::vector<double> cycles_;  // nanoseconds of one
  unsigned rounds_{};
  std::string untraced_;  // why nothing was traced
};

}  // namespace

int run_bench(const BenchOptions& options) { return Bench(options).run(); }

}  // namespace reprobe

#else

namespace reprobe {

int run_bench(const BenchOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  terminal.error("", Error{ErrorCode::refused, "", "sleds are for x86-64", ""});
  return kRefused;
}

}  // namespace reprobe
#endif
