// The JSON documents: addresses and ids as strings, fields that do not apply left out.
// docs/json.md describes each schema.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

// Keys keep the order in which they are added: the documents are stable byte for byte.
using Json = nlohmann::ordered_json;

[[nodiscard]] std::string hex(std::uint64_t value);

[[nodiscard]] Json probe_json(const Probe& probe, const ElfHeader& header);
[[nodiscard]] Json file_json(const std::string& path, const ElfFile& file,
                             std::span<const Probe* const> probes);
[[nodiscard]] Json finding_json(const Finding& finding);
[[nodiscard]] Json edits_json(const Plan& plan);

// Prints the document with a newline. Bytes that are no UTF-8 become U+FFFD.
void print_json(const Json& document);
// On one line, for documents of which there are many.
void print_json_line(const Json& document);

[[nodiscard]] const char* to_string(Severity severity);

}  // namespace reprobe
