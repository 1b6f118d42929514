#include "tool/json.hpp"

#include <fmt/format.h>

#include "libprobe/code/rust_names.hpp"

namespace reprobe {
namespace {

std::string hex_bytes(ByteView bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

Json arguments_json(const std::vector<Argument>& arguments) {
  Json list = Json::array();
  for (const Argument& argument : arguments) {
    Json item = Json::object();
    if (argument.size) item["size"] = *argument.size;
    if (!argument.type.empty()) item["type"] = argument.type;
    item["operand"] = argument.operand;
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

std::string hex(std::uint64_t value) { return fmt::format("{:#x}", value); }

Json probe_json(const Probe& probe, const ElfHeader& header) {
  Json j = Json::object();
  j["provider"] = probe.note.provider;
  j["name"] = probe.note.name;
  j["site"] = hex(probe.site.value);
  if (probe.site_offset) j["site_offset"] = hex(probe.site_offset->value);
  if (!probe.section.empty()) j["section"] = probe.section;
  if (function_of(probe) && !function_of(probe)->name.empty()) {
    j["function"] = function_of(probe)->name;
    if (auto readable = demangle_rust(function_of(probe)->name)) {
      j["function_demangled"] = std::move(*readable);
    }
    j["function_offset"] = hex(site_in_function(probe).value - function_of(probe)->start.value);
  }
  if (probe.origin) j["sled_of"] = hex(probe.origin->site.value);
  j["location"] = hex(probe.note.location.value);
  // In a relocatable object the base is 0 + nothing until the link.
  if (header.type != ET_REL) j["base"] = hex(probe.note.base.value);
  if (probe.semaphore.value != 0 || probe.note.semaphore_section != 0) {
    j["semaphore"] = hex(probe.semaphore.value);
  }
  if (probe.note.semaphore_undefined) j["semaphore_undefined"] = true;
  j["arguments"] = arguments_json(probe.arguments);
  j["arguments_text"] = probe.note.arguments;
  j["note_offset"] = hex(probe.note.file_offset.value);
  if (probe.facts.has_bytes || !probe.legacy.empty()) j["kind"] = site_kind(probe);
  if (!probe.legacy.empty()) j["form"] = probe.legacy;
  j["verdict"] = to_string(probe.verdict);
  j["evidence"] = probe.evidence;
  return j;
}

Json file_json(const std::string& path, const ElfFile& file, std::span<const Probe* const> probes) {
  Json j = Json::object();
  j["path"] = path;
  j["class"] = file.header().is64 ? 64 : 32;
  j["order"] = file.header().order == std::endian::little ? "little" : "big";
  j["machine"] = machine_name(file.header().machine);
  j["type"] = type_name(file.header().type);
  if (const std::string id = file.build_id(); !id.empty()) j["build_id"] = id;
  j["probes"] = Json::array();
  for (const Probe* probe : probes) j["probes"].push_back(probe_json(*probe, file.header()));
  return j;
}

const char* to_string(Severity severity) {
  switch (severity) {
    case Severity::error:
      return "error";
    case Severity::warning:
      return "warning";
    case Severity::note:
      break;
  }
  return "note";
}

Json finding_json(const Finding& finding) {
  Json j = Json::object();
  j["rule"] = finding.rule;
  j["severity"] = to_string(finding.severity);
  if (!finding.provider.empty()) j["provider"] = finding.provider;
  if (!finding.name.empty()) j["name"] = finding.name;
  if (finding.site) j["site"] = hex(*finding.site);
  if (finding.note_offset) j["note_offset"] = hex(*finding.note_offset);
  j["message"] = finding.message;
  j["evidence"] = finding.evidence;
  if (!finding.hint.empty()) j["hint"] = finding.hint;
  return j;
}

Json edits_json(const Plan& plan) {
  Json list = Json::array();
  for (const Edit& edit : plan.edits()) {
    list.push_back({{"offset", hex(edit.offset.value)},
                    {"size", edit.after.size()},
                    {"before", hex_bytes(edit.before)},
                    {"after", hex_bytes(edit.after)},
                    {"why", edit.why}});
  }
  return list;
}

void print_json_line(const Json& document) {
  fmt::print("{}\n", document.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void print_json(const Json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace reprobe
