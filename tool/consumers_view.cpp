#include "tool/consumers_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace reprobe {
namespace {

constexpr std::size_t kRows = 12;        // of probes; more scroll the findings away
constexpr std::size_t kProbeWidth = 20;  // of the first column: ten consumers fit 100 columns
constexpr std::size_t kCellWidth = 4;    // at least, of the others
constexpr std::size_t kLine = 100;

// What a cell says about the first step that fails.
std::string cell(const ConsumerFailure& failure) {
  switch (failure.what) {
    case Step::list:
      return "list";
    case Step::attach:
      return "site";
    case Step::semaphore:
      return "sema";
    case Step::argument:
      return fmt::format("arg{}", failure.argument);
    case Step::dangling:
      break;
  }
  return "dead";
}

std::string cut(std::string text, std::size_t width) {
  if (text.size() > width) {
    text.resize(width - 2);
    text += "..";
  }
  return text;
}

std::size_t width_of(const ConsumerVerdict& verdict) {
  return std::max(verdict.consumer.size(), kCellWidth);
}

std::string row(const std::string& first, std::span<const ConsumerVerdict> verdicts,
                const std::vector<std::string>& cells) {
  std::string line = fmt::format("  {:<{}}", first, kProbeWidth);
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    line += fmt::format(" {:<{}}", cells[i], width_of(verdicts[i]));
  }
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

// By probe: the cell of each consumer that fails it.
using Table = std::map<std::size_t, std::vector<std::string>>;

// The last probe of which all failures are there: of each reason only the first kFailuresKept are.
std::size_t last_complete(std::span<const ConsumerVerdict> verdicts) {
  std::size_t last = std::numeric_limits<std::size_t>::max();
  for (const ConsumerVerdict& verdict : verdicts) {
    if (verdict.left_out == 0) continue;
    std::map<std::string_view, std::size_t> kept;
    for (const ConsumerFailure& failure : verdict.failures) {
      if (++kept[failure.reason] == kFailuresKept) last = std::min(last, failure.probe);
    }
  }
  return last;
}

// A limit alone gives a probe no row unless `limits` says so; in the rows that there are, limits
// show, too, lest a "-" promises what the tracer cannot do.
Table table_of(std::span<const ConsumerVerdict> verdicts, bool limits) {
  Table table;
  const std::size_t last = last_complete(verdicts);
  for (const ConsumerVerdict& verdict : verdicts) {
    for (const ConsumerFailure& failure : verdict.failures) {
      if (failure.probe > last || (!limits && reason_is_limit(failure.reason))) continue;
      table.try_emplace(failure.probe, verdicts.size(), "-");
    }
  }
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    for (const ConsumerFailure& failure : verdicts[i].failures) {
      const auto line = table.find(failure.probe);
      if (line == table.end() || line->second[i] != "-") continue;
      line->second[i] = cell(failure);
    }
  }
  return table;
}

// The sites of one probe that have the same cells: one row.
struct Row {
  std::string name;
  const std::vector<std::string>* cells{};
  std::size_t sites{};
};

std::vector<Row> rows_of(const Table& table, const ProbeFile& probes) {
  std::vector<Row> rows;
  std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> index;
  for (const auto& [probe, cells] : table) {
    const Note& note = probes.probes[probe].note;
    std::string name = printable(fmt::format("{}:{}", note.provider, note.name));
    const auto [at, added] = index.try_emplace({name, cells}, rows.size());
    if (added) rows.push_back({std::move(name), &cells, 0});
    ++rows[at->second].sites;
  }
  return rows;
}

std::string first_column(const Row& row) {
  const std::string times = row.sites == 1 ? "" : fmt::format(" x{}", row.sites);
  return cut(row.name, kProbeWidth - times.size()) + times;
}

