#include "tool/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "tool/json.hpp"
#include "tool/terminal.hpp"

namespace reprobe {
namespace {

std::string argument_text(const TracedEvent& event, std::size_t n) {
  const bool is_signed = (event.is_signed >> n & 1) != 0;
  return is_signed ? fmt::format("{}", event.arguments[n])
                   : fmt::format("{}", static_cast<std::uint64_t>(event.arguments[n]));
}

std::string chrome_json(const std::vector<TracedEvent>& events, std::uint64_t lost) {
  Json list = Json::array();
  for (const TracedEvent& event : events) {
    Json arguments = Json::object();
    for (std::size_t n = 0; n < event.arguments.size(); ++n) {
      const bool is_signed = (event.is_signed >> n & 1) != 0;
      if (is_signed) {
        arguments[fmt::format("arg{}", n)] = event.arguments[n];
      } else {
        arguments[fmt::format("arg{}", n)] = static_cast<std::uint64_t>(event.arguments[n]);
      }
    }
    list.push_back({{"name", printable(event.probe)},
                    {"ph", "i"},
                    {"s", "t"},
                    {"ts", event.nanoseconds / 1000},
                    {"pid", event.process},
                    {"tid", event.thread},
                    {"args", std::move(arguments)}});
  }
  Json j = {{"traceEvents", std::move(list)}, {"displayTimeUnit", "ns"}};
  j["otherData"] = {{"lost", lost}};
  return j.dump() + "\n";
}

// Nanoseconds of each pair, ascending.
std::vector<double> latencies(const std::vector<TracedEvent>& events, const std::string& from,
                              const std::string& to) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> open;  // by thread
  std::vector<double> found;
  for (const TracedEvent& event : events) {
    const std::pair thread{event.process, event.thread};
    if (event.probe == to) {
      const auto begin = open.find(thread);
      if (begin != open.end()) {
        found.push_back(event.nanoseconds - begin->second);
        open.erase(begin);
      }
    }
    if (event.probe == from) open[thread] = event.nanoseconds;
  }
  std::ranges::sort(found);
  return found;
}

double percentile(const std::vector<double>& sorted, unsigned percent) {
  return sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
}

// Rows of a histogram: the n-th counts what took at least 2^(n-1) ns and less than 2^n.
std::map<unsigned, std::uint64_t> powers_of_two(const std::vector<double>& values) {
  std::map<unsigned, std::uint64_t> rows;
  for (const double value : values)
    ++rows[static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(std::max(value, 0.0))))];
  return rows;
}

constexpr std::array<unsigned, 3> kPercents{50, 90, 99};

}  // namespace

std::string counts_text(const RunTable& table, bool json) {
  std::vector<std::pair<std::uint64_t, std::string>> rows;
  for (const auto& [name, hits] : table.counts()) rows.emplace_back(hits, name);
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.first > b.first; });
  if (json) {
    Json j = Json::object();
    for (const auto& [hits, name] : rows) j[printable(name)] = hits;
    return j.dump(2) + "\n";
  }
  std::string text = fmt::format("{:>12}  PROBE\n", "HITS");
  for (const auto& [hits, name] : rows) text += fmt::format("{:>12}  {}\n", hits, printable(name));
  return text;
}

std::string trace_text(RunTable& table, bool json) {
  const std::vector<TracedEvent> events = table.events();
  if (json) return chrome_json(events, table.lost());
  std::string text =
      fmt::format("{:>14}  {:>8}  {:>8}  PROBE  ARGUMENTS\n", "SECONDS", "PROCESS", "THREAD");
  for (const TracedEvent& event : events) {
    text += fmt::format("{:>14.9f}  {:>8}  {:>8}  {}", event.nanoseconds / 1e9, event.process,
                        event.thread, printable(event.probe));
    for (std::size_t n = 0; n < event.arguments.size(); ++n)
      text += (n == 0 ? "  " : " ") + argument_text(event, n);
    text += '\n';
  }
  if (table.lost() != 0) text += fmt::format("lost: {}\n", table.lost());
  return text;
}

std::optional<std::pair<std::string, std::string>> latency_probes(const std::string& text) {
  const auto dots = text.find("..");
  if (dots == std::string::npos) return std::nullopt;
  std::pair probes{text.substr(0, dots), text.substr(dots + 2)};
  const bool good =
      probes.first.find(':') != std::string::npos && probes.second.find(':') != std::string::npos;
  return good ? std::optional(std::move(probes)) : std::nullopt;
}

std::string latency_text(RunTable& table, const std::string& from, const std::string& to,
                         bool json) {
  const std::vector<double> values = latencies(table.events(), from, to);
  const auto rows = powers_of_two(values);
  if (json) {
    Json buckets = Json::array();
    for (const auto& [power, count] : rows)
      buckets.push_back({{"below", std::uint64_t{1} << power}, {"count", count}});
    Json j = {{"from", from}, {"to", to}, {"pairs", values.size()}, {"lost", table.lost()}};
    j["nanoseconds"] = std::move(buckets);
    if (!values.empty()) {
      for (const unsigned p : kPercents) j[fmt::format("p{}", p)] = percentile(values, p);
      j["most"] = values.back();
    }
    return j.dump(2) + "\n";
  }
  std::string text = printable(fmt::format("{}..{}: {} pairs", from, to, values.size())) + "\n";
  std::uint64_t most = 1;
  for (const auto& [power, count] : rows) most = std::max(most, count);
  constexpr std::uint64_t kBar = 40;
  for (const auto& [power, count] : rows) {
    text += fmt::format("{:>14} ns  {:>10}  {}\n", fmt::format("< {}", std::uint64_t{1} << power),
                        count, std::string(static_cast<std::size_t>(count * kBar / most), '#'));
  }
  if (!values.empty()) {
    for (const unsigned p : kPercents)
      text += fmt::format("p{} {:.0f} ns, ", p, percentile(values, p));
    text += fmt::format("most {:.0f} ns\n", values.back());
  }
  if (table.lost() != 0) text += fmt::format("lost: {}\n", table.lost());
  return text;
}

}  // namespace reprobe
