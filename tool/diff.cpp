// reprobe diff: what the probes of two files have different.

#include "libprobe/audit/diff.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/probes/select.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/inputs.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"

namespace reprobe {
namespace {

// Reads the probes of a file or of an archive's members. A part that cannot be read would show as
// removed or added: then there is no answer, and `exit` says why.
ProbeSurface read_surface(const std::string& path, const CommonOptions& options,
                          const Terminal& terminal, int& exit) {
  ProbeSurface surface;
  InputHandlers handlers;
  handlers.on_visit = [](const std::string&) {};
  handlers.on_error = [&](const std::string& where, const Error& error) {
    terminal.error(where, error);
    exit = std::max(exit, exit_code(error.code));
  };
  handlers.on_elf = [&](const std::string& where, std::shared_ptr<const ByteSource> source) {
    const auto file = open_elf(std::move(source));
    if (!file) return handlers.on_error(where, file.error());
    warn_of_problems(where, *file, terminal);
    const auto indexed = read_index_probes(*file);
    const ProbeFile read = indexed ? *indexed : read_probes(*file);
    warn_of_notes(where, read.scan, terminal);
    for (const Probe& probe : read.probes) {
      if (!selected(options.patterns, probe.note) || surface.add(probe)) continue;
      terminal.detail(fmt::format("{}: {}:{} is dangling: {}", where, probe.note.provider,
                                  probe.note.name, fmt::join(probe.evidence, "; ")));
    }
  };
  for_each_elf(path, false, handlers);
  if (surface.dangling() != 0) {
    terminal.info(fmt::format("{}: {} dangling left out", path, surface.dangling()));
  }
  return surface;
}

std::string sites_text(std::size_t count) {
  return fmt::format("{} site{}", count, count == 1 ? "" : "s");
}

std::string type_text(const ArgumentShape& argument) {
  return argument.type.empty() ? "?" : argument.type;
}

std::string signature_text(const Signature& signature) {
  std::string text;
  for (const ArgumentShape& argument : signature.arguments) {
    text += ' ';
    text += type_text(argument);
  }
  if (text.empty()) text = " no arguments";
  return text.substr(1) + (signature.semaphore ? ", semaphore" : "");
}

std::string name_text(const NameDifference& difference) {
  return printable(fmt::format("{}:{}", difference.provider, difference.name));
}

void print_sites(const char* sign, const SiteCounts& sites) {
  for (const auto& [signature, count] : sites) {
    fmt::print("    {} {}: {}\n", sign, sites_text(count), signature_text(signature));
  }
}

struct Change {
  const char* what;  // for programs
  std::string text;
};

std::vector<Change> changes_of(const NameDifference& difference) {
  const auto replaced = replaced_signature(difference);
  if (!replaced) return {{"signatures", "other arguments or semaphores at some sites"}};
  const auto& [from, to] = *replaced;
  std::vector<Change> changes;
  if (from.arguments.size() != to.arguments.size()) {
    changes.push_back({"argument_count", fmt::format("argument count {} -> {}",
                                                     from.arguments.size(), to.arguments.size())});
  } else {
    for (std::size_t i = 0; i < from.arguments.size(); ++i) {
      if (from.arguments[i] == to.arguments[i]) continue;
      changes.push_back(
          {"argument_type", fmt::format("argument {} {} -> {}", i + 1, type_text(from.arguments[i]),
                                        type_text(to.arguments[i]))});
    }
  }
  if (from.semaphore != to.semaphore) {
    changes.push_back({"semaphore", to.semaphore ? "semaphore added" : "semaphore removed"});
  }
  return changes;
}

void print_text(const ProbeDifferences& differences, const Terminal& terminal) {
  const auto head = [&](Style style, std::string_view what, const NameDifference& difference) {
    return terminal.out(style, what) + " " + terminal.out(Style::bold, name_text(difference));
  };
  for (const NameDifference& d : differences.removed) {
    fmt::print("{}\n", head(Style::red, "removed", d));
    print_sites("-", d.before);
  }
  for (const NameDifference& d : differences.added) {
    fmt::print("{}\n", head(Style::cyan, "added", d));
    print_sites("+", d.after);
  }
  for (const NameDifference& d : differences.changed) {
    std::string texts;
    for (const Change& change : changes_of(d)) texts += ", " + change.text;
    fmt::print("{}: {}\n", head(Style::yellow, "changed", d), texts.substr(2));
    print_sites("-", d.before);
    print_sites("+", d.after);
  }
  for (const NameDifference& d : differences.site_count) {
    fmt::print("{}: {} -> {}, each with the same arguments as before\n",
               head(Style::cyan, "note", d), sites_text(sites_of(d.before)),
               sites_text(sites_of(d.after)));
  }
  fmt::print("{} removed, {} added, {} changed, {} the same\n", differences.removed.size(),
             differences.added.size(), differences.changed.size(), differences.same);
}

Json sites_json(const SiteCounts& sites) {
  Json list = Json::array();
  for (const auto& [signature, count] : sites) {
    Json arguments = Json::array();
    for (const ArgumentShape& argument : signature.arguments) {
      Json item = Json::object();
      if (argument.size) item["size"] = *argument.size;
      if (!argument.type.empty()) item["type"] = argument.type;
      arguments.push_back(std::move(item));
    }
    list.push_back({{"sites", count},
                    {"arguments", std::move(arguments)},
                    {"semaphore", signature.semaphore}});
  }
  return list;
}

Json difference_json(const NameDifference& difference) {
  Json item = {{"provider", difference.provider}, {"name", difference.name}};
  if (!difference.before.empty()) item["old"] = sites_json(difference.before);
  if (!difference.after.empty()) item["new"] = sites_json(difference.after);
  return item;
}

Json list_json(const std::vector<NameDifference>& differences) {
  Json list = Json::array();
  for (const NameDifference& difference : differences) list.push_back(difference_json(difference));
  return list;
}

Json changed_json(const std::vector<NameDifference>& changed) {
  Json list = Json::array();
  for (const NameDifference& difference : changed) {
    Json item = difference_json(difference);
    for (const Change& change : changes_of(difference)) {
      item["changes"].push_back({{"what", change.what}, {"text", change.text}});
    }
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

int run_diff(const DiffOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  int exit = kDone;
  const ProbeSurface before = read_surface(options.before, options.common, terminal, exit);
  const ProbeSurface after = read_surface(options.after, options.common, terminal, exit);
  if (exit != kDone) return exit;
  const ProbeDifferences differences = diff(before, after);
  if (options.common.json) {
    print_json({{"schema", "reprobe.diff/1"},
                {"old", options.before},
                {"new", options.after},
                {"removed", list_json(differences.removed)},
                {"added", list_json(differences.added)},
                {"changed", changed_json(differences.changed)},
                {"site_count", list_json(differences.site_count)},
                {"same", differences.same}});
  } else {
    print_text(differences, terminal);
  }
  return differences.none() ? kDone : kFindings;
}

}  // namespace reprobe
