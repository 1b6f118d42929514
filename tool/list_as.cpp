#include "tool/list_as.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace reprobe {
namespace {

std::vector<AttachLine> lines_of(const std::string& path, const ElfFile& file,
                                 const std::vector<const Probe*>& probes, AttachForm form,
                                 EventNames& events) {
  std::error_code failure;
  const auto absolute = std::filesystem::absolute(path, failure);
  auto lines = attach_lines(failure ? path : absolute.lexically_normal().string(), file, probes,
                            form, events);
  for (AttachLine& line : lines) {
    // What is printed in another way is no line for a shell.
    if (printable(line.text) == line.text) continue;
    line.refused = "its line has characters that cannot be printed";
    line.text.clear();
    line.event.clear();
  }
  return lines;
}

}  // namespace

void print_attach_lines(const std::string& path, const ElfFile& file,
                        const std::vector<const Probe*>& probes, AttachForm form,
                        EventNames& events, const Terminal& terminal) {
  for (const AttachLine& line : lines_of(path, file, probes, form, events)) {
    const std::string name = fmt::format("{}: {}:{} at {:#x}", path, line.probe->note.provider,
                                         line.probe->note.name, line.probe->site.value);
    if (!line.refused.empty()) {
      terminal.warning(name + ": " + line.refused);
      continue;
    }
    if (!line.left_out.empty()) {
      terminal.warning(fmt::format("{}: left out, this form cannot fetch it: {}", name,
                                   fmt::join(line.left_out, ", ")));
    }
    fmt::print("{}\n", line.text);
  }
}

Json attach_json(const std::string& path, const ElfFile& file,
                 const std::vector<const Probe*>& probes, AttachForm form, EventNames& events) {
  Json list = Json::array();
  for (const AttachLine& line : lines_of(path, file, probes, form, events)) {
    Json item = {{"provider", line.probe->note.provider},
                 {"name", line.probe->note.name},
                 {"arguments", line.arguments},
                 {"left_out", line.left_out}};
    if (!line.text.empty()) item["line"] = line.text;
    if (!line.event.empty()) item["event"] = line.event;
    if (line.site) item["site_offset"] = hex(line.site->value);
    if (line.counter) item["counter_offset"] = hex(line.counter->value);
    if (!line.refused.empty()) item["refused"] = line.refused;
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace reprobe
