#include "tool/consumers_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace reprobe {
namespace {

constexpr std::size_t kRows = 12;        // of probes; more scroll the findings away
constexpr std::size_t kProbeWidth = 20;  // of the first column: ten consumers fit 100 columns
constexpr std::size_t kCellWidth = 4;    // at least, of the others

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

std::string row(const std::string& first, const std::vector<ConsumerVerdict>& verdicts,
                const std::vector<std::string>& cells) {
  std::string line = fmt::format("  {:<{}}", first, kProbeWidth);
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    line += fmt::format(" {:<{}}", cells[i], width_of(verdicts[i]));
  }
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

// By probe: the cell of each consumer that fails it.
using Table = std::map<std::size_t, std::vector<std::string>>;

Table table_of(const std::vector<ConsumerVerdict>& verdicts, bool limits) {
  Table table;
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    for (const ConsumerFailure& failure : verdicts[i].failures) {
      if (!limits && reason_is_limit(failure.reason)) continue;
      auto& cells = table.try_emplace(failure.probe, verdicts.size(), "-").first->second;
      if (cells[i] == "-") cells[i] = cell(failure);
    }
  }
  return table;
}

void print_table(const std::vector<ConsumerVerdict>& verdicts, const ProbeFile& probes, bool limits,
                 const Terminal& terminal) {
  const Table table = table_of(verdicts, limits);
  std::vector<std::string> cells;
  for (const ConsumerVerdict& verdict : verdicts) cells.emplace_back(verdict.consumer);
  fmt::print("{}\n", terminal.out(Style::bold, row("tracer", verdicts, cells)));
  cells.clear();
  for (const ConsumerVerdict& verdict : verdicts) cells.push_back(fmt::format("{}", verdict.ok));
  fmt::print("{}\n", row("probes traced fully", verdicts, cells));
  std::size_t rows = 0;
  for (const auto& [index, line] : table) {
    if (rows++ == kRows) break;
    const Note& note = probes.probes[index].note;
    const std::string name = printable(fmt::format("{}:{}", note.provider, note.name));
    fmt::print("{}\n", row(cut(name, kProbeWidth), verdicts, line));
  }
  if (table.size() > kRows) fmt::print("  ... {} more, see --json\n", table.size() - kRows);
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
  print_table(verdicts, probes, limits, terminal);
  print_reasons(verdicts);
}

}  // namespace reprobe