void print_verdict_table(std::span<const ConsumerVerdict> verdicts, const ProbeFile& probes,
                         bool limits, const Terminal& terminal) {
  const Table table = table_of(verdicts, limits);
  std::vector<std::string> cells;
  for (const ConsumerVerdict& verdict : verdicts) cells.emplace_back(verdict.consumer);
  fmt::print("{}\n", terminal.out(Style::bold, row("tracer", verdicts, cells)));
  cells.clear();
  for (const ConsumerVerdict& verdict : verdicts) cells.push_back(fmt::format("{}", verdict.ok));
  fmt::print("{}\n", row("probes traced fully", verdicts, cells));
  const std::vector<Row> rows = rows_of(table, probes);
  for (std::size_t i = 0; i < std::min(rows.size(), kRows); ++i) {
    fmt::print("{}\n", row(first_column(rows[i]), verdicts, *rows[i].cells));
  }
  const bool cut_off = std::ranges::any_of(
      verdicts, [](const ConsumerVerdict& verdict) { return verdict.left_out != 0; });
  if (rows.size() > kRows || cut_off) {
    const std::string more = cut_off ? "and" : fmt::format("{}", rows.size() - kRows);
    fmt::print("  ... {} more, see --json\n", more);
  }
}

struct Cause {
  std::string consumers;
  std::string detail;  // of the first failure
};

// Each reason once, with the consumers that it concerns, in the order of their first failures.
void print_reasons(const std::vector<ConsumerVerdict>& verdicts) {
  std::vector<std::pair<std::string_view, Cause>> causes;
  std::map<std::string_view, std::size_t> index;
  for (const ConsumerVerdict& verdict : verdicts) {
    std::set<std::string_view> named;
    for (const ConsumerFailure& failure : verdict.failures) {
      const auto [it, is_new] = index.try_emplace(failure.reason, causes.size());
      if (is_new) causes.emplace_back(failure.reason, Cause{{}, failure.detail});
      std::string& consumers = causes[it->second].second.consumers;
      if (!named.insert(failure.reason).second) continue;
      consumers += fmt::format("{}{}", consumers.empty() ? "" : ", ", verdict.consumer);
    }
  }
  for (const auto& [reason, cause] : causes) {
    fmt::print("  {} ({})\n      {}{}\n", reason, cause.consumers, reason_text(reason),
               cause.detail.empty() ? "" : fmt::format(": {}", printable(cause.detail)));
  }
}

}  // namespace

Json consumers_json(const std::vector<ConsumerVerdict>& verdicts, const ProbeFile& probes) {
  Json all = Json::object();
  for (const ConsumerVerdict& verdict : verdicts) {
    Json failures = Json::array();
    for (const ConsumerFailure& failure : verdict.failures) {
      const Probe& probe = probes.probes[failure.probe];
      Json j = Json::object();
      j["provider"] = probe.note.provider;
      j["name"] = probe.note.name;
      j["site"] = hex(probe.site.value);
      j["note_offset"] = hex(probe.note.file_offset.value);
      j["what"] = to_string(failure.what);
      j["reason"] = failure.reason;
      if (failure.argument != 0) j["argument"] = failure.argument;
      if (!failure.detail.empty()) j["detail"] = failure.detail;
      j["message"] = reason_text(failure.reason);
      failures.push_back(std::move(j));
    }
    Json j = Json::object();
    j["ok"] = verdict.ok;
    j["fail"] = verdict.fail;
    j["listed"] = verdict.listed;
    j["dangling"] = verdict.dangling;
    j["failures"] = std::move(failures);
    if (verdict.left_out != 0) j["left_out"] = verdict.left_out;
    all[std::string(verdict.consumer)] = std::move(j);
  }
  return all;
}

bool any_fault(const std::vector<ConsumerVerdict>& verdicts) {
  return std::ranges::any_of(verdicts, [](const ConsumerVerdict& verdict) {
    return std::ranges::any_of(verdict.failures, [](const ConsumerFailure& failure) {
      return !reason_is_limit(failure.reason);
    });
  });
}

bool any_failure(const std::vector<ConsumerVerdict>& verdicts) {
  return std::ranges::any_of(verdicts, [](const ConsumerVerdict& v) { return v.fail != 0; });
}

void print_consumers(const std::vector<ConsumerVerdict>& verdicts, const ProbeFile& probes,
                     bool limits, const Terminal& terminal) {
  // As many tables as it takes: a terminal's line is not longer.
  for (std::span<const ConsumerVerdict> rest(verdicts); !rest.empty();) {
    std::size_t width = 2 + kProbeWidth, count = 0;
    while (count < rest.size() && (count == 0 || width + 1 + width_of(rest[count]) <= kLine)) {
      width += 1 + width_of(rest[count++]);
    }
    print_verdict_table(rest.first(count), probes, limits, terminal);
    rest = rest.subspan(count);
  }
  print_reasons(verdicts);
}

}  // namespace reprobe
