// reprobe list: the probes of each file.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "libprobe/code/rust_names.hpp"
#include "libprobe/deps/dependencies.hpp"
#include "libprobe/probes/note_header.hpp"
#include "libprobe/probes/select.hpp"
#include "reprobe/reprobe.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/inputs.hpp"
#include "tool/json.hpp"
#include "tool/link_inputs.hpp"
#include "tool/list_as.hpp"
#include "tool/options.hpp"
#include "tool/table.hpp"

namespace reprobe {
namespace {

const TableRow kColumns = {"SITE",     "VERDICT",   "KIND",     "PROBE",
                           "FUNCTION", "SEMAPHORE", "ARGUMENTS"};

// Of Rust as the source has it; with -v the symbol too.
std::string function_name(const Probe& probe, bool verbose) {
  const std::string& name = function_of(probe)->name;
  const auto readable = demangle_rust(name);
  if (!readable) return name;
  return verbose ? fmt::format("{} [{}]", *readable, name) : *readable;
}

std::string function_text(const Probe& probe, bool verbose) {
  if (!function_of(probe) || function_of(probe)->name.empty()) {
    return probe.section.empty() ? "-" : fmt::format("({})", probe.section);
  }
  return fmt::format("{}+{:#x}", function_name(probe, verbose),
                     site_in_function(probe).value - function_of(probe)->start.value);
}

TableRow row_of(const Probe& probe, bool verbose) {
  const bool semaphore = probe.semaphore.value != 0 || probe.note.semaphore_section != 0;
  return {hex(probe.site.value),
          to_string(probe.verdict),
          !probe.legacy.empty()   ? fmt::format("legacy:{}", probe.legacy)
          : probe.facts.has_bytes ? site_kind(probe)
                                  : "-",
          printable(fmt::format("{}:{}", probe.note.provider, probe.note.name)),
          printable(function_text(probe, verbose)),
          semaphore                        ? hex(probe.semaphore.value)
          : probe.note.semaphore_undefined ? "undefined"
                                           : "-",
          probe.note.arguments.empty() ? "-" : printable(probe.note.arguments)};
}

Style verdict_style(Verdict verdict) {
  return verdict == Verdict::dangling ? Style::red : Style::yellow;
}

// `needed_by`: the file through which a dependency came; "" for a file that was named. `indexed`:
// the notes are gone.
void print_text(const std::string& path, const ElfFile& file, const std::string& needed_by,
                const std::vector<const Probe*>& probes, bool indexed, bool verbose,
                const Terminal& terminal) {
  const ElfHeader& header = file.header();
  fmt::print("{}: {} {}-endian {} {}, {} probe{}{}\n", terminal.out(Style::bold, printable(path)),
             header.is64 ? "ELF64" : "ELF32",
             header.order == std::endian::little ? "little" : "big", machine_name(header.machine),
             type_name(header.type), probes.size(), probes.size() == 1 ? "" : "s",
             indexed ? " in the index, none in notes" : "");
  if (!needed_by.empty()) fmt::print("  needed by {}\n", printable(needed_by));
  if (probes.empty()) return;
  std::vector<TableRow> rows;
  for (const Probe* probe : probes) rows.push_back(row_of(*probe, verbose));
  print_table(kColumns, rows, [&](std::size_t row, std::size_t column) {
    const Verdict verdict = probes[row]->verdict;
    const bool shout = column == 1 && verdict != Verdict::live;
    return shout ? terminal.out(verdict_style(verdict), rows[row][column]) : rows[row][column];
  });
}

class Lister {
 public:
  Lister(const ListOptions& options, const Terminal& terminal)
      : options_(options), terminal_(terminal), root_(options.root.empty() ? "/" : options.root) {}

  int run() {
    auto objects = read_link_objects(options_.objects);
    if (!objects) {
      terminal_.error("--objects", objects.error());
      return exit_code(objects.error().code);
    }
    objects_ = std::move(*objects);
    InputHandlers handlers;
    handlers.on_visit = [](const std::string&) {};
    handlers.on_error = [&](const std::string& path, const Error& error) { fail(path, error); };
    if (options_.deps) {
      for (const std::string& path : options_.files) seen_.insert(identity(path));
    }
    for (const std::string& named : options_.files) {
      handlers.on_elf = [&](const std::string& path, std::shared_ptr<const ByteSource> source) {
        const auto file = open_elf(std::move(source));
        if (!file) return fail(path, file.error());
        list(path, *file, "");
        if (!options_.deps) return;
        if (path == named) return list_dependencies(path, *file);
        terminal_.warning(path + ": in an archive: its dependencies are not looked for");
      };
      for_each_elf(named, false, handlers);
    }
    if (!options_.common.patterns.empty() && had_probes_ && !fitting_)
      terminal_.warning(no_probe_fits(options_.common.patterns));
    if (options_.common.json) {
      Json document = {{"schema", "reprobe.list/1"}, {"files", std::move(files_)}};
      if (options_.deps) document["missing"] = std::move(missing_);
      print_json(document);
    }
    return exit_;
  }

