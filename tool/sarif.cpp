#include "tool/sarif.hpp"

#include <fmt/format.h>

#include <cctype>
#include <set>

namespace reprobe {
namespace {

// A path as a relative URI reference (RFC 3986): everything but unreserved characters and '/'
// is percent-encoded.
std::string uri(std::string_view path) {
  std::string result;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 0x80 && std::isalnum(byte) != 0) ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    result += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return result;
}

std::string message_of(const Finding& finding) {
  std::string text;
  if (!finding.name.empty()) text = fmt::format("{}:{}: ", finding.provider, finding.name);
  text += finding.message;
  for (const std::string& evidence : finding.evidence) text += "; " + evidence;
  if (!finding.hint.empty()) text += ". " + finding.hint;
  return text;
}

Json result_of(const std::string& path, const Finding& finding) {
  Json location = {{"artifactLocation", {{"uri", uri(path)}}}};
  if (finding.note_offset) {
    location["region"] = {{"byteOffset", *finding.note_offset}, {"byteLength", 1}};
  }
  return {{"ruleId", finding.rule},
          {"level", to_string(finding.severity)},
          {"message", {{"text", message_of(finding)}}},
          {"locations", Json::array({{{"physicalLocation", location}}})}};
}

}  // namespace

Json sarif_document(const std::vector<FileFindings>& files) {
  std::set<std::string> rules;
  Json results = Json::array();
  for (const FileFindings& file : files) {
    for (const Finding& finding : file.findings) {
      rules.insert(finding.rule);
      results.push_back(result_of(file.path, finding));
    }
  }
  Json rule_list = Json::array();
  for (const std::string& rule : rules) rule_list.push_back({{"id", rule}});
  const Json driver = {{"name", "reprobe"}, {"version", REPROBE_VERSION}, {"rules", rule_list}};
  const Json run = {{"tool", {{"driver", driver}}}, {"results", results}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", Json::array({run})}};
}

}  // namespace reprobe