 private:
  void fail(const std::string& path, const Error& error) {
    terminal_.error(path, error);
    exit_ = std::max(exit_, exit_code(error.code));
  }

  static std::filesystem::path identity(const std::filesystem::path& path) {
    std::error_code failure;
    std::filesystem::path real = std::filesystem::canonical(path, failure);
    return failure ? path : real;
  }

  void list(const std::string& path, const ElfFile& file, const std::string& needed_by) {
    const auto listing = reprobe::list(file, &objects_);
    if (!listing) return fail(path, listing.error());
    const ProbeFile& read = listing->notes;
    const bool indexed = listing->from == Listing::From::index;
    if (listing->from == Listing::From::other_sections) {
      terminal_.warning(path +
                        ": the notes are not in a section .note.stapsdt: no tracer finds them");
    }
    std::vector<const Probe*> probes;
    for (const Probe& probe : read.probes) {
      if (selected(options_.common.patterns, probe.note)) probes.push_back(&probe);
    }
    for (const Probe& probe : listing->legacy.file.probes) {
      if (selected(options_.common.patterns, probe.note)) probes.push_back(&probe);
    }
    had_probes_ = had_probes_ || !read.probes.empty() || !listing->legacy.file.probes.empty();
    fitting_ = fitting_ || !probes.empty();
    // Most libraries have none.
    if (!needed_by.empty() && probes.empty() && read.scan.findings.empty()) return;
    warn_of_problems(path, file, terminal_);
    for (const Probe* probe : probes) {
      for (const std::string& evidence : probe->evidence) {
        terminal_.detail(fmt::format("{}: {}:{}: {}: {}", path, probe->note.provider,
                                     probe->note.name, to_string(probe->verdict), evidence));
      }
    }
    warn_of_notes(path, read.scan, terminal_);
    const auto form = attach_form(options_.as);
    if (options_.common.json) {
      files_.push_back(file_json(path, file, probes));
      // The records that follow the notes were written by SystemTap's header of old.
      Json& listed = files_.back()["probes"];
      const std::vector<std::string_view> headers = note_headers(file, read);
      for (std::size_t i = 0, shown = 0; i < read.probes.size(); ++i) {
        if (!selected(options_.common.patterns, read.probes[i].note)) continue;
        if (!headers[i].empty()) listed[shown]["header"] = headers[i];
        ++shown;
      }
      if (form) files_.back()["attach"] = attach_json(path, file, probes, *form, events_);
      if (!needed_by.empty()) files_.back()["needed_by"] = needed_by;
      if (indexed) files_.back()["source"] = "index";
    } else if (form) {
      print_attach_lines(path, file, probes, *form, events_, terminal_);
    } else {
      if (!first_) fmt::print("\n");
      print_text(path, file, needed_by, probes, indexed, options_.common.verbose, terminal_);
    }
    first_ = false;
  }

  void list_dependencies(const std::string& path, const ElfFile& file) {
    const Dependencies dependencies = find_dependencies(path, file, root_);
    for (const MissingDependency& missing : dependencies.missing) {
      terminal_.warning(fmt::format("{}: {} is needed by {}: {}", path, missing.name,
                                    missing.needed_by.string(), missing.reason));
      missing_.push_back({{"name", missing.name},
                          {"needed_by", missing.needed_by.string()},
                          {"reason", missing.reason}});
    }
    for (const Dependency& dependency : dependencies.found) {
      const std::string place = dependency.path.string();
      terminal_.detail(fmt::format("{}: {} is needed by {}: {}", path, dependency.name,
                                   dependency.needed_by.string(), place));
      if (!seen_.insert(identity(dependency.path)).second) continue;
      auto source = map_file(place);
      if (!source) {
        fail(place, source.error());
        continue;
      }
      const auto library = open_elf(std::move(*source));
      if (library) {
        list(place, *library, dependency.needed_by.string());
      } else {
        fail(place, library.error());
      }
    }
  }

  const ListOptions& options_;
  const Terminal& terminal_;
  Root root_;
  LinkObjects objects_;
  EventNames events_;  // of --as
  std::set<std::filesystem::path> seen_;  // what is listed or will be, with --deps
  int exit_{kDone};
  bool first_{true};
  bool had_probes_{}, fitting_{};  // there was a probe, and one that -p picks
  Json files_ = Json::array();
  Json missing_ = Json::array();
};

}  // namespace

int run_list(const ListOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  return Lister(options, terminal).run();
}

}  // namespace reprobe
